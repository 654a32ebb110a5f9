"""python -m tests.fuzz: histories on the loop; odd specs, hostile peers and raw bytes on real clusters."""

import argparse
import contextlib
import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.fuzz import peers, ports, specs
from tests.fuzz.arena import Arena, ClusterBroken, Outcomes, open_arena
from tests.fuzz.history import HistoryFailure, history, play, shrink

SHOWN = 5  # failures that are shrunk and printed in full
T = TypeVar("T")
Attack = Callable[[Arena, int, Outcomes], None]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    until = time.monotonic() + 60 * options.minutes
    failed = 0
    for name in options.only or [*ATTACKS, "histories"]:
        print(f"== {name}", flush=True)
        if name == "histories":
            failed += _play_all(options.seeds, options.steps, options.processes, until)
        else:
            failed += _attack(name, options.seeds[: options.rounds], until)
    print("everything held" if not failed else f"{failed} failures")
    return 1 if failed else 0


# ---- histories


class Played(NamedTuple):
    """A history that was played, and its failure, if any."""

    seed: int
    steps: int
    failure: HistoryFailure | None


def _play_all(seeds: range, steps: int, processes: int | None, until: float) -> int:
    kinds: Counter[str] = Counter()
    failed: list[Played] = []
    with multiprocessing.Pool(processes, _ignore_interrupts) as pool, contextlib.suppress(KeyboardInterrupt):
        for played in _timely(pool.imap_unordered(_play, [(seed, steps) for seed in seeds]), until):
            kinds[played.failure.kind if played.failure else "held"] += 1
            if played.failure:
                failed.append(played)
                print(f"  seed {played.seed}: {played.failure.kind}", flush=True)
            if sum(kinds.values()) % 50 == 0:
                print(f"  {sum(kinds.values()):,} of {len(seeds):,}: {dict(kinds)}", flush=True)
    for kind, count in kinds.most_common():
        print(f"  {count:>6,}  {kind}")
    shown = {played.failure.kind: played for played in reversed(failed) if played.failure}
    for played in list(shown.values())[:SHOWN]:
        print(_describe(played))
    return len(failed)


def _play(case: tuple[int, int]) -> Played:
    seed, steps = case
    return Played(seed, steps, play(history(seed, steps)))


def _describe(played: Played) -> str:
    """Describe a failing history, shrunk while the same kind of failure remains."""
    assert played.failure is not None
    few = shrink(history(played.seed, played.steps)[: len(played.failure.steps)], played.failure.kind)
    failure = play(few) or played.failure
    command = f"python -m tests.fuzz --only histories --steps {played.steps} --seeds {played.seed}"
    lines = [
        f"seed {played.seed}: {failure.kind}",
        *(f"  {step}" for step in failure.steps),
        failure.problem,
        command,
    ]
    return "\n".join(lines)


# ---- clusters


def _specs(arena: Arena, seed: int, outcomes: Outcomes) -> None:
    specs.fuzz(arena, seed, 400, outcomes)
    share = specs.pairs_count() // SWEEPS
    specs.sweep(arena, outcomes, range(seed % SWEEPS * share, (seed % SWEEPS + 1) * share))


def _peers(arena: Arena, seed: int, outcomes: Outcomes) -> None:
    peers.fuzz(arena, seed, 40, outcomes)
    arena.restart_server()
    arena.check()


def _ports(arena: Arena, seed: int, outcomes: Outcomes) -> None:
    ports.fuzz(arena, seed, 200, outcomes)


SWEEPS = 20  # seeds in a row that together send every field with every odd value
ATTACKS: dict[str, Attack] = {"specs": _specs, "peers": _peers, "ports": _ports}


def _attack(name: str, seeds: range, until: float) -> int:
    """Attack one cluster with all seeds: what one leaves behind must not harm the next."""
    outcomes, seed = Outcomes(), seeds[0]
    directory = Path(tempfile.mkdtemp(prefix="rota-fuzz-"))
    try:
        with open_arena(directory / "cluster") as arena:
            for seed in _timely(seeds, until):
                ATTACKS[name](arena, seed, outcomes)
                print(f"  seed {seed}: {len(outcomes.problems)} problems so far", flush=True)
    except ClusterBroken as broken:
        outcomes.add_problem("the cluster broke", f"seed {seed}: {broken}")
    print(outcomes)
    if outcomes.problems:
        print(
            f"  files of the cluster: {directory}\n"
            f"  reproduce: python -m tests.fuzz --only {name} --seeds {seed}"
        )
    else:
        shutil.rmtree(directory)
    return len(outcomes.problems)


def _timely(found: Iterable[T], until: float) -> Iterator[T]:
    for item in found:
        yield item
        if time.monotonic() > until:
            print("  the time is up")
            return


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(1000), help="a number, or FIRST-END (0-1000)")
    parser.add_argument("--steps", type=int, default=600, help="of a history")
    parser.add_argument("--rounds", type=int, default=20, help="number of seeds that are tried on clusters")
    parser.add_argument("--minutes", type=float, default=600, help="after which no new seed is started")
    parser.add_argument("--processes", type=int, help="that play histories; default: one per core")
    parser.add_argument("--only", nargs="*", choices=["histories", *ATTACKS])
    return parser


def _range(text: str) -> range:
    first, sign, end = text.partition("-")
    return range(int(first), int(end) if sign else int(first) + 1)


if __name__ == "__main__":
    sys.exit(main())
