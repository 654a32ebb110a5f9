"""Events that the agent has not been sent yet."""

from collections.abc import Callable

from rota.keeper import wire
from rota.keeper.rules import Key

PENDING = 1_000_000  # events; an agent that lets more pile up is told everything again at its next hello


class Outbox:
    """Keeps events only while somebody has said hello: whoever does is told the whole state first."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._is_open = False
        self._awake = False
        self._started: dict[Key, int] = {}
        self._ended: dict[Key, str] = {}
        self._refused: list[str] = []

    def open(self) -> None:
        self.close()
        self._is_open = True

    def close(self) -> None:
        self._is_open = self._awake = False
        self._started.clear()
        self._ended.clear()
        self._refused.clear()

    def started(self, key: Key, started_ms: int) -> None:
        if self._is_open:
            self._started[key] = started_ms
            self._call()

    def ended(self, key: Key, row: str) -> None:
        if self._is_open:
            self._started.pop(key, None)  # the row tells when it started, too
            self._ended[key] = row
            self._call()

    def refused(self, key: Key, reason: str) -> None:
        if self._is_open:
            self._refused.append(wire.encode([*key, reason]))
            self._call()

    def has_mail(self) -> bool:
        return self._awake

    def is_overfull(self) -> bool:
        return len(self._started) + len(self._ended) + len(self._refused) > PENDING

    def take(self) -> bytes:
        """One message with everything that is pending, or nothing."""
        self._awake = False
        if not (self._started or self._ended or self._refused):
            return b""
        started = [f'["{job}",{index},{attempt},{ms}]' for (job, index, attempt), ms in self._started.items()]
        message = wire.events(started, self._ended.values(), self._refused)
        self._started.clear()
        self._ended.clear()
        self._refused.clear()
        return message

    def _call(self) -> None:
        if not self._awake:
            self._awake = True
            self._wake()
