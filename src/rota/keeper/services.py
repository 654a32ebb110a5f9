"""Supervision of services: restarts with backoff after an exit, and health checks."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rota.keeper.attempt import FIRST_POLL_NS, ExitStatus, Kernel, RunningAttempt
from rota.keeper.ledger import AttemptLedger
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.service.spec import KeeperCheck
from rota.keeper.service.state import DOWN, MS, UNHEALTHY, ServiceState

SIGKILL = 9
CONTAINER_POLL_NS = 100 * MS  # between two checks whether a container has been created


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One health check of one process of an attempt; its result is ignored after a restart."""

    attempt: RunningAttempt
    check: KeeperCheck
    restart: int
    started_ns: int


class ServiceSupervisor:
    """Restarts and health checks of all services. Call with `Supervisor.lock` held.

    Health checks are run by the checker thread; a check's command is reaped by the starters like any child.
    """

    def __init__(
        self, running: Mapping[AttemptKey, RunningAttempt], ledger: AttemptLedger, kernel: Kernel
    ) -> None:
        self.set_timer: Callable[[RunningAttempt, int], None]
        self.queue_start: Callable[[RunningAttempt], None]
        self.wake_checker: Callable[[], None] = lambda: None  # set by the checker thread
        self._running = running
        self._ledger = ledger
        self._kernel = kernel
        self._due_checks: list[tuple[int, AttemptKey, int]] = []  # heap: when, attempt, its restarts by then
        self._check_runs: dict[int, CheckRun] = {}  # by the pid of a check's command
        self._checks_spawning = 0
        # Race: a check may exit before the checker has recorded its pid. Its status waits here.
        self._early_exits: dict[int, int] = {}

    # Processes of services.

    def on_process_started(self, attempt: RunningAttempt) -> None:
        """Reset the service's state for its new process, and schedule its first check."""
        if attempt.service is None:
            return
        now = self._kernel.now_ns()
        attempt.service.on_start(attempt.spec.check, now)
        if attempt.spec.check:
            self._schedule_check(attempt, now)
        self._ledger.record_service(attempt)

    def on_process_ended(self, attempt: RunningAttempt) -> bool:
        """Handle the end of a service's process; return True if it is restarted here after a backoff."""
        service, outcome, rule = attempt.service, attempt.exit_status, attempt.spec.restart
        if service is None or outcome is None or rule is None:
            return False
        service.exit_code, service.signum = outcome.exit_code, outcome.signum
        service.ended_ms = self._kernel.now_ms()
        # "unhealthy" is only the reason of the kill: the
        # service is restarted, unless a stop came meanwhile.
        if attempt.end_state == UNHEALTHY:
            attempt.end_state, outcome.reason = "stopped" if attempt.stop_requested else None, service.why
        service.health, service.why = DOWN, outcome.reason
        outcome.cpu_us += attempt.cpu_us
        outcome.peak_kib = max(outcome.peak_kib, attempt.peak_kib)
        if attempt.end_state is not None or attempt.stop_requested:
            self._ledger.record_service(attempt)
            return False
        now = self._kernel.now_ns()
        if not service.back_off(rule, now):
            outcome.reason = _restarts_exhausted_reason(service, outcome, rule.within_ms)
            self._ledger.record_service(attempt)
            return False
        # The timer is due now: the sweeper first kills what is left of the process, then waits the backoff.
        attempt.reset_process()
        self._ledger.emit_service(attempt)
        self.set_timer(attempt, now)
        return True

    def advance_backoff(
        self, attempt: RunningAttempt, tree: Sequence[tuple[int, int]], now: int
    ) -> tuple[int, list[int]]:
        """Advance a service in its backoff: kill what is left of the last process, then restart when due.

        Returns the signal to send (0: none) and the pids to send it to.
        """
        assert attempt.service is not None
        # The previous process must be gone first: two processes
        # of one attempt would write to the same output.
        if tree or (attempt.cgroup and not attempt.cgroup.remove()):
            self.set_timer(attempt, now + FIRST_POLL_NS)
            return SIGKILL, [pid for pid, _ in tree]
        attempt.cgroup = None  # the next process gets a new one, without the OOM count of this one
        if now < attempt.service.backoff_until_ns:
            self.set_timer(attempt, attempt.service.backoff_until_ns)
        else:
            attempt.service.backoff_until_ns = 0
            self.queue_start(attempt)
        return 0, []

    def cancel_restart(self, attempt: RunningAttempt) -> None:
        """End a service that is stopped during its backoff, when nothing of it runs."""
        service = attempt.service
        assert service is not None
        ran_us = (self._kernel.now_ns() - attempt.started_ns) // 1000
        attempt.exit_status = ExitStatus(service.exit_code, service.signum, ran_us)
        attempt.end_state, service.backoff_until_ns = "stopped", 0

    # Health checks.

    def next_check_in_ns(self) -> int | None:
        return self._due_checks[0][0] - self._kernel.now_ns() if self._due_checks else None

    def pop_due_checks(self) -> list[CheckRun]:
        """Pop the health checks that are due."""
        now, runs = self._kernel.now_ns(), []
        while self._due_checks and self._due_checks[0][0] <= now:
            _, key, restart = heapq.heappop(self._due_checks)
            attempt = self._running.get(key)
            # Race: the process was restarted or is ending; the next one has checks of its own.
            if attempt is None or attempt.spec.check is None or not _is_current(attempt, restart):
                continue
            if attempt.container and not attempt.container.start_reported:  # nothing to be checked yet
                self._schedule_check(attempt, now + CONTAINER_POLL_NS)
            else:
                runs.append(CheckRun(attempt, attempt.spec.check, restart, now))
        return runs

    def on_check_result(self, check_run: CheckRun, why: str | None) -> None:
        """Apply the result of a health check; `why` None: it succeeded. An unhealthy service is stopped."""
        attempt, now = check_run.attempt, self._kernel.now_ns()
        # Race: the attempt or its process may have ended while the check ran.
        if self._running.get(attempt.key) is not attempt or not _is_current(attempt, check_run.restart):
            return
        service = attempt.service
        assert service is not None
        assert service.health_counter is not None
        health = service.health_counter.record(service.health, now, succeeded=why is None)
        interval_ns = service.health_counter.next_interval_ns(health, now)
        self._schedule_check(attempt, max(now, check_run.started_ns + interval_ns))
        if health == service.health:
            return
        service.health, service.why = health, None if why is None else f"unhealthy: {why}"
        self._ledger.emit_service(attempt)
        if health == UNHEALTHY:
            attempt.start_termination(UNHEALTHY, now)
            self.set_timer(attempt, now)

    def on_check_spawning(self) -> None:
        """Note that the command of a check is about to be spawned, before its pid is known."""
        self._checks_spawning += 1

    def on_check_spawned(self, pid: int, check_run: CheckRun) -> None:
        """Record the pid of a check's command; 0: it could not be spawned."""
        self._checks_spawning -= 1
        if pid in self._early_exits:
            self.on_check_result(check_run, _describe_status(self._early_exits.pop(pid)))
        elif pid:
            self._check_runs[pid] = check_run
        # No spawn is pending, so no exit in here can belong to a check.
        if not self._checks_spawning:
            self._early_exits.clear()

    def on_stray_exit(self, pid: int) -> None:
        """Reap a child that is no attempt's leader: a health check, or an adopted orphan."""
        check_run = self._check_runs.pop(pid, None)
        if check_run:
            # The zombie still holds the pid, so this cannot hit another process group.
            self._kernel.signal_group(pid, SIGKILL)
        status = self._kernel.reap_stray(pid)
        if check_run:
            self.on_check_result(check_run, _describe_status(status))
        elif self._checks_spawning and status is not None:
            self._early_exits[pid] = status

    def kill_overdue_checks(self) -> list[CheckRun]:
        """Kill the commands of checks that exceeded their timeout, as failures; return those checks."""
        now = self._kernel.now_ns()
        overdue = [(pid, run) for pid, run in self._check_runs.items() if self._is_overdue(run, now)]
        for pid, run in overdue:
            del self._check_runs[pid]
            self._kernel.signal_group(pid, SIGKILL)
            self.on_check_result(run, f"took longer than {run.check.timeout_ms / 1000:g} s")
        return [run for _, run in overdue]

    def next_overdue_in_ns(self) -> int | None:
        now = self._kernel.now_ns()
        ends = (run.started_ns + run.check.timeout_ms * MS - now for run in self._check_runs.values())
        return min(ends, default=None)

    def check_pids(self) -> frozenset[int]:
        """The pids of check commands that are running."""
        return frozenset(self._check_runs)

    def _is_overdue(self, check_run: CheckRun, now: int) -> bool:
        return now >= check_run.started_ns + check_run.check.timeout_ms * MS

    def _schedule_check(self, attempt: RunningAttempt, when_ns: int) -> None:
        assert attempt.service is not None
        heapq.heappush(self._due_checks, (when_ns, attempt.key, attempt.service.restarts))
        self.wake_checker()


def _is_current(attempt: RunningAttempt, restart: int) -> bool:
    """Whether the process that a check was scheduled for still runs."""
    service = attempt.service
    is_ending = attempt.end_state is not None or attempt.exit_status is not None
    return service is not None and service.restarts == restart and not is_ending and attempt.pid != 0


def _describe_status(status: int | None) -> str | None:
    """Why a check command failed, by its exit status (negative: a signal); None: it succeeded."""
    if not status:
        return None
    return f"check exited with {status}" if status > 0 else f"check was killed by signal {-status}"


def _restarts_exhausted_reason(service: ServiceState, outcome: ExitStatus, within_ms: int) -> str:
    last = outcome.reason or (
        f"killed by signal {outcome.signum}" if outcome.signum else f"exit {outcome.exit_code}"
    )
    if not service.recent_ends_ns:
        return last
    times = len(service.recent_ends_ns) + 1
    return f"{last}; it ended {times} times within {within_ms / 1000:g} s"
