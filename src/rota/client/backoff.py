"""How long to wait before asking again a server that is away."""

import random
import time
from collections.abc import Callable

from rota.client.errors import Unavailable

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

OnWait = Callable[[Unavailable], None]

_JITTER = random.Random()  # its own: a program that seeds the common one gets what it expects


class RetryBackoff:
    """Growing pauses until patience ends; a stream that lasted a while starts them anew."""

    def __init__(self, patience_seconds: float, on_wait: OnWait | None = None) -> None:
        self._patience_seconds = patience_seconds
        self._on_wait = on_wait
        self._since: float | None = None
        self._attached_at: float | None = None
        self._next_seconds = FIRST_PAUSE_SECONDS

    def attached(self, patience_seconds: float) -> None:
        """The server has answered with a stream; it has earned more patience."""
        self._attached_at = time.monotonic()
        self._patience_seconds = max(patience_seconds, self._patience_seconds)

    def wait(self, problem: Unavailable) -> None:
        """Sleep a little, or raise the problem when patience is over."""
        now = time.monotonic()
        # A server that cuts every stream at once is as good as away.
        if self._attached_at is not None and now - self._attached_at >= LONGEST_PAUSE_SECONDS:
            self._since, self._next_seconds = None, FIRST_PAUSE_SECONDS
        self._attached_at = None
        self._since = now if self._since is None else self._since
        left = self._since + self._patience_seconds - now
        if left <= 0:
            raise problem
        if self._on_wait is not None:
            self._on_wait(problem)
        # Jitter, so that many clients of one restarted server do not come back in step.
        pause = max(problem.retry_after_seconds or 0.0, self._next_seconds * _JITTER.uniform(0.5, 1.0))
        self._next_seconds = min(LONGEST_PAUSE_SECONDS, self._next_seconds * 2)
        time.sleep(min(pause, left))
