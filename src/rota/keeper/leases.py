"""Run leases: the last word the control plane has heard + an attempt's lease -> when it is killed."""

from collections.abc import Callable, Iterable

from rota.keeper.attempt import RunningAttempt
from rota.keeper.spawn import NodeResourceExhausted
from rota.keeper.timers import AttemptTimers

KILL_MARGIN_NS = 1_000_000_000  # so much before a lease ends its work is killed: that takes time, too


class Leases:
    """Counted from when a word was said, which is before it was heard. Used under the lock of the work."""

    def __init__(self) -> None:
        self._renewed_ns = 0  # the last word that was heard; of the machine's boot-time clock

    def renew(self, sent_ns: int, running: Iterable[RunningAttempt], now_ns: int) -> None:
        """A lease that has run out is never renewed: somebody else may hold it since."""
        self._renewed_ns = max(self._renewed_ns, sent_ns)
        for attempt in running:
            if not attempt.has_lost_lease(now_ns):
                self.set_expiry(attempt)

    def set_expiry(self, attempt: RunningAttempt) -> None:
        if attempt.spec.lease_ms is not None:
            attempt.lease_kill_at_ns = self._renewed_ns + attempt.spec.lease_ms * 1_000_000 - KILL_MARGIN_NS

    def schedule_expiry(self, attempt: RunningAttempt, timers: AttemptTimers) -> None:
        """It was renewed since its end was expected: look again."""
        if attempt.lease_kill_at_ns is not None:
            timers.schedule(attempt, attempt.lease_kill_at_ns)

    def explain_expiry(self, attempt: RunningAttempt) -> None:
        if attempt.end_state == "lost" and attempt.lease_kill_at_ns is not None and attempt.exit_status:
            lease = f"{(attempt.spec.lease_ms or 0) / 1000:g} s"
            attempt.exit_status.reason = f"its run lease of {lease} ran out: the control plane did not answer"


def check_lease(attempt: RunningAttempt, now_ns: Callable[[], int]) -> None:
    """Right before it is started."""
    if attempt.lease_kill_at_ns is not None and attempt.has_lost_lease(now_ns()):
        raise NodeResourceExhausted("its run lease ran out before it could start")
