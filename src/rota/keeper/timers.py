"""Timers of attempts: when the sweeper handles one next, and which signal it gets then."""

import heapq
import signal
from collections.abc import Callable, Mapping

from rota.keeper.attempt import FIRST_POLL_NS, RunningAttempt
from rota.keeper.resources.reservations import AttemptKey

LONGEST_POLL_NS = 1_000_000_000


class AttemptTimers:
    """A heap of deadlines, stop signals and kills. Call with `Supervisor.lock` held.

    An attempt has one valid timer, `timer_at_ns`; older entries of it in the heap are ignored when popped.
    """

    def __init__(self, running: Mapping[AttemptKey, RunningAttempt], now_ns: Callable[[], int]) -> None:
        self._running = running
        self._now_ns = now_ns
        self._due: list[tuple[int, AttemptKey]] = []

    def schedule(self, attempt: RunningAttempt, when_ns: int) -> None:
        attempt.timer_at_ns = when_ns
        # Entries of ended attempts stay in the heap until they are due. Rebuilt if they are the majority,
        # so that the heap is bounded by the live attempts.
        if len(self._due) > 2 * len(self._running) + 1000:
            self._due = [
                (other.timer_at_ns, key) for key, other in self._running.items() if other.timer_at_ns
            ]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (when_ns, attempt.key))

    def schedule_deadline(self, attempt: RunningAttempt) -> bool:
        """Schedule the deadline of a started attempt; return whether it has one."""
        deadline_ns = attempt.deadline_ns()
        if deadline_ns is None or attempt.end_state is not None:
            return False
        self.schedule(attempt, deadline_ns)
        return True

    def due_in_ns(self) -> int | None:
        """Time until the next timer; None: there is none."""
        # May be a void entry: then the sweeper wakes early and finds nothing due.
        return self._due[0][0] - self._now_ns() if self._due else None

    def pop_due(self) -> dict[AttemptKey, bool]:
        """Pop the attempts that are due, each with whether its leader has exited."""
        due = {}
        while self._due and self._due[0][0] <= self._now_ns():
            when, key = heapq.heappop(self._due)
            attempt = self._running.get(key)
            # An older entry of an attempt whose timer was set again is void.
            if attempt and attempt.timer_at_ns == when:
                due[key] = attempt.exit_status is not None
        return due

    def early_signal(self, attempt: RunningAttempt, now: int) -> int:
        """The signal for the leader's process group, sent before the tree is searched; 0: none."""
        if attempt.end_state is None or attempt.exit_status is not None or not attempt.pid:
            return 0
        # Cleared first: `next_signal` must not skip the leader for a signal of an earlier round.
        attempt.early_signal = 0
        if not attempt.stop_signalled:
            stop = attempt.spec.stop_signal
            attempt.early_signal = 0 if attempt.spares_leader(stop) else stop
        elif attempt.must_be_killed(now):
            attempt.early_signal = signal.SIGKILL
        return attempt.early_signal

    def next_signal(self, attempt: RunningAttempt, now: int) -> int:
        """The signal due now: the stop signal, 0 during the grace period, then SIGKILL repeatedly.

        Also schedules the next timer, with a backoff that grows while the tree does not end.
        """
        if not attempt.stop_signalled:
            attempt.stop_signalled = True
            self.schedule(
                attempt, attempt.sigkill_at_ns if attempt.exit_status is None else now + FIRST_POLL_NS
            )
            return attempt.spec.stop_signal
        # Scheduled before the kill: a tree that does not die is signalled again, with growing intervals.
        self.schedule(attempt, now + attempt.backoff_ns)
        attempt.backoff_ns = min(2 * attempt.backoff_ns, LONGEST_POLL_NS)
        if attempt.must_be_killed(now):
            if attempt.pid_namespace:
                attempt.pid_namespace.kill()
            return signal.SIGKILL
        # The end of the grace period is never slept through.
        self.schedule(attempt, min(attempt.timer_at_ns, attempt.sigkill_at_ns))
        return 0
