"""How many requests each token may make: a token bucket per API token, in memory. [I/O]

A bucket is two numbers, changed in constant time by the event loop alone, so no lock is needed. Buckets that
are full again say nothing and are dropped when there are many.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from rota.apiserver.access import Caller, is_cluster_admin
from rota.model.errors import Rejected
from rota.model.limits import REQUESTS_AT_ONCE, REQUESTS_PER_SECOND

_BUCKETS_LOOKED_THROUGH = 1_000  # when there are twice as many as after the last look


class RateLimited(Rejected):
    """The token makes requests faster than it may."""

    code = "rate_limited"


class _Bucket(NamedTuple):
    """What was left at a moment."""

    left: float
    at_seconds: float


@dataclass(slots=True)
class Rates:
    """The buckets of one server. An admin of all namespaces has none: such a token may do anything anyway."""

    per_second: float = REQUESTS_PER_SECOND
    at_once: float = REQUESTS_AT_ONCE
    now: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _look_through_at: int = 2 * _BUCKETS_LOOKED_THROUGH

    def take(self, caller: Caller) -> None:
        """Count one request. Raises RateLimited where the token has none left."""
        if _is_free(caller):
            return
        if self._left(caller.token) < 1.0:
            problem = f"{caller.name} makes more than {self.per_second:g} requests a second"
            hint = "wait as long as Retry-After says; submit many jobs on one stream"
            raise RateLimited(problem, hint=hint)
        self._count(caller.token)

    async def wait(self, caller: Caller) -> None:
        """Count one request of a stream, and return when the token has one left for it."""
        if _is_free(caller):
            return
        missing = -self._count(caller.token)
        if missing > 0:
            await asyncio.sleep(missing / self.per_second)

    def _left(self, token: str) -> float:
        before = self._buckets.get(token)
        if before is None:
            return self.at_once
        return min(self.at_once, before.left + (self.now() - before.at_seconds) * self.per_second)

    def _count(self, token: str) -> float:
        """What is left behind one more request; below 0: streams wait for so many."""
        left = self._left(token) - 1.0
        self._buckets[token] = _Bucket(left, self.now())
        if len(self._buckets) >= self._look_through_at:
            self._drop_full()
        return left

    def _drop_full(self) -> None:
        self._buckets = {name: one for name, one in self._buckets.items() if self._left(name) < self.at_once}
        self._look_through_at = 2 * max(len(self._buckets), _BUCKETS_LOOKED_THROUGH)


def _is_free(caller: Caller) -> bool:
    return not caller.token or is_cluster_admin(caller)
