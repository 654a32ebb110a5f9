"""Latency of recent commits, and the error of the last one: the health of the store as the engine sees it."""

from collections import deque
from statistics import median

_KEPT = 200


class CommitStats:
    def __init__(self) -> None:
        self._took_ms: deque[float] = deque(maxlen=_KEPT)
        self.last_at_ms: int | None = None  # cluster time of the last successful commit
        self.problem: str | None = None  # the error of the last commit, if it failed

    def succeeded(self, took_ms: float, now_ms: int) -> None:
        self._took_ms.append(took_ms)
        self.last_at_ms = now_ms
        self.problem = None

    def failed(self, why: str) -> None:
        self.problem = why

    @property
    def median_ms(self) -> float | None:
        return round(median(self._took_ms), 3) if self._took_ms else None

    @property
    def worst_ms(self) -> float | None:
        return round(max(self._took_ms), 3) if self._took_ms else None
