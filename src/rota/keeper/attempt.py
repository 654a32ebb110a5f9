"""One attempt between its start and its result, what the kernel does for it, and the row that tells it."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rota.keeper.containers import ContainerHandle
from rota.keeper.limits.cgroups import Cgroup
from rota.keeper.output.index import Extent
from rota.keeper.output.segments import Segment
from rota.keeper.process import fast_syscalls, trees
from rota.keeper.process.pid_namespace import PidNamespace
from rota.keeper.process.sandbox import SandboxReport
from rota.keeper.protocol.steps import StepStart
from rota.keeper.protocol.stop_modes import KeeperStopMode
from rota.keeper.protocol.wire import KeeperJobSpec, encode
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.service.state import ServiceState

FIRST_POLL_NS = 20_000_000
EXHAUSTED_MAX_NS = 600 * 10**9  # a node that cannot make a process for so long will not soon
RETRY_MAX_NS = 10**9
SUPERSEDED_GRACE_NS = 5 * 10**9  # of what counts no more: it is dead 10 s after its node is back
NODE_LEFT = "node_left"  # a cause, as the server knows it
PEAK_ERROR_KIB = 1024  # the kernel counts a process's pages in batches, one for each core


@dataclass(slots=True)
class ExitStatus:
    """How the leader of an attempt's processes ended, and what it used."""

    exit_code: int | None = None
    signum: int | None = None
    ran_us: int = 0
    cpu_us: int = 0
    peak_kib: int = 0  # unknown: at most the keeper's own
    reason: str | None = None
    cause: str | None = None  # of a bad end, in one word, where its code does not tell


@dataclass(frozen=True, slots=True)
class LimitViolation:
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

    def reap_stray(self, pid: int) -> int | None:
        """An orphan that came to us, or a spawn that failed and was reaped already: then nobody knows how."""
        try:
            buried, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status) if buried else None

    def reap(self, pid: int, started_ns: int) -> ExitStatus:
        """Take the end of a child that is a zombie."""
        buried = fast_syscalls.reap(pid)
        code = os.waitstatus_to_exitcode(buried.status)
        return ExitStatus(
            exit_code=code if code >= 0 else None,
            signum=-code if code < 0 else None,
            ran_us=(self.now_ns() - started_ns) // 1000,
            cpu_us=buried.cpu_us,
            peak_kib=self._peak_kib(buried.peak_kib),
        )

    def _peak_kib(self, peak_kib: int) -> int:
        """Until its exec a child shares the keeper's memory, which counts as its own: less is not known."""
        if peak_kib > self._own_peak_kib:
            self._own_peak_kib = _own_peak_kib() + PEAK_ERROR_KIB
        return peak_kib if peak_kib > self._own_peak_kib else 0


def _own_peak_kib() -> int:
    """Of this program alone: getrusage would count what its parent was before it became the keeper."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


@dataclass(slots=True)
class RunningAttempt:
    key: AttemptKey
    spec: KeeperJobSpec
    gpus: tuple[str, ...]
    started_ms: int
    started_ns: int
    segment: Segment
    pid: int = 0  # until it is spawned
    end_state: str | None = None  # "stopped" or "timed_out", once it has been decided
    stop_signalled: bool = False  # to end, by SIGTERM
    early_signal: int = 0  # the last signal that its leader's group was sent ahead of all others
    kill_at_ns: int = 0
    timer_at_ns: int = 0  # when the warden looks next; 0: never
    backoff_ns: int = FIRST_POLL_NS
    exit_status: ExitStatus | None = None  # the leader is gone, others of its tree may not be
    container: ContainerHandle | None = None  # the container it runs in
    pid_namespace: PidNamespace | None = (
        None  # all in there die together; under a lease they die with the keeper, too
    )
    lease_kill_at_ns: int | None = None  # a second before its lease ends
    sandbox_report: SandboxReport | None = None  # of its sandbox
    cgroup: Cgroup | None = None  # where it has limits and the machine has groups
    violation: LimitViolation | None = None  # it went beyond a limit, and dies of that
    step_starts: list[StepStart] = field(default_factory=list)  # of its steps that have begun
    step_started_ns: int = 0  # when the last of them did
    stop_requested: bool = False  # no further step is to start
    node_leaves: bool = False  # this node stopped it by itself, before any order to
    last_signal_n: int = 0  # the last signal that was delivered by wish, by its number
    awaits_retry: bool = False  # to be started again, when this node may have a process to spare
    exhausted_since_ns: int = 0  # since when it had none; 0: it has
    cpu_us: int = 0  # of the steps, or the starts, before
    peak_kib: int = 0
    service: ServiceState | None = None  # of a service

    @property
    def is_backing_off(self) -> bool:
        """A service between two starts: nothing of it runs."""
        return self.service is not None and self.service.backoff_until_ns > 0

    @property
    def has_run_before(self) -> bool:
        """What is to be started is not its first process."""
        return len(self.step_starts) > 1 or (self.service is not None and self.service.restarts > 0)

    @property
    def has_next_step(self) -> bool:
        """There are steps after the one it is at."""
        return (
            bool(self.step_starts)
            and len(self.step_starts) < len(self.spec.steps)
            and not self.stop_requested
        )

    def kill_all(self) -> None:
        """Whoever is left, where they can be reached together."""
        if self.cgroup:
            self.cgroup.kill()
        if self.pid_namespace and not self._has_emptied_cell():
            self.pid_namespace.kill()

    def has_left_pid_namespace(self) -> bool:
        """Nothing of it lives on, if it has a cell and goes no further; what is left in there is killed."""
        if self.pid_namespace is None or self._has_emptied_cell():
            return True
        if (
            self.has_next_step
            and self.end_state is None
            and self.exit_status
            and self.exit_status.exit_code == 0
        ):
            return True
        self.pid_namespace.kill()
        return self.pid_namespace.is_empty()

    def _has_emptied_cell(self) -> bool:
        """Its group vouches that nothing is left in a cell that others may use after it."""
        is_kept = self.pid_namespace is not None and not (
            self.pid_namespace.is_bound or self.pid_namespace.is_killed
        )
        return is_kept and self.cgroup is not None and self.cgroup.is_empty()

    def spares_leader(self, signum: int) -> bool:
        """Who watches a sandbox would end it at once; its command is told by itself, and has its grace."""
        return self.spec.sandbox is not None and signum == self.spec.stop_signal != signal.SIGKILL

    def spec_to_start(self) -> KeeperJobSpec:
        """The job's spec, or that of the step it is at."""
        if self.service is not None:
            return replace(self.spec, restarts=self.service.restarts)
        return self.spec.for_step(len(self.step_starts)) if self.step_starts else self.spec

    def deadline_ns(self) -> int | None:
        """When its time is up, or that of its step."""
        ends_ns = [] if self.lease_kill_at_ns is None else [self.lease_kill_at_ns]
        if (whole_ms := self.spec.timeout_ms) is not None:
            ends_ns.append(self.started_ns + whole_ms * 1_000_000)
        if (
            self.step_starts
            and (step_ms := self.spec.steps[len(self.step_starts) - 1].timeout_ms) is not None
        ):
            ends_ns.append(self.step_started_ns + step_ms * 1_000_000)
        return min(ends_ns, default=None)

    def is_past_deadline(self, now_ns: int) -> bool:
        deadline_ns = self.deadline_ns()
        return deadline_ns is not None and now_ns >= deadline_ns

    def deadline_end_state(self, now_ns: int) -> str:
        """How what is late ends."""
        return "lost" if self.has_lost_lease(now_ns) else "timed_out"

    def has_lost_lease(self, now_ns: int) -> bool:
        return self.lease_kill_at_ns is not None and now_ns >= self.lease_kill_at_ns

    @property
    def sigkill_at_ns(self) -> int:
        """When its grace is over, or its lease."""
        return (
            self.kill_at_ns if self.lease_kill_at_ns is None else min(self.kill_at_ns, self.lease_kill_at_ns)
        )

    def must_be_killed(self, now_ns: int) -> bool:
        return now_ns >= self.sigkill_at_ns

    def start_step(self, now_ms: int, now_ns: int, written: Extent) -> None:
        """The next one, with nothing left of the one before but what it used and wrote."""
        self.reset_process()
        began = self.segment.at
        out_bytes, err_bytes = written.out_bytes - began.out_bytes, written.err_bytes - began.err_bytes
        self.step_starts.append(StepStart(now_ms, max(0, out_bytes), max(0, err_bytes)))
        self.step_started_ns = now_ns

    def reset_process(self) -> None:
        """Nothing is left of the process before but what all of them have used."""
        if self.exit_status:
            self.cpu_us, self.peak_kib = self.exit_status.cpu_us, self.exit_status.peak_kib
        self.pid, self.stop_signalled, self.early_signal, self.exit_status = 0, False, 0, None
        self.timer_at_ns, self.backoff_ns, self.exhausted_since_ns, self.violation = 0, FIRST_POLL_NS, 0, None

    def start_termination(self, end_state: str, now_ns: int) -> None:
        self.end_state = end_state
        self.kill_at_ns = now_ns + self.spec.grace_ms * 1_000_000
        self.stop_signalled = self.has_lost_lease(now_ns)  # then it is killed at once

    def stop(self, mode: KeeperStopMode, now_ns: int) -> None:
        """It is to end; who is told so again, and harder, has less time."""
        if self.end_state is None:
            self.start_termination("stopped", now_ns)
        if mode is KeeperStopMode.SUPERSEDED:
            self.kill_at_ns = min(self.kill_at_ns, now_ns + SUPERSEDED_GRACE_NS)
        if mode is KeeperStopMode.IMMEDIATE:
            self.stop_signalled, self.kill_at_ns = True, now_ns

    def explain_leave(self) -> None:
        """Say of a stop that no order asked for it: the server treats the attempt as lost with its node."""
        if self.node_leaves and self.end_state == "stopped" and self.exit_status is not None:
            self.exit_status.cause = NODE_LEFT
            self.exit_status.reason = self.exit_status.reason or "its node leaves"

    def remaining_pids(self, tree: Sequence[tuple[int, int]]) -> list[int]:
        """Whom its leader has left behind, or who is to go beside it."""
        if self.end_state is None:  # it ended by itself: who has left its group is swept up later
            return [pid for pid, group in tree if group == self.pid]
        leader = self.exit_status is None
        return [pid for pid, group in tree if not (leader and group == self.pid)]

    def schedule_retry(self, now_ns: int) -> int | None:
        """A step of it could not be started: when to try again; None: no more."""
        self.exhausted_since_ns = self.exhausted_since_ns or now_ns
        if self.end_state or now_ns - self.exhausted_since_ns >= EXHAUSTED_MAX_NS:
            return None
        self.awaits_retry, self.backoff_ns = True, min(2 * self.backoff_ns, RETRY_MAX_NS)
        self.pid, self.exit_status, self.container = 0, None, None
        self.step_started_ns = (
            now_ns + self.backoff_ns
        )  # the wait is not of its own time, though of the whole's
        return min(self.step_started_ns, self.deadline_ns() or self.step_started_ns)

    def end_retry_wait(self, now_ns: int) -> bool:
        """Whether it is to be tried again now: its end may have come."""
        self.awaits_retry = False
        if self.end_state is None and self.is_past_deadline(now_ns):
            self.start_termination(self.deadline_end_state(now_ns), now_ns)
        return self.end_state is None

    def end_step(self, now_ms: int) -> bool:
        """Mark how it ended; True if another is to follow."""
        assert self.exit_status is not None
        mark, outcome = self.step_starts[-1], self.exit_status
        mark.ended_ms, mark.exit_code, mark.signum = now_ms, outcome.exit_code, outcome.signum
        outcome.cpu_us += self.cpu_us
        outcome.peak_kib = max(outcome.peak_kib, self.peak_kib)
        if self.end_state is None and outcome.exit_code == 0:
            is_last = len(self.step_starts) == len(self.spec.steps)
            if self.stop_requested and not is_last:
                self.end_state = "stopped"
            return not is_last and not self.stop_requested
        outcome.reason = self._step_reason(outcome)
        return False

    def _step_reason(self, outcome: ExitStatus) -> str | None:
        number = len(self.step_starts)
        step = self.spec.steps[number - 1]
        where = f"step {number} of {len(self.spec.steps)}, {step.name}"
        match self.end_state:
            case None | "lost":
                told = f"killed by signal {outcome.signum}" if outcome.signum else f"exit {outcome.exit_code}"
                return f"{where}: {outcome.reason or told}"
            case "timed_out" if step.timeout_ms is not None and not self._whole_time_is_up():
                return f"{where}: over its {step.timeout_ms / 1000:g} s"
            case _:
                return outcome.reason

    def _whole_time_is_up(self) -> bool:
        whole_ms, step_ms = self.spec.timeout_ms, self.spec.steps[len(self.step_starts) - 1].timeout_ms
        if whole_ms is None or step_ms is None:
            return whole_ms is not None
        return self.started_ns + whole_ms * 1_000_000 <= self.step_started_ns + step_ms * 1_000_000


def result_row(
    key: AttemptKey, state: str, outcome: ExitStatus, started_ms: int | None, ended_ms: int
) -> str:
    job, index, attempt = key
    return (
        f'["{job}",{index},{attempt},"{state}",{_or_null(outcome.exit_code)},{_or_null(outcome.signum)}'
        f",{_or_null(started_ms)},{ended_ms},{outcome.ran_us},{outcome.cpu_us},{outcome.peak_kib}"
        f",{encode(outcome.reason) if outcome.reason else 'null'}"
        f"{',' + encode(outcome.cause) if outcome.cause else ''}]"
    )


def _or_null(number: int | None) -> int | str:
    return "null" if number is None else number
