"""How many requests each token may make, and how many unknown ones an address: buckets, in memory. [I/O]

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
from rota.model.limits import GUESSES_AT_ONCE, GUESSES_PER_SECOND, REQUESTS_AT_ONCE, REQUESTS_PER_SECOND

_BUCKETS_LOOKED_THROUGH = 1_000  # when there are twice as many as after the last look


class RateLimited(Rejected):
    """The token makes requests faster than it may."""

    code = "rate_limited"


class _Bucket(NamedTuple):
    """What was left at a moment."""

    left: float
    at_seconds: float


@dataclass(slots=True)
class Buckets:
    """Token buckets by a name."""

    per_second: float
    at_once: float
    now: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _look_through_at: int = 2 * _BUCKETS_LOOKED_THROUGH

    def left(self, name: str) -> float:
        before = self._buckets.get(name)
        if before is None:
            return self.at_once
        return min(self.at_once, before.left + (self.now() - before.at_seconds) * self.per_second)

    def count(self, name: str) -> float:
        """What is left behind one more; below 0: streams wait for so many."""
        left = self.left(name) - 1.0
        self._buckets[name] = _Bucket(left, self.now())
        if len(self._buckets) >= self._look_through_at:
            self._drop_full()
        return left

    def _drop_full(self) -> None:
        self._buckets = {name: one for name, one in self._buckets.items() if self.left(name) < self.at_once}
        self._look_through_at = 2 * max(len(self._buckets), _BUCKETS_LOOKED_THROUGH)


@dataclass(slots=True)
class Guesses(Buckets):
    """Tokens that are not known, by the address they come from.

    Only they are refused: a known token of the same address, behind a proxy perhaps, is let in.
    """

    per_second: float = GUESSES_PER_SECOND
    at_once: float = GUESSES_AT_ONCE

    def take(self, address: str) -> None:
        """Count one. Raises RateLimited where the address has none left."""
        if self.left(address) < 1.0:
            raise RateLimited("too many tokens from this address are not known", hint="is it still valid?")
        self.count(address)


@dataclass(slots=True)
class Rates(Buckets):
    """The buckets of one server. An admin of all namespaces has none: such a token may do anything anyway."""

    per_second: float = REQUESTS_PER_SECOND
    at_once: float = REQUESTS_AT_ONCE

    def take(self, caller: Caller) -> None:
        """Count one request. Raises RateLimited where the token has none left."""
        if _is_free(caller):
            return
        if self.left(caller.token) < 1.0:
            problem = f"{caller.name} makes more than {self.per_second:g} requests a second"
            hint = "wait as long as Retry-After says; submit many jobs on one stream"
            raise RateLimited(problem, hint=hint)
        self.count(caller.token)

    async def wait(self, caller: Caller) -> None:
        """Count one request of a stream, and return when the token has one left for it."""
        if _is_free(caller):
            return
        missing = -self.count(caller.token)
        if missing > 0:
            await asyncio.sleep(missing / self.per_second)


def _is_free(caller: Caller) -> bool:
    return not caller.token or is_cluster_admin(caller)
