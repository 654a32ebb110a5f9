"""A file to which each start of a task appends one line: what really ran, whatever any process reports."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rota.testing.processes import until


@dataclass(frozen=True)
class Seen:
    """One start of a task."""

    index: int
    attempt: int
    node: str


@dataclass(frozen=True)
class Witness:
    path: Path

    def script(self, then: str = "") -> list[str]:
        """A command that records its start, in one appending write, and continues with `then`."""
        say = f'echo "$ROTA_INDEX $ROTA_ATTEMPT $ROTA_NODE" >> {self.path}'
        return ["sh", "-c", f"{say}; {then}" if then else say]

    def seen(self) -> list[Seen]:
        if not self.path.exists():
            return []
        # The last line may be incomplete.
        rows = (line.split() for line in self.path.read_text().splitlines(keepends=True) if "\n" in line)
        return [Seen(int(index), int(attempt), node) for index, attempt, node in rows]

    def wait_for(self, starts: int) -> list[Seen]:
        """Wait for this many starts: the server may report a start before the task has recorded it."""
        until(lambda: len(self.seen()) >= starts, f"{starts} tasks have started")
        return self.seen()

    def starts(self) -> Counter[int]:
        """How often each task was started."""
        return Counter(seen.index for seen in self.seen())


@dataclass(frozen=True)
class Gate:
    """A task that waits here continues when the gate is opened."""

    path: Path
    look_seconds: float = 0.05  # more where many wait: each look is a process

    @property
    def wait(self) -> str:
        return f"until [ -e {self.path} ]; do sleep {self.look_seconds:g}; done"

    def open(self) -> None:
        self.path.touch()
