"""One attempt between its start and its result, and the row that tells the result."""

import time
from dataclasses import dataclass

from rota.keeper.outputs import Segment
from rota.keeper.rules import Key
from rota.keeper.wire import Spec, encode

FIRST_LOOK_NS = 20_000_000


@dataclass(slots=True)
class Outcome:
    """How the leader of an attempt's processes ended, and what it used."""

    exit_code: int | None = None
    signum: int | None = None
    ran_us: int = 0
    cpu_us: int = 0
    peak_kib: int = 0
    reason: str | None = None


@dataclass(slots=True)
class Running:
    key: Key
    spec: Spec
    gpus: tuple[str, ...]
    started_ms: int
    started_ns: int
    segment: Segment
    pid: int = 0  # until it is spawned
    ending: str | None = None  # "stopped" or "timed_out", once it has been decided
    asked: bool = False  # to end, by SIGTERM
    kill_at_ns: int = 0
    look_at_ns: int = 0  # when the warden looks next; 0: never
    pause_ns: int = FIRST_LOOK_NS
    outcome: Outcome | None = None  # the leader is gone, others of its tree may not be


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def row(key: Key, state: str, outcome: Outcome, started_ms: int | None) -> str:
    job, index, attempt = key
    return (
        f'["{job}",{index},{attempt},"{state}",{_or_null(outcome.exit_code)},{_or_null(outcome.signum)}'
        f",{_or_null(started_ms)},{now_ms()},{outcome.ran_us},{outcome.cpu_us},{outcome.peak_kib}"
        f",{encode(outcome.reason) if outcome.reason else 'null'}]"
    )


def _or_null(number: int | None) -> int | str:
    return "null" if number is None else number
