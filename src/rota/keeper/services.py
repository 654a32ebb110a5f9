"""Attempts of services: what becomes of one whose process ended, and of one that its checks find ill."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rota.keeper.attempt import FIRST_POLL_NS, ExitStatus, Kernel, RunningAttempt
from rota.keeper.ledger import AttemptLedger
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.service.spec import KeeperCheck
from rota.keeper.service.state import DOWN, MS, UNHEALTHY, ServiceState

SIGKILL = 9
CONTAINER_POLL_NS = 100 * MS  # until a container that is being made is looked for again


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One check of one attempt, which is over or not told any more once the attempt was started again."""

    attempt: RunningAttempt
    check: KeeperCheck
    restart: int
    started_ns: int


class ServiceSupervisor:
    """Used under the lock of the work."""

    def __init__(
        self, running: Mapping[AttemptKey, RunningAttempt], ledger: AttemptLedger, kernel: Kernel
    ) -> None:
        self.set_timer: Callable[[RunningAttempt, int], None]
        self.queue_start: Callable[[RunningAttempt], None]
        self.wake_checker: Callable[[], None] = lambda: None  # whoever checks
        self._running = running
        self._ledger = ledger
        self._kernel = kernel
        self._due_checks: list[tuple[int, AttemptKey, int]] = []  # when, who, after how many restarts
        self._check_runs: dict[int, CheckRun] = {}  # by the pid of a check's command
        self._checks_spawning = 0
        self._early_exits: dict[int, int] = {}  # ended before their spawner could write them down

    # Its process starts and ends.

    def on_process_started(self, attempt: RunningAttempt) -> None:
        """A process of it was started."""
        if attempt.service is None:
            return
        now = self._kernel.now_ns()
        attempt.service.on_start(attempt.spec.check, now)
        if attempt.spec.check:
            self._schedule_check(attempt, now)
        self._ledger.record_service(attempt)

    def on_process_ended(self, attempt: RunningAttempt) -> bool:
        """Its process has ended; True if it is started again here, later."""
        life, outcome, rule = attempt.service, attempt.exit_status, attempt.spec.restart
        if life is None or outcome is None or rule is None:
            return False
        life.exit_code, life.signum, life.ended_ms = outcome.exit_code, outcome.signum, self._kernel.now_ms()
        if attempt.end_state == UNHEALTHY:
            attempt.end_state, outcome.reason = "stopped" if attempt.stop_requested else None, life.why
        life.health, life.why = DOWN, outcome.reason
        outcome.cpu_us += attempt.cpu_us
        outcome.peak_kib = max(outcome.peak_kib, attempt.peak_kib)
        if attempt.end_state is not None or attempt.stop_requested:
            self._ledger.record_service(attempt)
            return False
        now = self._kernel.now_ns()
        if not life.back_off(rule, now):
            outcome.reason = _restarts_exhausted_reason(life, outcome, rule.within_ms)
            self._ledger.record_service(attempt)
            return False
        attempt.reset_process()
        self._ledger.emit_service(attempt)
        self.set_timer(attempt, now)
        return True

    def advance_backoff(
        self, attempt: RunningAttempt, tree: Sequence[tuple[int, int]], now: int
    ) -> tuple[int, list[int]]:
        """It rests: whoever of it is left has to go before it is started again, which may be now."""
        assert attempt.service is not None
        if tree or (attempt.cgroup and not attempt.cgroup.remove()):
            self.set_timer(attempt, now + FIRST_POLL_NS)
            return SIGKILL, [pid for pid, _ in tree]
        attempt.cgroup = None  # the next has one of its own, which knows of no earlier excess
        if now < attempt.service.backoff_until_ns:
            self.set_timer(attempt, attempt.service.backoff_until_ns)
        else:
            attempt.service.backoff_until_ns = 0
            self.queue_start(attempt)
        return 0, []

    def cancel_restart(self, attempt: RunningAttempt) -> None:
        """It is not wanted any more, and nothing of it runs."""
        life = attempt.service
        assert life is not None
        ran_us = (self._kernel.now_ns() - attempt.started_ns) // 1000
        attempt.exit_status = ExitStatus(life.exit_code, life.signum, ran_us)
        attempt.end_state, life.backoff_until_ns = "stopped", 0

    # Its checks.

    def next_check_in_ns(self) -> int | None:
        return self._due_checks[0][0] - self._kernel.now_ns() if self._due_checks else None

    def pop_due_checks(self) -> list[CheckRun]:
        """The checks to be made now."""
        now, rounds = self._kernel.now_ns(), []
        while self._due_checks and self._due_checks[0][0] <= now:
            _, key, restart = heapq.heappop(self._due_checks)
            attempt = self._running.get(key)
            if attempt is None or attempt.spec.check is None or not _is_current(attempt, restart):
                continue
            if (
                attempt.container and not attempt.container.start_reported
            ):  # there is nothing to be checked yet
                self._schedule_check(attempt, now + CONTAINER_POLL_NS)
            else:
                rounds.append(CheckRun(attempt, attempt.spec.check, restart, now))
        return rounds

    def on_check_result(self, check_run: CheckRun, why: str | None) -> None:
        """A check has ended; None: it found nothing wrong."""
        attempt, now = check_run.attempt, self._kernel.now_ns()
        if self._running.get(attempt.key) is not attempt or not _is_current(attempt, check_run.restart):
            return
        life = attempt.service
        assert life is not None
        assert life.health_counter is not None
        health = life.health_counter.record(life.health, now, succeeded=why is None)
        self._schedule_check(
            attempt, max(now, check_run.started_ns + life.health_counter.next_interval_ns(health, now))
        )
        if health == life.health:
            return
        life.health, life.why = health, None if why is None else f"unhealthy: {why}"
        self._ledger.emit_service(attempt)
        if health == UNHEALTHY:
            attempt.start_termination(UNHEALTHY, now)
            self.set_timer(attempt, now)

    def on_check_spawning(self) -> None:
        """The command of a check is about to be started: its end may be seen before its start is told."""
        self._checks_spawning += 1

    def on_check_spawned(self, pid: int, check_run: CheckRun) -> None:
        """0: it could not be."""
        self._checks_spawning -= 1
        if pid in self._early_exits:
            self.on_check_result(check_run, _describe_status(self._early_exits.pop(pid)))
        elif pid:
            self._check_runs[pid] = check_run
        if not self._checks_spawning:
            self._early_exits.clear()

    def on_stray_exit(self, pid: int) -> None:
        """A child that is no attempt's leader has ended: a check, or an orphan."""
        a_round = self._check_runs.pop(pid, None)
        if a_round:
            self._kernel.signal_group(pid, SIGKILL)  # the zombie still holds the pid
        status = self._kernel.reap_stray(pid)
        if a_round:
            self.on_check_result(a_round, _describe_status(status))
        elif self._checks_spawning and status is not None:
            self._early_exits[pid] = status

    def kill_overdue_checks(self) -> list[CheckRun]:
        """Commands of checks that hang: they are killed, which ends them."""
        now = self._kernel.now_ns()
        late = [one for one in self._check_runs.items() if self._is_overdue(one[1], now)]
        for pid, a_round in late:
            del self._check_runs[pid]
            self._kernel.signal_group(pid, SIGKILL)
            self.on_check_result(a_round, f"took longer than {a_round.check.timeout_ms / 1000:g} s")
        return [a_round for _, a_round in late]

    def next_overdue_in_ns(self) -> int | None:
        now = self._kernel.now_ns()
        ends = (one.started_ns + one.check.timeout_ms * MS - now for one in self._check_runs.values())
        return min(ends, default=None)

    def check_pids(self) -> frozenset[int]:
        """Of checks that are being made."""
        return frozenset(self._check_runs)

    def _is_overdue(self, check_run: CheckRun, now: int) -> bool:
        return now >= check_run.started_ns + check_run.check.timeout_ms * MS

    def _schedule_check(self, attempt: RunningAttempt, when_ns: int) -> None:
        assert attempt.service is not None
        heapq.heappush(self._due_checks, (when_ns, attempt.key, attempt.service.restarts))
        self.wake_checker()


def _is_current(attempt: RunningAttempt, restart: int) -> bool:
    """It runs, and was not started again since."""
    life, is_over = attempt.service, attempt.end_state is not None or attempt.exit_status is not None
    return life is not None and life.restarts == restart and not is_over and attempt.pid != 0


def _describe_status(status: int | None) -> str | None:
    """What a command that ended with this, negative: by a signal, has to say."""
    if not status:
        return None
    return f"check exited with {status}" if status > 0 else f"check was killed by signal {-status}"


def _restarts_exhausted_reason(life: ServiceState, outcome: ExitStatus, within_ms: int) -> str:
    last = outcome.reason or (
        f"killed by signal {outcome.signum}" if outcome.signum else f"exit {outcome.exit_code}"
    )
    if not life.recent_ends_ns:
        return last
    times = len(life.recent_ends_ns) + 1
    return f"{last}; it ended {times} times within {within_ms / 1000:g} s"
