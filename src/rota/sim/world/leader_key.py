"""A model of the leader key in etcd: it exists while its lease runs, and only its holder may write.

tests/contracts/test_leader_key drives this model and etcd itself through the same random histories and
compares them.
"""

from typing import NamedTuple


class KeyHolder(NamedTuple):
    """One life of a server; a restarted server is another holder."""

    name: str
    life: int


class LeaderKey:
    """The key, its holder and its lease, on the clock of the store."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._expires_at_ms = 0
        self.last: KeyHolder | None = None  # its last holder, also after the lease has expired

    def is_held_by(self, holder: KeyHolder, now_ms: int) -> bool:
        return self.last == holder and now_ms < self._expires_at_ms

    def acquire(self, holder: KeyHolder, now_ms: int) -> bool:
        """Create the key with a new lease, unless another lease still holds it."""
        if now_ms < self._expires_at_ms:
            return False
        self.last, self._expires_at_ms = holder, now_ms + self._ttl_ms
        return True

    def renew(self, holder: KeyHolder, now_ms: int) -> bool:
        """Extend the lease; an expired lease cannot be renewed."""
        # The life is part of the holder: a restarted server must campaign again,
        # even while its old lease runs.
        if not self.is_held_by(holder, now_ms):
            return False
        self._expires_at_ms = now_ms + self._ttl_ms
        return True

    def revoke(self) -> None:
        """End the lease now, which deletes the key."""
        self._expires_at_ms = 0
