"""Run leases: the last message that the server has received + an attempt's lease -> when it is killed."""

from collections.abc import Callable, Iterable

from rota.keeper.attempt import RunningAttempt
from rota.keeper.spawn import NodeResourceExhausted
from rota.keeper.timers import AttemptTimers

KILL_MARGIN_NS = 1_000_000_000  # the kill starts this long before the lease ends, because it takes time


class Leases:
    """Expiry of run leases. Call with `Supervisor.lock` held.

    Invariant: the node's lease ends before the server's. The node counts from when a message was sent, the
    server from when it was received.
    """

    def __init__(self) -> None:
        self._renewed_ns = 0  # boot-time clock: sending time of the last message that the server received

    def renew(self, sent_ns: int, running: Iterable[RunningAttempt], now_ns: int) -> None:
        """Extend leases. An expired one is never renewed: another node may hold it by now."""
        # Never back: an echo of an older message must not shorten a lease.
        self._renewed_ns = max(self._renewed_ns, sent_ns)
        for attempt in running:
            if not attempt.has_lost_lease(now_ns):
                self.set_expiry(attempt)

    def set_expiry(self, attempt: RunningAttempt) -> None:
        if attempt.spec.lease_ms is not None:
            attempt.lease_kill_at_ns = self._renewed_ns + attempt.spec.lease_ms * 1_000_000 - KILL_MARGIN_NS

    def schedule_expiry(self, attempt: RunningAttempt, timers: AttemptTimers) -> None:
        """Set the timer to the new expiry: the lease was renewed since the last one was set."""
        if attempt.lease_kill_at_ns is not None:
            timers.schedule(attempt, attempt.lease_kill_at_ns)

    def explain_expiry(self, attempt: RunningAttempt) -> None:
        if attempt.end_state == "lost" and attempt.lease_kill_at_ns is not None and attempt.exit_status:
            lease = f"{(attempt.spec.lease_ms or 0) / 1000:g} s"
            attempt.exit_status.reason = f"its run lease of {lease} ran out: the control plane did not answer"


def check_lease(attempt: RunningAttempt, now_ns: Callable[[], int]) -> None:
    """Check right before the spawn that the lease has not expired; otherwise NodeResourceExhausted."""
    if attempt.lease_kill_at_ns is not None and attempt.has_lost_lease(now_ns()):
        raise NodeResourceExhausted("its run lease ran out before it could start")
