"""Rate limits: requests of a token, its share of the event loop, and unknown tokens of an address. [I/O]

Three limits, all in memory, changed in constant time by the event loop alone, so that no lock is needed:

* a token bucket of requests for each API token. A bucket that is full again is equal to none, and is dropped
  when there are many.
* the token's share of the event loop's time (`rota.apiserver.fair_share`). It is checked first, and delays
  requests rather than refusing them: a refusal takes time as well, and its client retries immediately.
* a bucket for each address from which unknown tokens come.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from rota.apiserver.access import Caller, is_cluster_admin
from rota.apiserver.fair_share import Shares
from rota.apiserver.thread_capacity import Counted, capacity, counted
from rota.identity.tokens import Role
from rota.model.errors import Rejected
from rota.model.limits import (
    GUESSES_AT_ONCE,
    GUESSES_PER_SECOND,
    REQUESTS_AT_ONCE,
    REQUESTS_PER_SECOND,
    SHARE_WAIT_SECONDS_MAX,
    SHARE_WINDOW_SECONDS,
)

STRANGERS = Caller("stranger", Role.VIEWER, ())  # all callers with unknown tokens share one account
_SWEEP_BUCKETS_MIN = 1_000  # a sweep is due at twice as many buckets as the last one left


class RateLimited(Rejected):
    """The token makes requests faster than it may."""

    code = "rate_limited"


class _Bucket(NamedTuple):
    """The tokens that were left at a time."""

    left: float
    at_seconds: float


@dataclass(slots=True)
class TokenBuckets:
    """Token buckets by name: one token per request, refilled at `per_second` up to `burst`."""

    per_second: float
    burst: float
    now: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _sweep_at: int = 2 * _SWEEP_BUCKETS_MIN

    def tokens_left(self, name: str) -> float:
        before = self._buckets.get(name)
        if before is None:
            return self.burst
        return min(self.burst, before.left + (self.now() - before.at_seconds) * self.per_second)

    def spend(self, name: str) -> float:
        """Take one token; what is left, below 0 if a stream has to wait for that many."""
        left = self.tokens_left(name) - 1.0
        self._buckets[name] = _Bucket(left, self.now())
        if len(self._buckets) >= self._sweep_at:
            self._sweep()
        return left

    def _sweep(self) -> None:
        self._buckets = {
            name: bucket for name, bucket in self._buckets.items() if self.tokens_left(name) < self.burst
        }
        # At twice the size, so that the cost of sweeps per request is constant.
        self._sweep_at = 2 * max(len(self._buckets), _SWEEP_BUCKETS_MIN)


@dataclass(slots=True)
class UnknownTokenLimits(TokenBuckets):
    """The limits on requests with unknown tokens, by client address.

    They refuse unknown tokens only: a known token from the same address, perhaps behind a proxy, is accepted.
    """

    per_second: float = GUESSES_PER_SECOND
    burst: float = GUESSES_AT_ONCE

    def acquire(self, address: str) -> None:
        """Count a request with an unknown token. Raises RateLimited if the address has sent too many."""
        # Refused requests take no token: a client that keeps sending is served again as
        # soon as its bucket has filled.
        if self.tokens_left(address) < 1.0:
            raise RateLimited("too many unknown tokens from this address", hint="is your token still valid?")
        self.spend(address)


@dataclass(slots=True)
class RateLimits(TokenBuckets):
    """The limits of one server. Admins of all namespaces have none: such a token may do anything anyway.

    The time that admins and nodes use is charged all the same, so that the shares of others shrink by it.
    """

    per_second: float = REQUESTS_PER_SECOND
    burst: float = REQUESTS_AT_ONCE
    _shares: Shares = field(default_factory=Shares)
    _counted: Counted | None = None
    _sample_at: float = 0.0

    async def enter(self, caller: Caller) -> None:
        """Wait until a request may be served. Raises RateLimited if the token has no request left."""
        await self._wait_for_share(caller, may_refuse=True)
        self.acquire(caller)

    def charge(self, caller: Caller, seconds: float) -> None:
        """Record that a caller has used the event loop for some time."""
        self._shares.charge(_account(caller), seconds, self.now())

    def acquire(self, caller: Caller) -> None:
        """Count a request. Raises RateLimited if the token has no request left."""
        if _is_unlimited(caller):
            return
        if self.tokens_left(caller.token) < 1.0:
            problem = f"{caller.name} makes more than {self.per_second:g} requests a second"
            hint = "wait as long as Retry-After says; submit many jobs on one stream"
            raise RateLimited(problem, hint=hint)
        self.spend(caller.token)

    async def acquire_or_wait(self, caller: Caller) -> None:
        """Count a request of a stream, and wait until the token has one left: backpressure, no refusal."""
        await self._wait_for_share(caller, may_refuse=False)
        if _is_unlimited(caller):
            return
        missing = -self.spend(caller.token)
        if missing > 0:
            await asyncio.sleep(missing / self.per_second)

    async def _wait_for_share(self, caller: Caller, *, may_refuse: bool) -> None:
        if is_cluster_admin(caller) or caller.node is not None:
            return
        name, now = _account(caller), self.now()
        if now >= self._sample_at:
            self._sample_capacity(now)
        seconds = self._shares.enter(name, now)
        if seconds <= 0:
            return
        try:
            await asyncio.sleep(min(seconds, SHARE_WAIT_SECONDS_MAX))
        finally:
            # Also if the client disconnects: a request that counted as waiting for ever would delay all later
            # ones of its account.
            self._shares.resume(name)
        if may_refuse and seconds > SHARE_WAIT_SECONDS_MAX:
            problem = f"{caller.name} uses more than its share of a busy server"
            raise RateLimited(problem, hint="wait as long as Retry-After says; make fewer requests at once")

    def _sample_capacity(self, now: float) -> None:
        before, self._counted = self._counted, counted()
        self._shares.capacity = capacity(before, self._counted)
        self._sample_at = now + SHARE_WINDOW_SECONDS


def _account(caller: Caller) -> str:
    """The account of a caller: its job if it is a task, else its token, or its name if it has none."""
    if caller.task is not None:
        return f"job {caller.task.job}"
    return caller.token or caller.name


def _is_unlimited(caller: Caller) -> bool:
    return not caller.token or is_cluster_admin(caller)
