"""Backoff between retries while no server is reachable."""

import random
import time
from collections.abc import Callable

from rota.client.errors import Unavailable

FIRST_BACKOFF_SECONDS = 0.05
LONGEST_BACKOFF_SECONDS = 2.0

OnWait = Callable[[Unavailable], None]

_JITTER = random.Random()  # its own generator: the program's seed of the global one keeps its meaning


class RetryBackoff:
    """Exponential backoff with jitter until the patience ends; a stream that lasted a while resets it."""

    def __init__(self, patience_seconds: float, on_wait: OnWait | None = None) -> None:
        self._patience_seconds = patience_seconds
        self._on_wait = on_wait
        self._since: float | None = None
        self._attached_at: float | None = None
        self._next_seconds = FIRST_BACKOFF_SECONDS

    def attached(self, patience_seconds: float) -> None:
        """Note that a stream was opened; later interruptions are retried for `patience_seconds`."""
        self._attached_at = time.monotonic()
        # Longer from here on: a client that has waited hours for a job should
        # survive the upgrade of a server.
        self._patience_seconds = max(patience_seconds, self._patience_seconds)

    def wait(self, problem: Unavailable) -> None:
        """Sleep before the next try, or raise the problem if the patience is used up."""
        now = time.monotonic()
        # Only a stream that lasted resets the backoff: a server may accept streams and close them at once.
        if self._attached_at is not None and now - self._attached_at >= LONGEST_BACKOFF_SECONDS:
            self._since, self._next_seconds = None, FIRST_BACKOFF_SECONDS
        self._attached_at = None
        self._since = now if self._since is None else self._since
        left = self._since + self._patience_seconds - now
        if left <= 0:
            raise problem
        if self._on_wait is not None:
            self._on_wait(problem)
        # Jitter spreads the clients of a restarted server over time.
        delay = max(problem.retry_after_seconds or 0.0, self._next_seconds * _JITTER.uniform(0.5, 1.0))
        self._next_seconds = min(LONGEST_BACKOFF_SECONDS, self._next_seconds * 2)
        time.sleep(min(delay, left))
