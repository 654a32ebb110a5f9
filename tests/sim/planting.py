"""A planted bug -> the source with it in place, and the first seed of the simulator that finds it.

`python tests/sim/planting.py --search [NAME...]` searches the first seeds for each bug and prints a table.
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
SEED_SECONDS = 100  # per seed; a slower bug is of no use
FIELDS = ("file", "why", "old", "new", "seed")
SCENARIO = (
    "scenario.scenario"  # how a seed becomes a scenario, unless the field `drawn` of a bug names another
)

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


class PlantedBug(NamedTuple):
    """A text of the source that is replaced by a wrong one."""

    name: str
    file: str
    why: str
    old: str
    new: str
    seed: int
    drawn: str = SCENARIO


class OutOfDate(Exception):
    """The text that a bug replaces is no longer in the source."""


class Found(NamedTuple):
    """The first seed that finds a bug, and the violation."""

    seed: int
    broken: str


def bugs(names: Iterable[str] = ()) -> list[PlantedBug]:
    """Read these planted bugs, or all, in the order of their names."""
    paths = [PLANTED / f"{name}.toml" for name in names] or sorted(PLANTED.glob("*.toml"))
    return [read(path) for path in paths]


def read(path: Path) -> PlantedBug:
    fields = tomllib.loads(path.read_text(encoding="utf-8"))
    if sorted(fields.keys() - {"drawn"}) != sorted(FIELDS):
        raise OutOfDate(f"{path.name} has {', '.join(fields)}; expected are {', '.join(FIELDS)}")
    return PlantedBug(path.stem, **fields)


def plant(bug: PlantedBug, directory: Path, source: Path = SOURCE) -> None:
    """Create the source in that directory with the bug in place; all other files are links."""
    text = (source / ".." / bug.file).read_text(encoding="utf-8")
    if text.count(bug.old) != 1:
        raise OutOfDate(
            f"{bug.name}: its text occurs {text.count(bug.old)} times in {bug.file}, not once."
            f" Bring tests/sim/planted/{bug.name}.toml up to date, and its seed with"
            f" python tests/sim/planting.py --search {bug.name}"
        )
    _link_around(source, directory, Path(bug.file).relative_to("src"))
    (directory / Path(bug.file).relative_to("src")).write_text(text.replace(bug.old, bug.new), "utf-8")


def _link_around(source: Path, directory: Path, file: Path) -> None:
    """Link every file and directory that is not on the path to `file`, without compiled files."""
    for parent in reversed(file.parents):
        (directory / parent).mkdir(exist_ok=True)
        below = {(directory / part) for part in (file, *file.parents)}
        for entry in (source / parent).iterdir():
            link = directory / parent / entry.name
            if link not in below and entry.name != "__pycache__":
                link.symlink_to(entry)


def run(directory: Path, seeds: Sequence[int], hash_seed: str = "0", drawn: str = SCENARIO) -> Found | None:
    """The first of these seeds that violates an invariant with the source in that directory."""
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
    match = re.search(r"^seed (\d+): (.*)", done.stderr, re.MULTILINE)
    if done.returncode != 1 or match is None:
        raise AssertionError(f"the simulator did not run: {done.stderr[-2000:]}")
    return Found(int(match[1]), match[2])


def find(bug: PlantedBug, seeds: Sequence[int]) -> Found | None:
    with tempfile.TemporaryDirectory() as directory:
        plant(bug, Path(directory))
        return run(Path(directory), seeds, drawn=bug.drawn)


def search(names: Sequence[str], processes: int | None) -> int:
    """Print the first seed that finds each bug; return the number of bugs that none finds."""
    chosen = bugs(names)
    width = max(len(bug.name) for bug in chosen)
    missed = 0
    print(f"{'bug':<{width}}  first seed  seeds tried  found by")
    with ThreadPoolExecutor(processes or os.cpu_count()) as pool:
        searches = [pool.submit(find, bug, range(SEEDS)) for bug in chosen]
        for bug, finding in zip(chosen, searches, strict=True):
            found = finding.result()
            missed += found is None
            tried = SEEDS if found is None else found.seed + 1
            first = "never" if found is None else f"{found.seed:,}"
            broken = bug.why if found is None else found.broken
            print(f"{bug.name:<{width}}  {first:>10}  {tried:>11,}  {broken}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found within {SEEDS:,} seeds")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--search", nargs="*", metavar="NAME", required=True, help="default: all")
    parser.add_argument("--processes", type=int, help="default: one per core")
    options = parser.parse_args()
    return 1 if search(options.search, options.processes) else 0


if __name__ == "__main__":
    sys.exit(main())
