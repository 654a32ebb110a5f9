"""Failed connections + the spread that the server asks for -> how long to wait before the next one."""

from typing import Protocol

FIRST_SECONDS = 0.1
LAST_SECONDS = 5.0
_LEASE_SHARE = 4  # at most a quarter of the shortest run lease, so that it is renewed in time


class Jitter(Protocol):
    """The part of `random.Random` that a backoff uses."""

    def uniform(self, a: float, b: float) -> float: ...


class Backoff:
    """Exponential backoff with jitter: nodes that lost a server together must not return together."""

    def __init__(self, chance: Jitter) -> None:
        self._chance = chance
        self._next_seconds = FIRST_SECONDS
        self._most_seconds = LAST_SECONDS
        self.spread_seconds = 0.0  # over which the server wants reconnects of all nodes to be spread

    def reset(self, heartbeat_seconds: float) -> None:
        """Start over after a welcome. The longest wait is a heartbeat: a server that comes back must hear
        from this node before its silence counts."""
        self._next_seconds = FIRST_SECONDS
        self._most_seconds = min(LAST_SECONDS, heartbeat_seconds)

    def after_loss(self, lease_seconds: float | None) -> float:
        """The wait after a lost server, random within the spread: other nodes have lost it, too."""
        # From 0: the first nodes return at once, the others are spread, so the new leader is not flooded.
        return self._chance.uniform(0, max(FIRST_SECONDS, self._spread(lease_seconds)))

    def after_round(self, lease_seconds: float | None) -> float:
        """The wait after every server was tried without success; it doubles up to the longest."""
        wait_seconds = max(self._next_seconds, self._spread(lease_seconds))
        self._next_seconds = min(self._next_seconds * 2, self._most_seconds)
        return wait_seconds * self._chance.uniform(0.5, 1.0)

    def _spread(self, lease_seconds: float | None) -> float:
        if lease_seconds is None:
            return self.spread_seconds
        return min(self.spread_seconds, lease_seconds / _LEASE_SHARE)
