"""Time of the last lease renewal + now -> renew, wait, or step down before another server can lead."""

from enum import Enum, auto
from typing import NamedTuple


class LeaseTiming(NamedTuple):
    """A leader renews its lease at 0.3 of its TTL, and steps down at 0.7 without a renewal.

    The leader counts from when it sent a renewal, the store from when it received it. So by the leader's
    clock the lease always ends first, unless its clock runs more than 0.3 of the TTL slow.
    """

    ttl_ms: int

    @property
    def renew_ms(self) -> int:
        return self.ttl_ms * 3 // 10

    @property
    def retry_ms(self) -> int:
        return self.ttl_ms // 20

    @property
    def fence_ms(self) -> int:
        return self.ttl_ms * 7 // 10


class LeaseAction(Enum):
    WAIT = auto()
    RENEW = auto()
    STEP_DOWN = auto()


class LeaseStep(NamedTuple):
    action: LeaseAction
    within_ms: int  # time to wait, or within which the renewal must succeed


def next_step(timing: LeaseTiming, renewed_at_ms: int, tried_at_ms: int, now_ms: int) -> LeaseStep:
    """What to do now; `tried_at_ms` is when a renewal was last requested, successfully or not."""
    # From the last success, not the last try: a renewal that failed extends nothing.
    fence_at_ms = renewed_at_ms + timing.fence_ms
    next_at_ms = max(renewed_at_ms + timing.renew_ms, tried_at_ms + timing.retry_ms)
    # Before RENEW: after the fence another server may lead, so a late renewal must not revive this one.
    if now_ms >= fence_at_ms:
        return LeaseStep(LeaseAction.STEP_DOWN, 0)
    if now_ms >= next_at_ms:
        # The renewal gets only the time until the fence. An answer after it would come too late to be used.
        return LeaseStep(LeaseAction.RENEW, fence_at_ms - now_ms)
    return LeaseStep(LeaseAction.WAIT, min(next_at_ms, fence_at_ms) - now_ms)


def lease_valid(timing: LeaseTiming, renewed_at_ms: int, now_ms: int) -> bool:
    """Whether, by this server's clock, no other server can have acquired the lease."""
    return now_ms < renewed_at_ms + timing.fence_ms
