"""A running attempt: its state between start and result, the kernel calls it needs, and its result row."""

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
EXHAUSTED_MAX_NS = 600 * 10**9  # a step that could not be spawned for this long is given up
RETRY_MAX_NS = 10**9
SUPERSEDED_GRACE_NS = 5 * 10**9  # of a replaced attempt: it is dead 10 s after its node reconnects
NODE_LEFT = "node_left"  # a cause that the server knows
PEAK_ERROR_KIB = 1024  # the kernel counts a process's pages in batches per core


@dataclass(slots=True)
class ExitStatus:
    """How an attempt's first process ended, and what it used."""

    exit_code: int | None = None
    signum: int | None = None
    ran_us: int = 0
    cpu_us: int = 0
    peak_kib: int = 0  # 0: unknown, at most the keeper's own
    reason: str | None = None
    cause: str | None = None  # a code for failures that the exit code does not tell, as "oom"


@dataclass(frozen=True, slots=True)
class LimitViolation:
    """Which limit an attempt exceeded, as text, and the memory of its whole process tree."""

    reason: str
    peak_kib: int
    cause: str | None = None


class Kernel:
    """Clocks, signals and process status; replaced by a fake in the simulator."""

    def __init__(self) -> None:
        self._own_peak_kib = 0

    def now_ns(self) -> int:
        """The boot-time clock, suspend included: all deadlines are on it."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def now_ms(self) -> int:
        """The wall clock, for times that are shown."""
        return time.time_ns() // 1_000_000

    def signal_group(self, group: int, signum: int) -> None:
        try:
            os.killpg(group, signum)
        except (ProcessLookupError, PermissionError):  # no process is left in the group
            return

    def has_members(self, group: int) -> bool:
        return trees.has_members(group)

    def has_ended(self, pid: int) -> bool:
        """Whether a child is a zombie; a pid of 0 is not spawned yet."""
        # WNOWAIT: this only looks, and the starter threads reap.
        return pid != 0 and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap_stray(self, pid: int) -> int | None:
        """Reap an adopted orphan or a health check; None: it was reaped already, its status is unknown."""
        try:
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status) if reaped else None

    def reap(self, pid: int, started_ns: int) -> ExitStatus:
        """Reap a child that is a zombie."""
        reaped = fast_syscalls.reap(pid)
        code = os.waitstatus_to_exitcode(reaped.status)
        return ExitStatus(
            exit_code=code if code >= 0 else None,
            signum=-code if code < 0 else None,
            ran_us=(self.now_ns() - started_ns) // 1000,
            cpu_us=reaped.cpu_us,
            peak_kib=self._peak_kib(reaped.peak_kib),
        )

    def _peak_kib(self, peak_kib: int) -> int:
        """A peak below the keeper's own is unknown (0): until its exec a child shares the keeper's memory."""
        if peak_kib > self._own_peak_kib:
            self._own_peak_kib = _own_peak_kib() + PEAK_ERROR_KIB
        return peak_kib if peak_kib > self._own_peak_kib else 0


def _own_peak_kib() -> int:
    """The keeper's peak memory. Not by getrusage, which includes the process before its exec."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


@dataclass(slots=True)
class RunningAttempt:
    """An attempt from its admission to its end; several processes in turn, if it has steps or restarts.

    Fields change with `Supervisor.lock` held, except `container`, `cgroup` and `pid_namespace`: the thread
    that spawns the attempt sets them before it records the pid.
    """

    key: AttemptKey
    spec: KeeperJobSpec
    gpus: tuple[str, ...]
    started_ms: int
    started_ns: int
    segment: Segment
    pid: int = 0  # until it is spawned
    end_state: str | None = None  # "stopped", "timed_out" or "lost", once it is to be ended
    stop_signalled: bool = False  # the stop signal was sent
    early_signal: int = 0  # the last signal that the leader's group was sent before the rest of the tree
    kill_at_ns: int = 0
    timer_at_ns: int = 0  # the next timer; 0: none
    backoff_ns: int = FIRST_POLL_NS
    exit_status: ExitStatus | None = None  # the leader was reaped; others of its tree may still run
    container: ContainerHandle | None = None  # the container it runs in
    pid_namespace: PidNamespace | None = None  # with a run lease it ends with the keeper
    lease_kill_at_ns: int | None = None  # KILL_MARGIN_NS before its run lease ends
    sandbox_report: SandboxReport | None = None
    cgroup: Cgroup | None = None
    violation: LimitViolation | None = None  # the limit that it exceeded and is killed for
    step_starts: list[StepStart] = field(default_factory=list)  # one for each step that has started
    step_started_ns: int = 0  # when the last step started
    stop_requested: bool = False  # no further step or restart is to start
    node_leaves: bool = False  # stopped because the node leaves, without an order of the server
    last_signal_n: int = 0  # number of the last signal order that was delivered
    awaits_retry: bool = False  # its next process could not be spawned and is tried again
    exhausted_since_ns: int = 0  # since when it cannot be spawned; 0: it can
    cpu_us: int = 0  # of earlier steps or processes
    peak_kib: int = 0
    service: ServiceState | None = None

    @property
    def is_backing_off(self) -> bool:
        """Whether it is a service between two processes."""
        return self.service is not None and self.service.backoff_until_ns > 0

    @property
    def has_run_before(self) -> bool:
        """Whether the process to be started is not its first one."""
        return len(self.step_starts) > 1 or (self.service is not None and self.service.restarts > 0)

    @property
    def has_next_step(self) -> bool:
        """Whether another step follows the current one."""
        return (
            bool(self.step_starts)
            and len(self.step_starts) < len(self.spec.steps)
            and not self.stop_requested
        )

    def kill_all(self) -> None:
        """Kill what is left of it at once, if it has a cgroup or a pid namespace."""
        if self.cgroup:
            self.cgroup.kill()
        if self.pid_namespace and not self._is_namespace_empty():
            self.pid_namespace.kill()

    def has_left_pid_namespace(self) -> bool:
        """Whether its pid namespace is empty, or kept for the next step; otherwise kills what is in it."""
        if self.pid_namespace is None or self._is_namespace_empty():
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

    def _is_namespace_empty(self) -> bool:
        """Whether its reusable pid namespace is empty, which only an empty cgroup proves."""
        is_reusable = self.pid_namespace is not None and not (
            self.pid_namespace.is_bound or self.pid_namespace.is_killed
        )
        return is_reusable and self.cgroup is not None and self.cgroup.is_empty()

    def spares_leader(self, signum: int) -> bool:
        """Whether the leader is not sent this signal: bubblewrap would end the sandbox without its grace.

        The command inside gets the signal itself.
        """
        return self.spec.sandbox is not None and signum == self.spec.stop_signal != signal.SIGKILL

    def spec_to_start(self) -> KeeperJobSpec:
        """The spec of the process to start: the job's, or that of the current step."""
        if self.service is not None:
            return replace(self.spec, restarts=self.service.restarts)
        return self.spec.for_step(len(self.step_starts)) if self.step_starts else self.spec

    def deadline_ns(self) -> int | None:
        """The earliest of its time limit, that of its step, and its lease; None: it has none."""
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
        """The end state of an attempt that is past its deadline."""
        return "lost" if self.has_lost_lease(now_ns) else "timed_out"

    def has_lost_lease(self, now_ns: int) -> bool:
        return self.lease_kill_at_ns is not None and now_ns >= self.lease_kill_at_ns

    @property
    def sigkill_at_ns(self) -> int:
        """When its grace period or its lease ends, whichever is earlier."""
        return (
            self.kill_at_ns if self.lease_kill_at_ns is None else min(self.kill_at_ns, self.lease_kill_at_ns)
        )

    def must_be_killed(self, now_ns: int) -> bool:
        return now_ns >= self.sigkill_at_ns

    def start_step(self, now_ms: int, now_ns: int, written: Extent) -> None:
        """Begin the next step; `written` is where the output of the previous one ends."""
        self.reset_process()
        start = self.segment.at
        out_bytes, err_bytes = written.out_bytes - start.out_bytes, written.err_bytes - start.err_bytes
        self.step_starts.append(StepStart(now_ms, max(0, out_bytes), max(0, err_bytes)))
        self.step_started_ns = now_ns

    def reset_process(self) -> None:
        """Clear the state of the previous process; its resource usage is carried over."""
        if self.exit_status:
            self.cpu_us, self.peak_kib = self.exit_status.cpu_us, self.exit_status.peak_kib
        # pid 0: signals and checks for the previous process must not reach the next one.
        self.pid, self.stop_signalled, self.early_signal, self.exit_status = 0, False, 0, None
        self.timer_at_ns, self.backoff_ns, self.exhausted_since_ns, self.violation = 0, FIRST_POLL_NS, 0, None

    def start_termination(self, end_state: str, now_ns: int) -> None:
        self.end_state = end_state
        self.kill_at_ns = now_ns + self.spec.grace_ms * 1_000_000
        # An expired lease has no grace period: another attempt may start elsewhere from then on.
        self.stop_signalled = self.has_lost_lease(now_ns)

    def stop(self, mode: KeeperStopMode, now_ns: int) -> None:
        """Begin to stop it; a later, harder mode shortens the grace period."""
        if self.end_state is None:
            self.start_termination("stopped", now_ns)
        if mode is KeeperStopMode.SUPERSEDED:
            # Never later than before: a second stop must not prolong the first one.
            self.kill_at_ns = min(self.kill_at_ns, now_ns + SUPERSEDED_GRACE_NS)
        if mode is KeeperStopMode.IMMEDIATE:
            self.stop_signalled, self.kill_at_ns = True, now_ns

    def explain_leave(self) -> None:
        """Give the cause of a stop that no order asked for: the server treats it as lost with its node."""
        if self.node_leaves and self.end_state == "stopped" and self.exit_status is not None:
            self.exit_status.cause = NODE_LEFT
            self.exit_status.reason = self.exit_status.reason or "its node leaves"

    def remaining_pids(self, tree: Sequence[tuple[int, int]]) -> list[int]:
        """The processes of its tree to wait for and signal, without those in a living leader's group."""
        if self.end_state is None:  # it ended by itself: processes that left its group are swept up later
            return [pid for pid, group in tree if group == self.pid]
        leader = self.exit_status is None
        return [pid for pid, group in tree if not (leader and group == self.pid)]

    def schedule_retry(self, now_ns: int) -> int | None:
        """When to try again to spawn a step that could not be; None: give up."""
        self.exhausted_since_ns = self.exhausted_since_ns or now_ns
        if self.end_state or now_ns - self.exhausted_since_ns >= EXHAUSTED_MAX_NS:
            return None
        self.awaits_retry, self.backoff_ns = True, min(2 * self.backoff_ns, RETRY_MAX_NS)
        self.pid, self.exit_status, self.container = 0, None, None
        # The wait does not count against the step's time limit, but against that of the attempt.
        self.step_started_ns = now_ns + self.backoff_ns
        return min(self.step_started_ns, self.deadline_ns() or self.step_started_ns)

    def end_retry_wait(self, now_ns: int) -> bool:
        """End the wait; return whether to spawn it now, which it is not if its end has come."""
        self.awaits_retry = False
        if self.end_state is None and self.is_past_deadline(now_ns):
            self.start_termination(self.deadline_end_state(now_ns), now_ns)
        return self.end_state is None

    def end_step(self, now_ms: int) -> bool:
        """Record how the step ended; return True if another one follows."""
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
                end = f"killed by signal {outcome.signum}" if outcome.signum else f"exit {outcome.exit_code}"
                return f"{where}: {outcome.reason or end}"
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
    """The end of an attempt as a JSON row, for the journal and for `events`."""
    job, index, attempt = key
    return (
        f'["{job}",{index},{attempt},"{state}",{_or_null(outcome.exit_code)},{_or_null(outcome.signum)}'
        f",{_or_null(started_ms)},{ended_ms},{outcome.ran_us},{outcome.cpu_us},{outcome.peak_kib}"
        f",{encode(outcome.reason) if outcome.reason else 'null'}"
        f"{',' + encode(outcome.cause) if outcome.cause else ''}]"
    )


def _or_null(number: int | None) -> int | str:
    return "null" if number is None else number
