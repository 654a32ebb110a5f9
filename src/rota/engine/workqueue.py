"""Work queue of keys: each is queued at most once, may be woken again while it is decided, or at a time."""

import heapq
from collections import OrderedDict

import msgspec


class WorkItem(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """One key and the reconciler that decides it."""

    reconciler: str
    key: str


class WorkQueue:
    """FIFO of due keys, and a heap of keys that become due at a time."""

    def __init__(self) -> None:
        # Not a plain dict: removing its first entries one by one is quadratic.
        self._ready: OrderedDict[WorkItem, None] = OrderedDict()
        self._delayed: list[tuple[int, WorkItem]] = []
        # The earliest requested time of each key; heap entries with another time are void.
        self._delayed_until: dict[WorkItem, int] = {}

    def wake(self, due: WorkItem) -> None:
        # An entry that is queued keeps its place: many wakes of
        # one key cost one decision and do not starve others.
        self._ready[due] = None

    def wake_at(self, due: WorkItem, at_ms: int) -> None:
        known = self._delayed_until.get(due)
        # A later time never replaces an earlier one: a key woken
        # too early just asks again, one woken late would miss.
        if known is None or at_ms < known:
            self._delayed_until[due] = at_ms
            heapq.heappush(self._delayed, (at_ms, due))

    def pop(self, now_ms: int) -> WorkItem | None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            # The heap has no removal, so an entry that was replaced by an earlier time stays and is void.
            at_ms, due = heapq.heappop(self._delayed)
            if self._delayed_until.get(due) == at_ms:
                del self._delayed_until[due]
                self._ready[due] = None
        if not self._ready:
            return None
        # Removed before it is decided: a wake during its own decision queues it again and is not lost.
        due, _ = self._ready.popitem(last=False)
        return due

    def next_at(self) -> int | None:
        """The time of the next timer, in cluster time; None: there is none."""
        while self._delayed and self._delayed_until.get(self._delayed[0][1]) != self._delayed[0][0]:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def __bool__(self) -> bool:
        return bool(self._ready)
