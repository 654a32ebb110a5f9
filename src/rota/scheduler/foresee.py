"""When will a job start? What runs ends as expected, and whoever is before it takes the room first."""

import heapq
from typing import NamedTuple

import numpy as np

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.plan import Instant
from rota.model.view import JobView, View
from rota.scheduler.ahead import count_before, turns_before
from rota.scheduler.backfill import NEVER_MS, releases
from rota.scheduler.board import TASKS_ROW
from rota.scheduler.company import NODE
from rota.scheduler.place import Seating

_AHEAD_MAX = 100  # jobs before it; behind more of them nobody can tell
_NODES_MAX = 512  # the emptiest first
_ENDS_MAX = 2_000  # ends of tasks that are thought through
_LIVE_MAX = 20_000  # tasks whose end is looked up


class _Demand:
    """One job's tasks that wait; `at` says on which nodes they might run."""

    def __init__(self, seating: Seating, job: JobView, slots: Array) -> None:
        self.needs: list[int] = seating.board.needs(job.spec.shape).tolist()
        self.at: list[bool] = seating.rows.eligible(job.spec.shape)[slots].tolist()
        self.left = job.tally.pending
        if job.spec.parallel is not None:
            self.left = min(self.left, job.spec.parallel - job.tally.live)
        self.runs_ms = job.spec.expect_ms
        if self.runs_ms is None and job.run_us is not None:
            self.runs_ms = round(job.run_us / 1000)

    def copies(self, free: list[int]) -> int:
        """How many tasks have room in these amounts."""
        return max(0, min(left // need for left, need in zip(free, self.needs, strict=True) if need > 0))


class _End(NamedTuple):
    at_ms: int
    node: int  # position among those that are looked at
    given: tuple[int, ...]


def starts_at_ms(view: View, seating: Seating, job: JobView, head: JobId | None, now: Instant) -> int | None:
    """Wall clock, about; None where nobody knows, or it would take too long to find out.

    `head` is who was promised the room that it would use: it starts no sooner.
    """
    slots = _slots(seating, job)
    if count_before(view, job.spec) > _AHEAD_MAX or not slots.size or _depends_on_others(job):
        return None
    ends = _ends(view, seating, slots, now)
    if ends is None:
        return None
    before = turns_before(view, job.spec)
    names = [JobId(str(turn[2])) for turn in before]
    demands = {name: _Demand(seating, view.jobs[name], slots) for name in names}
    course = _Course(seating, slots, list(demands.values()), ends, now)
    first = demands.get(head) if head is not None else None
    return course.until(_Demand(seating, job, slots), first, gang=job.spec.gang)


def _depends_on_others(job: JobView) -> bool:
    """Who will be where then is not known."""
    rules = (*job.spec.near, *job.spec.apart)
    return any(term.weight is None for term in rules if term in job.spec.near or term.over != NODE)


def _slots(seating: Seating, job: JobView) -> Array:
    """Nodes that are large enough for it, the emptiest first if there are many."""
    board, shape = seating.board, job.spec.shape
    slots: Array = np.nonzero(seating.rows.eligible(shape) & (board.slots(shape) > 0))[0]
    if slots.size <= _NODES_MAX:
        return slots
    idle = (board.free[:, slots] * board.per_capacity[:, slots])[1:].min(axis=0, initial=1.0)
    return slots[np.lexsort((slots, -idle))[:_NODES_MAX]]


def _ends(view: View, seating: Seating, slots: Array, now: Instant) -> list[_End] | None:
    nodes = [view.nodes[view.room.ids[slot]] for slot in slots.tolist()]
    if sum(len(node.assigned) for node in nodes) > _LIVE_MAX:
        return None
    rows, height = seating.board.rows, seating.board.height
    found = []
    for at, node in enumerate(nodes):
        for release in releases(view, node, now):
            if release.at_ms < NEVER_MS:
                given = {rows[resource]: amount for resource, amount in release.needs if resource in rows}
                given[TASKS_ROW] = 1
                found.append(_End(release.at_ms, at, tuple(given.get(row, 0) for row in range(height))))
    return found


class _Course:
    """The nodes as they will be, one end after the other."""

    def __init__(
        self, seating: Seating, slots: Array, others: list[_Demand], ends: list[_End], now: Instant
    ) -> None:
        self._free: list[list[int]] = seating.board.free[:, slots].T.tolist()
        self._others = others
        self._ends = ends
        self._now_ms = now.wall_ms
        heapq.heapify(self._ends)

    def until(self, own: _Demand, first: _Demand | None, *, gang: bool) -> int | None:
        """When it starts, one task of it or all of a gang; not before the first, if there is one."""
        wanted = own.left if gang else 1
        rooms = [own.copies(free) if here else 0 for free, here in zip(self._free, own.at, strict=True)]
        for _ in range(_ENDS_MAX):
            if not self._ends:
                return None
            end = heapq.heappop(self._ends)
            free = self._free[end.node]
            for row, amount in enumerate(end.given):
                free[row] += amount
            self._serve_others(end)
            rooms[end.node] = own.copies(free) if own.at[end.node] else 0
            if sum(rooms) >= wanted and (first is None or first.left <= 0):
                return max(end.at_ms, self._now_ms)
        return None

    def _serve_others(self, end: _End) -> None:
        """Only where room came free can anybody start."""
        free = self._free[end.node]
        for one in self._others:
            count = min(one.left, one.copies(free)) if one.at[end.node] else 0
            if count <= 0:
                continue
            one.left -= count
            for row, need in enumerate(one.needs):
                free[row] -= need * count
            if one.runs_ms is not None:
                for _ in range(min(count, _ENDS_MAX)):
                    heapq.heappush(self._ends, _End(end.at_ms + one.runs_ms, end.node, tuple(one.needs)))
