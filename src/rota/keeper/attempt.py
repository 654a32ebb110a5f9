"""One attempt between its start and its result, what the kernel does for it, and the row that tells it."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rota.keeper import quick
from rota.keeper.boxes import Box
from rota.keeper.limits.cgroups import Group
from rota.keeper.output.index import Extent
from rota.keeper.output.segments import Segment
from rota.keeper.process import trees
from rota.keeper.process.cells import Cell
from rota.keeper.rules import Key
from rota.keeper.sandbox import Report
from rota.keeper.service.life import Life
from rota.keeper.steps import Mark
from rota.keeper.stops import How
from rota.keeper.wire import Spec, encode

FIRST_LOOK_NS = 20_000_000
SHORT_NS = 600 * 10**9  # a node that cannot make a process for so long will not soon
SHORT_LOOK_NS = 10**9
SUPERSEDED_GRACE_NS = 5 * 10**9  # of what counts no more: it is dead 10 s after its node is back
NODE_LEFT = "node_left"  # a cause, as the server knows it
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
    cause: str | None = None  # of a bad end, in one word, where its code does not tell


@dataclass(frozen=True, slots=True)
class Excess:
    """What an attempt had too much of, in words, and the memory of its whole tree."""

    reason: str
    peak_kib: int
    cause: str | None = None


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
        try:
            os.killpg(group, signum)
        except (ProcessLookupError, PermissionError):  # nobody left to signal
            return

    def has_members(self, group: int) -> bool:
        return trees.has_members(group)

    def has_ended(self, pid: int) -> bool:
        """Whether a child is a zombie; 0: it was not born yet."""
        return pid != 0 and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def bury_stray(self, pid: int) -> int | None:
        """An orphan that came to us, or a spawn that failed and was reaped already: then nobody knows how."""
        try:
            buried, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status) if buried else None

    def bury(self, pid: int, started_ns: int) -> Outcome:
        """Take the end of a child that is a zombie."""
        buried = quick.bury(pid)
        code = os.waitstatus_to_exitcode(buried.status)
        return Outcome(
            exit_code=code if code >= 0 else None,
            signum=-code if code < 0 else None,
            ran_us=(self.now_ns() - started_ns) // 1000,
            cpu_us=buried.cpu_us,
            peak_kib=self._peak_kib(buried.peak_kib),
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
    struck: int = 0  # the last signal that its leader's group was sent ahead of all others
    kill_at_ns: int = 0
    look_at_ns: int = 0  # when the warden looks next; 0: never
    pause_ns: int = FIRST_LOOK_NS
    outcome: Outcome | None = None  # the leader is gone, others of its tree may not be
    box: Box | None = None  # the container it runs in
    cell: Cell | None = None  # all in there die together; under a lease they die with the keeper, too
    kill_by_ns: int | None = None  # a second before its lease ends
    report: Report | None = None  # of its sandbox
    group: Group | None = None  # where it has limits and the machine has groups
    excess: Excess | None = None  # it went beyond a limit, and dies of that
    marks: list[Mark] = field(default_factory=list)  # of its steps that have begun
    step_ns: int = 0  # when the last of them did
    halted: bool = False  # no further step is to start
    node_leaves: bool = False  # this node stopped it by itself, before any order to
    signaled: int = 0  # the last signal that was delivered by wish, by its number
    waits: bool = False  # to be started again, when this node may have a process to spare
    short_since_ns: int = 0  # since when it had none; 0: it has
    cpu_us: int = 0  # of the steps, or the starts, before
    peak_kib: int = 0
    life: Life | None = None  # of a service

    @property
    def is_resting(self) -> bool:
        """A service between two starts: nothing of it runs."""
        return self.life is not None and self.life.rests_until_ns > 0

    @property
    def is_under_way(self) -> bool:
        """What is to be started is not its first process."""
        return len(self.marks) > 1 or (self.life is not None and self.life.restarts > 0)

    @property
    def may_go_on(self) -> bool:
        """There are steps after the one it is at."""
        return bool(self.marks) and len(self.marks) < len(self.spec.steps) and not self.halted

    def kill_all(self) -> None:
        """Whoever is left, where they can be reached together."""
        if self.group:
            self.group.kill()
        if self.cell and not self._has_emptied_cell():
            self.cell.kill()

    def has_left_cell(self) -> bool:
        """Nothing of it lives on, if it has a cell and goes no further; what is left in there is killed."""
        if self.cell is None or self._has_emptied_cell():
            return True
        if self.may_go_on and self.ending is None and self.outcome and self.outcome.exit_code == 0:
            return True
        self.cell.kill()
        return self.cell.is_empty()

    def _has_emptied_cell(self) -> bool:
        """Its group vouches that nothing is left in a cell that others may use after it."""
        is_kept = self.cell is not None and not (self.cell.is_bound or self.cell.is_killed)
        return is_kept and self.group is not None and self.group.is_empty()

    def spares_leader(self, signum: int) -> bool:
        """Who watches a sandbox would end it at once; its command is told by itself, and has its grace."""
        return self.spec.sandbox is not None and signum == self.spec.stop_signal != signal.SIGKILL

    def to_start(self) -> Spec:
        """The job's spec, or that of the step it is at."""
        if self.life is not None:
            return replace(self.spec, restarts=self.life.restarts)
        return self.spec.of_step(len(self.marks)) if self.marks else self.spec

    def deadline_ns(self) -> int | None:
        """When its time is up, or that of its step."""
        ends_ns = [] if self.kill_by_ns is None else [self.kill_by_ns]
        if (whole_ms := self.spec.timeout_ms) is not None:
            ends_ns.append(self.started_ns + whole_ms * 1_000_000)
        if self.marks and (step_ms := self.spec.steps[len(self.marks) - 1].timeout_ms) is not None:
            ends_ns.append(self.step_ns + step_ms * 1_000_000)
        return min(ends_ns, default=None)

    def is_late(self, now_ns: int) -> bool:
        deadline_ns = self.deadline_ns()
        return deadline_ns is not None and now_ns >= deadline_ns

    def too_late(self, now_ns: int) -> str:
        """How what is late ends."""
        return "lost" if self.has_lost_lease(now_ns) else "timed_out"

    def has_lost_lease(self, now_ns: int) -> bool:
        return self.kill_by_ns is not None and now_ns >= self.kill_by_ns

    @property
    def dies_at_ns(self) -> int:
        """When its grace is over, or its lease."""
        return self.kill_at_ns if self.kill_by_ns is None else min(self.kill_at_ns, self.kill_by_ns)

    def must_die(self, now_ns: int) -> bool:
        return now_ns >= self.dies_at_ns

    def begin_step(self, now_ms: int, now_ns: int, written: Extent) -> None:
        """The next one, with nothing left of the one before but what it used and wrote."""
        self.begin_again()
        began = self.segment.at
        out_bytes, err_bytes = written.out_bytes - began.out_bytes, written.err_bytes - began.err_bytes
        self.marks.append(Mark(now_ms, max(0, out_bytes), max(0, err_bytes)))
        self.step_ns = now_ns

    def begin_again(self) -> None:
        """Nothing is left of the process before but what all of them have used."""
        if self.outcome:
            self.cpu_us, self.peak_kib = self.outcome.cpu_us, self.outcome.peak_kib
        self.pid, self.asked, self.struck, self.outcome = 0, False, 0, None
        self.look_at_ns, self.pause_ns, self.short_since_ns, self.excess = 0, FIRST_LOOK_NS, 0, None

    def begin_end(self, ending: str, now_ns: int) -> None:
        self.ending = ending
        self.kill_at_ns = now_ns + self.spec.grace_ms * 1_000_000
        self.asked = self.has_lost_lease(now_ns)  # then it is killed at once

    def stop(self, how: How, now_ns: int) -> None:
        """It is to end; who is told so again, and harder, has less time."""
        if self.ending is None:
            self.begin_end("stopped", now_ns)
        if how is How.SUPERSEDED:
            self.kill_at_ns = min(self.kill_at_ns, now_ns + SUPERSEDED_GRACE_NS)
        if how is How.AT_ONCE:
            self.asked, self.kill_at_ns = True, now_ns

    def explain_leave(self) -> None:
        """Say of a stop that no order asked for it: the server treats the attempt as lost with its node."""
        if self.node_leaves and self.ending == "stopped" and self.outcome is not None:
            self.outcome.cause = NODE_LEFT
            self.outcome.reason = self.outcome.reason or "its node leaves"

    def rest_of(self, tree: Sequence[tuple[int, int]]) -> list[int]:
        """Whom its leader has left behind, or who is to go beside it."""
        if self.ending is None:  # it ended by itself: who has left its group is swept up later
            return [pid for pid, group in tree if group == self.pid]
        leader = self.outcome is None
        return [pid for pid, group in tree if not (leader and group == self.pid)]

    def wait_for_node(self, now_ns: int) -> int | None:
        """A step of it could not be started: when to try again; None: no more."""
        self.short_since_ns = self.short_since_ns or now_ns
        if self.ending or now_ns - self.short_since_ns >= SHORT_NS:
            return None
        self.waits, self.pause_ns = True, min(2 * self.pause_ns, SHORT_LOOK_NS)
        self.pid, self.outcome, self.box = 0, None, None
        self.step_ns = now_ns + self.pause_ns  # the wait is not of its own time, though of the whole's
        return min(self.step_ns, self.deadline_ns() or self.step_ns)

    def resumes(self, now_ns: int) -> bool:
        """Whether it is to be tried again now: its end may have come."""
        self.waits = False
        if self.ending is None and self.is_late(now_ns):
            self.begin_end(self.too_late(now_ns), now_ns)
        return self.ending is None

    def end_step(self, now_ms: int) -> bool:
        """Mark how it ended; True if another is to follow."""
        assert self.outcome is not None
        mark, outcome = self.marks[-1], self.outcome
        mark.ended_ms, mark.exit_code, mark.signum = now_ms, outcome.exit_code, outcome.signum
        outcome.cpu_us += self.cpu_us
        outcome.peak_kib = max(outcome.peak_kib, self.peak_kib)
        if self.ending is None and outcome.exit_code == 0:
            is_last = len(self.marks) == len(self.spec.steps)
            if self.halted and not is_last:
                self.ending = "stopped"
            return not is_last and not self.halted
        outcome.reason = self._about_step(outcome)
        return False

    def _about_step(self, outcome: Outcome) -> str | None:
        number = len(self.marks)
        step = self.spec.steps[number - 1]
        where = f"step {number} of {len(self.spec.steps)}, {step.name}"
        match self.ending:
            case None | "lost":
                told = f"killed by signal {outcome.signum}" if outcome.signum else f"exit {outcome.exit_code}"
                return f"{where}: {outcome.reason or told}"
            case "timed_out" if step.timeout_ms is not None and not self._whole_time_is_up():
                return f"{where}: over its {step.timeout_ms / 1000:g} s"
            case _:
                return outcome.reason

    def _whole_time_is_up(self) -> bool:
        whole_ms, step_ms = self.spec.timeout_ms, self.spec.steps[len(self.marks) - 1].timeout_ms
        if whole_ms is None or step_ms is None:
            return whole_ms is not None
        return self.started_ns + whole_ms * 1_000_000 <= self.step_ns + step_ms * 1_000_000


def row(key: Key, state: str, outcome: Outcome, started_ms: int | None, ended_ms: int) -> str:
    job, index, attempt = key
    return (
        f'["{job}",{index},{attempt},"{state}",{_or_null(outcome.exit_code)},{_or_null(outcome.signum)}'
        f",{_or_null(started_ms)},{ended_ms},{outcome.ran_us},{outcome.cpu_us},{outcome.peak_kib}"
        f",{encode(outcome.reason) if outcome.reason else 'null'}"
        f"{',' + encode(outcome.cause) if outcome.cause else ''}]"
    )


def _or_null(number: int | None) -> int | str:
    return "null" if number is None else number
