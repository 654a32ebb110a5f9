"""Run leases: the last word the control plane has heard + an attempt's lease -> when it is killed."""

from collections.abc import Callable, Iterable

from rota.keeper.attempt import Running
from rota.keeper.looks import Looks
from rota.keeper.spawn import Short

SPARE_NS = 1_000_000_000  # so much before a lease ends its work is killed: that takes time, too


class Leases:
    """Counted from when a word was said, which is before it was heard. Used under the lock of the work."""

    def __init__(self) -> None:
        self._said_ns = 0  # the last word that was heard; of the machine's boot-time clock

    def renew(self, said_ns: int, running: Iterable[Running], now_ns: int) -> None:
        """A lease that has run out is never renewed: somebody else may hold it since."""
        self._said_ns = max(self._said_ns, said_ns)
        for attempt in running:
            if not attempt.has_lost_lease(now_ns):
                self.begin(attempt)

    def begin(self, attempt: Running) -> None:
        if attempt.spec.lease_ms is not None:
            attempt.kill_by_ns = self._said_ns + attempt.spec.lease_ms * 1_000_000 - SPARE_NS

    def watch(self, attempt: Running, looks: Looks) -> None:
        """It was renewed since its end was expected: look again."""
        if attempt.kill_by_ns is not None:
            looks.at(attempt, attempt.kill_by_ns)

    def explain(self, attempt: Running) -> None:
        if attempt.ending == "lost" and attempt.kill_by_ns is not None and attempt.outcome:
            lease = f"{(attempt.spec.lease_ms or 0) / 1000:g} s"
            attempt.outcome.reason = f"its run lease of {lease} ran out: the control plane did not answer"


def check(attempt: Running, now_ns: Callable[[], int]) -> None:
    """Right before it is started."""
    if attempt.kill_by_ns is not None and attempt.has_lost_lease(now_ns()):
        raise Short("its run lease ran out before it could start")
