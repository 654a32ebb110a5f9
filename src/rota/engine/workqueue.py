"""Which keys are due: each at most once, re-woken while being decided, later when asked to look again."""

import heapq
from collections import OrderedDict

import msgspec


class Due(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """One thing to look at, and who shall look."""

    reconciler: str
    key: str


class WorkQueue:
    """First woken, first served."""

    def __init__(self) -> None:
        self._due: OrderedDict[Due, None] = OrderedDict()  # of a plain one the first is found slowly
        self._later: list[tuple[int, Due]] = []
        self._later_at: dict[Due, int] = {}  # the earliest time asked for; older heap entries are void

    def wake(self, due: Due) -> None:
        self._due[due] = None

    def wake_at(self, due: Due, at_ms: int) -> None:
        known = self._later_at.get(due)
        if known is None or at_ms < known:
            self._later_at[due] = at_ms
            heapq.heappush(self._later, (at_ms, due))

    def take(self, now_ms: int) -> Due | None:
        while self._later and self._later[0][0] <= now_ms:
            at_ms, due = heapq.heappop(self._later)
            if self._later_at.get(due) == at_ms:
                del self._later_at[due]
                self._due[due] = None
        if not self._due:
            return None
        due, _ = self._due.popitem(last=False)
        return due

    def next_at(self) -> int | None:
        """When something is due by itself; None: not before something changes."""
        while self._later and self._later_at.get(self._later[0][1]) != self._later[0][0]:
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def __bool__(self) -> bool:
        return bool(self._due)
