"""Steps: commands that one attempt runs in order, and the records of those that have started."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepCommand:
    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    timeout_ms: int | None


@dataclass(slots=True)
class StepStart:
    """A step that has started: when, where its output starts, and how it ended."""

    started_ms: int
    out_bytes: int = 0
    err_bytes: int = 0
    ended_ms: int = 0  # 0: it has not ended
    exit_code: int | None = None
    signum: int | None = None

    def row(self) -> list[int | None]:
        return [
            self.started_ms,
            self.ended_ms,
            self.exit_code,
            self.signum,
            self.out_bytes,
            self.err_bytes,
        ]


def step_start_from_row(row: list[Any]) -> StepStart:
    started_ms, ended_ms, exit_code, signum, out_bytes, err_bytes = row
    return StepStart(started_ms, out_bytes, err_bytes, ended_ms, exit_code, signum)
