"""One attempt between its start and its result, what the kernel does for it, and the row that tells it."""

import contextlib
import os
import resource
import time
from dataclasses import dataclass

from rota.keeper import trees
from rota.keeper.boxes import Box
from rota.keeper.outputs import Segment
from rota.keeper.rules import Key
from rota.keeper.wire import Spec, encode

FIRST_LOOK_NS = 20_000_000
BLUR_KIB = 1024  # the kernel counts a process's pages in batches, one for each core


@dataclass(slots=True)
class Outcome:
    """How the leader of an attempt's processes ended, and what it used."""

    exit_code: int | None = None
    signum: int | None = None
    ran_us: int = 0
    cpu_us: int = 0
    peak_kib: int = 0  # unknown: at most the keeper's own
    reason: str | None = None


class Kernel:
    """What only the machine can do: tell the time, signal a group, say how a process ended."""

    def __init__(self) -> None:
        self._own_peak_kib = 0

    def now_ns(self) -> int:
        """Since the boot, sleep of the machine included: what deadlines are counted on."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def now_ms(self) -> int:
        """By the wall clock, for people."""
        return time.time_ns() // 1_000_000

    def signal_group(self, group: int, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left to signal
            os.killpg(group, signum)

    def has_members(self, group: int) -> bool:
        return trees.has_members(group)

    def has_ended(self, pid: int) -> bool:
        """Whether a child is a zombie; 0: it was not born yet."""
        return pid != 0 and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def bury_stray(self, pid: int) -> None:
        """An orphan that came to us, or a spawn that failed and was reaped already."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    def bury(self, pid: int, started_ns: int) -> Outcome:
        """Take the end of a child that is a zombie."""
        _, status, usage = os.wait4(pid, 0)
        return self._outcome(status, usage, started_ns)

    def _outcome(self, status: int, usage: resource.struct_rusage, started_ns: int) -> Outcome:
        code = os.waitstatus_to_exitcode(status)
        return Outcome(
            exit_code=code if code >= 0 else None,
            signum=-code if code < 0 else None,
            ran_us=(self.now_ns() - started_ns) // 1000,
            cpu_us=int((usage.ru_utime + usage.ru_stime) * 1e6),
            peak_kib=self._peak_kib(usage.ru_maxrss),
        )

    def _peak_kib(self, peak_kib: int) -> int:
        """Until its exec a child shares the keeper's memory, which counts as its own: less is not known."""
        if peak_kib > self._own_peak_kib:
            self._own_peak_kib = _own_peak_kib() + BLUR_KIB
        return peak_kib if peak_kib > self._own_peak_kib else 0


def _own_peak_kib() -> int:
    """Of this program alone: getrusage would count what its parent was before it became the keeper."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


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
    box: Box | None = None  # the container it runs in


def row(key: Key, state: str, outcome: Outcome, started_ms: int | None, ended_ms: int) -> str:
    job, index, attempt = key
    return (
        f'["{job}",{index},{attempt},"{state}",{_or_null(outcome.exit_code)},{_or_null(outcome.signum)}'
        f",{_or_null(started_ms)},{ended_ms},{outcome.ran_us},{outcome.cpu_us},{outcome.peak_kib}"
        f",{encode(outcome.reason) if outcome.reason else 'null'}]"
    )


def _or_null(number: int | None) -> int | str:
    return "null" if number is None else number
