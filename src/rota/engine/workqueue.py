"""Which keys are due: each at most once, re-woken while being decided, later when asked to look again."""

import heapq
from collections import OrderedDict

import msgspec


class WorkItem(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """One thing to look at, and who shall look."""

    reconciler: str
    key: str


class WorkQueue:
    """First woken, first served."""

    def __init__(self) -> None:
        self._ready: OrderedDict[WorkItem, None] = OrderedDict()  # of a plain one the first is found slowly
        self._delayed: list[tuple[int, WorkItem]] = []
        self._delayed_until: dict[
            WorkItem, int
        ] = {}  # the earliest time asked for; older heap entries are void

    def wake(self, due: WorkItem) -> None:
        self._ready[due] = None

    def wake_at(self, due: WorkItem, at_ms: int) -> None:
        known = self._delayed_until.get(due)
        if known is None or at_ms < known:
            self._delayed_until[due] = at_ms
            heapq.heappush(self._delayed, (at_ms, due))

    def pop(self, now_ms: int) -> WorkItem | None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            at_ms, due = heapq.heappop(self._delayed)
            if self._delayed_until.get(due) == at_ms:
                del self._delayed_until[due]
                self._ready[due] = None
        if not self._ready:
            return None
        due, _ = self._ready.popitem(last=False)
        return due

    def next_at(self) -> int | None:
        """When something is due by itself; None: not before something changes."""
        while self._delayed and self._delayed_until.get(self._delayed[0][1]) != self._delayed[0][0]:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def __bool__(self) -> bool:
        return bool(self._ready)
