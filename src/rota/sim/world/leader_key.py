"""The leader's key as etcd keeps it: there while its lease runs, and whoever made it may write.

A model; a test drives it and etcd itself through the same random histories, and they agree.
"""

from typing import NamedTuple


class KeyHolder(NamedTuple):
    """One life of a server: who was started in its place is another."""

    name: str
    life: int


class LeaderKey:
    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._expires_at_ms = 0
        self.last: KeyHolder | None = None  # who made it, even if it is gone

    def is_of(self, who: KeyHolder, now_ms: int) -> bool:
        return self.last == who and now_ms < self._expires_at_ms

    def acquire(self, who: KeyHolder, now_ms: int) -> bool:
        """Make it, with a new lease, unless it is there."""
        if now_ms < self._expires_at_ms:
            return False
        self.last, self._expires_at_ms = who, now_ms + self._ttl_ms
        return True

    def renew(self, who: KeyHolder, now_ms: int) -> bool:
        """A lease that has run out is not renewed."""
        if not self.is_of(who, now_ms):
            return False
        self._expires_at_ms = now_ms + self._ttl_ms
        return True

    def revoke(self) -> None:
        """The lease ends now, and the key with it."""
        self._expires_at_ms = 0
