"""When each attempt of a task ran, as written by the attempts themselves on the boot clock."""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

# Under a lock: a line for each moment it runs, and a write to a fenced store that refuses older attempts.
SCRIPT = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt, node = int(os.environ["ROTA_ATTEMPT"]), os.environ["ROTA_NODE"]
seen, store = (open(path, "a+") for path in sys.argv[1:])
while True:
    fcntl.flock(store, fcntl.LOCK_EX)
    store.seek(0)
    newest = max((int(line) for line in store), default=0)
    if attempt >= newest:
        print(attempt, file=store, flush=True)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    print(attempt, node, os.getpid(), now, int(attempt < newest), file=seen, flush=True)
    fcntl.flock(store, fcntl.LOCK_UN)
    time.sleep(0.02)
"""


@dataclass(frozen=True)
class AttemptInterval:
    """First and last moment of an attempt."""

    attempt: int
    node: int
    first: float
    last: float
    refused: int  # number of writes refused because a newer attempt had written


@dataclass(frozen=True)
class Intervals:
    """The files that the attempts of one task write."""

    directory: Path

    def command(self) -> list[str]:
        return [sys.executable, "-c", SCRIPT, str(self.directory / "seen"), str(self.directory / "store")]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock: no attempt writes meanwhile."""
        with (self.directory / "store").open("a") as store:
            fcntl.flock(store, fcntl.LOCK_EX)
            yield

    def ran(self) -> list[AttemptInterval]:
        """Intervals of all attempts, in the order of their numbers."""
        found: dict[int, AttemptInterval] = {}
        for attempt, node, _, at, is_refused in self._rows():
            before = found.get(int(attempt))
            first = before.first if before else float(at)
            refused = (before.refused if before else 0) + int(is_refused)
            found[int(attempt)] = AttemptInterval(int(attempt), int(node[-1]), first, float(at), refused)
        return [found[attempt] for attempt in sorted(found)]

    def overlaps(self) -> int:
        """Number of attempts that started before the last moment of the previous one."""
        return sum(later.first <= earlier.last for earlier, later in pairwise(self.ran()))

    def stale_writes(self) -> int:
        """Number of writes that the store took from an attempt after one of a newer attempt."""
        path = self.directory / "store"
        accepted = [int(line) for line in path.read_text().splitlines()] if path.exists() else []
        return sum(later < earlier for earlier, later in pairwise(accepted))

    def _rows(self) -> Iterator[list[str]]:
        path = self.directory / "seen"
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            yield from (line.split() for line in lines if line.endswith("\n"))
