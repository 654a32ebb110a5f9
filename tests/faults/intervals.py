"""What attempts of a task write down themselves, many times a second: who ran when, by the boot clock."""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

# Under a lock: a line for each moment it runs, and a write to a store that refuses whoever is not the newest.
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
class Ran:
    attempt: int
    node: int
    first: float
    last: float
    refused: int  # of its writes, because a newer one had written


@dataclass(frozen=True)
class Intervals:
    directory: Path

    def command(self) -> list[str]:
        return [sys.executable, "-c", SCRIPT, str(self.directory / "seen"), str(self.directory / "store")]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Meanwhile no attempt says anything."""
        with (self.directory / "store").open("a") as store:
            fcntl.flock(store, fcntl.LOCK_EX)
            yield

    def ran(self) -> list[Ran]:
        """Of each attempt its first and its last moment, in the order of their numbers."""
        found: dict[int, Ran] = {}
        for attempt, node, _, at, is_refused in self._rows():
            before = found.get(int(attempt))
            first = before.first if before else float(at)
            refused = (before.refused if before else 0) + int(is_refused)
            found[int(attempt)] = Ran(int(attempt), int(node[-1]), first, float(at), refused)
        return [found[attempt] for attempt in sorted(found)]

    def overlaps(self) -> int:
        """How often an attempt began before the one before it had said its last."""
        return sum(later.first <= earlier.last for earlier, later in pairwise(self.ran()))

    def stale_writes(self) -> int:
        """What the store took of an attempt after it had taken something of a newer one."""
        path = self.directory / "store"
        taken = [int(line) for line in path.read_text().splitlines()] if path.exists() else []
        return sum(later < earlier for earlier, later in pairwise(taken))

    def _rows(self) -> Iterator[list[str]]:
        path = self.directory / "seen"
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            yield from (line.split() for line in lines if line.endswith("\n"))
