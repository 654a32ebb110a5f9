"""When a lease was last renewed + the time -> renew it, rest, or step down before another can lead."""

from enum import Enum, auto
from typing import NamedTuple


class LeaseTiming(NamedTuple):
    """A lease is renewed at three tenths of its time; who could not until seven tenths leads no more.

    Time counts from when a renewal was asked for: the store, which counts from later, waits longer.
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
    within_ms: int  # to rest so long, or to have the renewal by then


def next_step(tenure: LeaseTiming, renewed_at_ms: int, tried_at_ms: int, now_ms: int) -> LeaseStep:
    """`tried_at_ms`: when a renewal was last asked for, in vain or not."""
    fence_at_ms = renewed_at_ms + tenure.fence_ms
    next_at_ms = max(renewed_at_ms + tenure.renew_ms, tried_at_ms + tenure.retry_ms)
    if now_ms >= fence_at_ms:
        return LeaseStep(LeaseAction.STEP_DOWN, 0)
    if now_ms >= next_at_ms:
        return LeaseStep(LeaseAction.RENEW, fence_at_ms - now_ms)
    return LeaseStep(LeaseAction.WAIT, min(next_at_ms, fence_at_ms) - now_ms)


def lease_valid(tenure: LeaseTiming, renewed_at_ms: int, now_ms: int) -> bool:
    """By its own clock nobody else can have taken over."""
    return now_ms < renewed_at_ms + tenure.fence_ms
