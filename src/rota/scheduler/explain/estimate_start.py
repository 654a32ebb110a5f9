"""Estimate of a job's start: running tasks end as expected, and higher-ranked jobs start first."""

import heapq
from typing import NamedTuple

import numpy as np

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.plan import Instant
from rota.model.view import JobView, View
from rota.scheduler.explain.queue_position import count_before, ranks_before
from rota.scheduler.placement.affinity_counts import NODE_LABEL
from rota.scheduler.placement.board import TASKS_ROW
from rota.scheduler.placement.place import Placer
from rota.scheduler.policy.backfill import NEVER_MS, expected_releases

_EARLIER_JOBS_MAX = 100  # higher-ranked jobs; with more of them there is no estimate
_NODES_MAX = 512  # nodes considered, the emptiest first
_ENDS_MAX = 2_000  # ends of tasks that are simulated
_LIVE_MAX = 20_000  # running tasks whose expected end is read


class _JobDemand:
    """The pending tasks of one job, and the nodes on which they might run."""

    def __init__(self, placer: Placer, job: JobView, slots: Array) -> None:
        self.needs: list[int] = placer.board.needs(job.spec.shape).tolist()
        self.eligible: list[bool] = placer.rows.eligible(job.spec.shape)[slots].tolist()
        self.tasks_left = job.task_counts.pending
        if job.spec.parallel is not None:
            self.tasks_left = min(self.tasks_left, job.spec.parallel - job.task_counts.live)
        self.runs_ms = job.spec.expect_ms
        if self.runs_ms is None and job.run_us is not None:
            self.runs_ms = round(job.run_us / 1000)

    def fitting_tasks(self, free: list[int]) -> int:
        """Number of tasks that fit into these amounts."""
        return max(0, min(left // need for left, need in zip(free, self.needs, strict=True) if need > 0))


class _TaskEnd(NamedTuple):
    at_ms: int
    node: int  # position among the considered nodes
    released: tuple[int, ...]


def estimate_start_ms(
    view: View, placer: Placer, job: JobView, head: JobId | None, now: Instant
) -> int | None:
    """Approximate wall-clock time of the start; None if it is unknown or too expensive to compute.

    `head` is the head of line, whose reserved resources the job would use: it starts no sooner than that one.
    """
    slots = _candidate_slots(placer, job)
    if count_before(view, job.spec) > _EARLIER_JOBS_MAX or not slots.size or _has_affinity_to_others(job):
        return None
    ends = _expected_ends(view, placer, slots, now)
    if ends is None:
        return None
    before = ranks_before(view, job.spec)
    names = [JobId(str(rank[2])) for rank in before]
    demands = {name: _JobDemand(placer, view.jobs[name], slots) for name in names}
    forecast = _Forecast(placer, slots, list(demands.values()), ends, now)
    head_demand = demands.get(head) if head is not None else None
    return forecast.first_start_ms(_JobDemand(placer, job, slots), head_demand, gang=job.spec.gang)


def _has_affinity_to_others(job: JobView) -> bool:
    """Whether its rules depend on other jobs, whose future nodes are not known."""
    rules = (*job.spec.near, *job.spec.apart)
    return any(term.weight is None for term in rules if term in job.spec.near or term.over != NODE_LABEL)


def _candidate_slots(placer: Placer, job: JobView) -> Array:
    """Nodes that are large enough for the job; if there are many, the emptiest ones."""
    board, shape = placer.board, job.spec.shape
    slots: Array = np.nonzero(placer.rows.eligible(shape) & (board.tasks_when_empty(shape) > 0))[0]
    if slots.size <= _NODES_MAX:
        return slots
    idle = (board.free[:, slots] * board.per_capacity[:, slots])[1:].min(axis=0, initial=1.0)
    return slots[np.lexsort((slots, -idle))[:_NODES_MAX]]


def _expected_ends(view: View, placer: Placer, slots: Array, now: Instant) -> list[_TaskEnd] | None:
    nodes = [view.nodes[view.node_table.ids[slot]] for slot in slots.tolist()]
    if sum(len(node.assigned) for node in nodes) > _LIVE_MAX:
        return None
    rows, height = placer.board.rows, placer.board.row_count
    found = []
    for at, node in enumerate(nodes):
        for release in expected_releases(view, node, now):
            if release.at_ms < NEVER_MS:
                released = {rows[resource]: amount for resource, amount in release.needs if resource in rows}
                released[TASKS_ROW] = 1
                found.append(
                    _TaskEnd(release.at_ms, at, tuple(released.get(row, 0) for row in range(height)))
                )
    return found


class _Forecast:
    """Simulates the free resources of the nodes, one end of a task after the other."""

    def __init__(
        self, placer: Placer, slots: Array, others: list[_JobDemand], ends: list[_TaskEnd], now: Instant
    ) -> None:
        self._free: list[list[int]] = placer.board.free[:, slots].T.tolist()
        self._others = others
        self._ends = ends
        self._now_ms = now.wall_ms
        heapq.heapify(self._ends)

    def first_start_ms(self, own: _JobDemand, head_demand: _JobDemand | None, *, gang: bool) -> int | None:
        """When one task of it starts, or all of a gang; not before the head of line, if there is one."""
        tasks = own.tasks_left if gang else 1
        fitting = [
            own.fitting_tasks(free) if eligible else 0
            for free, eligible in zip(self._free, own.eligible, strict=True)
        ]
        for _ in range(_ENDS_MAX):
            if not self._ends:
                return None
            end = heapq.heappop(self._ends)
            free = self._free[end.node]
            for row, amount in enumerate(end.released):
                free[row] += amount
            self._start_others(end)
            fitting[end.node] = own.fitting_tasks(free) if own.eligible[end.node] else 0
            if sum(fitting) >= tasks and (head_demand is None or head_demand.tasks_left <= 0):
                return max(end.at_ms, self._now_ms)
        return None

    def _start_others(self, end: _TaskEnd) -> None:
        """Start tasks of higher-ranked jobs on the node where a task has ended."""
        free = self._free[end.node]
        for demand in self._others:
            count = min(demand.tasks_left, demand.fitting_tasks(free)) if demand.eligible[end.node] else 0
            if count <= 0:
                continue
            demand.tasks_left -= count
            for row, need in enumerate(demand.needs):
                free[row] -= need * count
            if demand.runs_ms is not None:
                for _ in range(min(count, _ENDS_MAX)):
                    heapq.heappush(
                        self._ends, _TaskEnd(end.at_ms + demand.runs_ms, end.node, tuple(demand.needs))
                    )
