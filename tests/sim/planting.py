"""A planted bug -> the source with it in place, and the first seed of the simulator that finds it.

`python tests/sim/planting.py --search [NAME...]` looks for each among the first seeds and prints a table.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PLANTED = Path(__file__).parent / "planted"
SEEDS = 2_000  # within which each bug has to be found
SEED_SECONDS = 100  # a bug that keeps the simulator busy for longer is no use
FIELDS = ("file", "why", "old", "new", "seed")
SCENARIO = "scenario.scenario"  # how a seed becomes a case, unless a bug's field `drawn` names another

# Without shrinking, which takes many runs.
_RUN = """
import importlib, os, sys
import rota
assert rota.__file__.startswith(os.environ["PYTHONPATH"]), "another source was run"
from rota.sim.scenario import run
module, _, name = sys.argv[1].partition(".")
drawn = getattr(importlib.import_module(f"rota.sim.{module}"), name)
for seed in map(int, sys.argv[2:]):
    broken = run(drawn(seed), keep_trace=False).broken
    if broken is not None:
        sys.exit(f"seed {seed}: {broken}")
"""


class Bug(NamedTuple):
    """One line that was written wrongly."""

    name: str
    file: str
    why: str
    old: str
    new: str
    seed: int
    drawn: str = SCENARIO


class OutOfDate(Exception):
    """The source has changed where a bug is to be planted."""


class Found(NamedTuple):
    seed: int
    broken: str


def bugs(names: Iterable[str] = ()) -> list[Bug]:
    """Those of these names, or all, in the order of their names."""
    paths = [PLANTED / f"{name}.toml" for name in names] or sorted(PLANTED.glob("*.toml"))
    return [read(path) for path in paths]


def read(path: Path) -> Bug:
    fields = tomllib.loads(path.read_text(encoding="utf-8"))
    if sorted(fields.keys() - {"drawn"}) != sorted(FIELDS):
        raise OutOfDate(f"{path.name} has {', '.join(fields)}; wanted are {', '.join(FIELDS)}")
    return Bug(path.stem, **fields)


def plant(bug: Bug, directory: Path, source: Path = SOURCE) -> None:
    """The source in that directory with one text replaced; all else are links to what is there."""
    text = (source / ".." / bug.file).read_text(encoding="utf-8")
    if text.count(bug.old) != 1:
        raise OutOfDate(
            f"{bug.name}: what it replaces stands {text.count(bug.old)} times in {bug.file}, not once."
            f" Bring tests/sim/planted/{bug.name}.toml up to date, and its seed with"
            f" python tests/sim/planting.py --search {bug.name}"
        )
    _link_around(source, directory, Path(bug.file).relative_to("src"))
    (directory / Path(bug.file).relative_to("src")).write_text(text.replace(bug.old, bug.new), "utf-8")


def _link_around(source: Path, directory: Path, file: Path) -> None:
    """Everything beside the way to this file is a link; compiled files are not taken along."""
    for parent in reversed(file.parents):
        (directory / parent).mkdir(exist_ok=True)
        below = {(directory / part) for part in (file, *file.parents)}
        for entry in (source / parent).iterdir():
            link = directory / parent / entry.name
            if link not in below and entry.name != "__pycache__":
                link.symlink_to(entry)


def run(directory: Path, seeds: Sequence[int], hash_seed: str = "0", drawn: str = SCENARIO) -> Found | None:
    """The first of these seeds at which the source in that directory breaks a promise."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, drawn, *map(str, seeds)],
        env={**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
        | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=SEED_SECONDS * len(seeds),
    )
    if done.returncode == 0:
        return None
    told = re.search(r"^seed (\d+): (.*)", done.stderr, re.MULTILINE)
    if done.returncode != 1 or told is None:
        raise AssertionError(f"the simulator did not run: {done.stderr[-2000:]}")
    return Found(int(told[1]), told[2])


def find(bug: Bug, seeds: Sequence[int]) -> Found | None:
    with tempfile.TemporaryDirectory() as directory:
        plant(bug, Path(directory))
        return run(Path(directory), seeds, drawn=bug.drawn)


def search(names: Sequence[str], processes: int | None) -> int:
    """Prints where each is first found; the number of those that are not."""
    chosen = bugs(names)
    width = max(len(bug.name) for bug in chosen)
    missed = 0
    print(f"{'bug':<{width}}  first seed  seeds tried  found by")
    with ThreadPoolExecutor(processes or os.cpu_count()) as pool:
        searches = [pool.submit(find, bug, range(SEEDS)) for bug in chosen]
        for bug, one in zip(chosen, searches, strict=True):
            found = one.result()
            missed += found is None
            tried = SEEDS if found is None else found.seed + 1
            first = "never" if found is None else f"{found.seed:,}"
            broken = bug.why if found is None else found.broken
            print(f"{bug.name:<{width}}  {first:>10}  {tried:>11,}  {broken}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found within {SEEDS:,} seeds")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--search", nargs="*", metavar="NAME", required=True, help="as a rule all")
    parser.add_argument("--processes", type=int, help="as a rule one for each core")
    options = parser.parse_args()
    return 1 if search(options.search, options.processes) else 0


if __name__ == "__main__":
    sys.exit(main())
