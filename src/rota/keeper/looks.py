"""When an attempt is looked at next, and which signal it gets then."""

import heapq
import signal
from collections.abc import Callable, Mapping

from rota.keeper.attempt import FIRST_LOOK_NS, Running
from rota.keeper.rules import Key

LAST_LOOK_NS = 1_000_000_000


class Looks:
    """Deadlines and the steps of an end, the next one first."""

    def __init__(self, running: Mapping[Key, Running], now_ns: Callable[[], int]) -> None:
        self._running = running
        self._now_ns = now_ns
        self._due: list[tuple[int, Key]] = []

    def at(self, attempt: Running, when_ns: int) -> None:
        attempt.look_at_ns = when_ns
        if len(self._due) > 2 * len(self._running) + 1000:  # deadlines of attempts that ended long before
            self._due = [(other.look_at_ns, key) for key, other in self._running.items() if other.look_at_ns]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (when_ns, attempt.key))

    def due_in_ns(self) -> int | None:
        """How long until an attempt must be looked at; None: none ever."""
        return self._due[0][0] - self._now_ns() if self._due else None

    def take(self) -> dict[Key, bool]:
        """The attempts to look at now, each with whether its leader is gone."""
        due = {}
        while self._due and self._due[0][0] <= self._now_ns():
            when, key = heapq.heappop(self._due)
            attempt = self._running.get(key)
            if attempt and attempt.look_at_ns == when:
                due[key] = attempt.outcome is not None
        return due

    def strike(self, attempt: Running, now: int) -> int:
        """What its leader's group is sent before anybody looks for the rest; 0: nothing."""
        if attempt.ending is None or attempt.outcome is not None or not attempt.pid:
            return 0
        attempt.struck = 0
        if not attempt.asked:
            stop = attempt.spec.stop_signal
            attempt.struck = 0 if attempt.spares_leader(stop) else stop
        elif now >= attempt.kill_at_ns:
            attempt.struck = signal.SIGKILL
        return attempt.struck

    def next_signal(self, attempt: Running, now: int) -> int:
        """Its stop signal, nothing during the grace, then SIGKILL again and again; and when to look next."""
        if not attempt.asked:
            attempt.asked = True
            self.at(attempt, attempt.kill_at_ns if attempt.outcome is None else now + FIRST_LOOK_NS)
            return attempt.spec.stop_signal
        self.at(attempt, now + attempt.pause_ns)
        attempt.pause_ns = min(2 * attempt.pause_ns, LAST_LOOK_NS)
        if now >= attempt.kill_at_ns:
            return signal.SIGKILL
        self.at(attempt, min(attempt.look_at_ns, attempt.kill_at_ns))
        return 0
