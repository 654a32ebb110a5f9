"""Calls in vain, and how many nodes there are -> how long a node waits before it calls again."""

from typing import Protocol

FIRST_SECONDS = 0.1
LAST_SECONDS = 5.0
_LEASE_SHARE = 4  # of a lease, at most: what runs under it must be renewed in time


class Jitter(Protocol):
    """The part of `random.Random` that a backoff uses."""

    def uniform(self, a: float, b: float) -> float: ...


class Backoff:
    """The longer the more is in vain; never as if all nodes that lost a server were one."""

    def __init__(self, chance: Jitter) -> None:
        self._chance = chance
        self._next_seconds = FIRST_SECONDS
        self._most_seconds = LAST_SECONDS
        self.spread_seconds = 0.0  # as the server says

    def reset(self, heartbeat_seconds: float) -> None:
        """A server has welcomed us. When it is back it must hear from us well before our silence counts."""
        self._next_seconds = FIRST_SECONDS
        self._most_seconds = min(LAST_SECONDS, heartbeat_seconds)

    def after_loss(self, lease_seconds: float | None) -> float:
        """The server is gone, for others probably too: each calls the next one at a moment of its own."""
        return self._chance.uniform(0, max(FIRST_SECONDS, self._spread(lease_seconds)))

    def after_round(self, lease_seconds: float | None) -> float:
        """Each server was called in vain."""
        pause = max(self._next_seconds, self._spread(lease_seconds))
        self._next_seconds = min(self._next_seconds * 2, self._most_seconds)
        return pause * self._chance.uniform(0.5, 1.0)

    def _spread(self, lease_seconds: float | None) -> float:
        if lease_seconds is None:
            return self.spread_seconds
        return min(self.spread_seconds, lease_seconds / _LEASE_SHARE)
