"""A job that fits nowhere -> the node where the fewest tasks of lower priority have to be evicted for it."""

from collections.abc import Iterator, Sequence, Set
from itertools import combinations
from typing import NamedTuple

import numpy as np

from rota.model.amounts import GPU, TASKS, WHOLE_GPU
from rota.model.attempt import EVICTED, LOOKAHEAD
from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.limits import BLOCK_TASKS, PREEMPT_MARGIN
from rota.model.node_table import bits
from rota.model.view import JobView, NodeView, View
from rota.rules.phases import Phase
from rota.scheduler.placement.board import TASKS_ROW, Board
from rota.scheduler.placement.filters import fits_gpus
from rota.scheduler.placement.place import Placer
from rota.scheduler.placement.scores import EXCLUDED

_CANDIDATES = 8  # nodes whose victims are chosen exactly, those that lack least first
_EXACT = 10  # candidates: up to here every subset is tried, smallest first

TaskKey = tuple[JobId, int]  # job and index


class Victim(NamedTuple):
    """A unit of eviction: one task, or a whole gang."""

    priority: int
    tasks: tuple[TaskKey, ...]
    freed: dict[str, int]  # amounts it releases on this node
    devices: tuple[tuple[int, int], ...] = ()  # GPU, thousandths released


class Eviction(NamedTuple):
    """A node where one task fits once these victims have stopped."""

    slot: int
    victims: tuple[TaskKey, ...]  # including lookahead tasks of the node, which would start in the freed slot


def find_victims(
    view: View, placer: Placer, job: JobView, barred: Array | None, evicting: Set[TaskKey]
) -> Eviction | None:
    """The eviction with the lowest maximum priority, then the fewest tasks, then the lowest slot.

    `evicting` are tasks that are being evicted already. The victims may be empty: what others are leaving may
    be enough.
    """
    choices = []
    for slot in _candidates(view, placer, job, barred):
        victims = _cheapest_victims(view, placer.board, job, slot, evicting)
        if victims is not None:
            tasks = tuple(dict.fromkeys(name for victim in victims for name in victim.tasks))
            highest = max((victim.priority for victim in victims), default=-1)
            choices.append((highest, len(tasks), slot, tasks))
    if not choices:
        return None
    _, _, slot, tasks = min(choices)
    return Eviction(slot, (*tasks, *_lookahead_tasks_below(view, slot, job, evicting)))


def _candidates(view: View, placer: Placer, job: JobView, barred: Array | None) -> list[int]:
    """Slots where it would fit if everything evictable were evicted, those that lack least first."""
    board, shape = placer.board, job.spec.shape
    # A margin, so that a difference of one point does not kill running tasks.
    below = job.spec.priority - PREEMPT_MARGIN + 1
    preemptible = view.node_table.preemptible
    # The common case, and cheap: nothing in the cluster may be evicted for this job.
    if not preemptible.leaving and not any(level < below for level in preemptible.by_priority):
        return []
    able = placer.rows.eligible(shape).copy()
    rules = placer.placement_rules(job)
    if rules:
        able &= rules.points() != EXCLUDED
    if barred is not None:
        able &= ~barred
    lacks = np.zeros(board.size)
    for resource, amount in ((TASKS, 1), *shape.needs):
        row = _row(board, resource)
        if row is None:
            return []
        able &= board.free[row] + preemptible.below(below, resource, board.size) >= amount
        # Upper bounds per node from columns. Only a few nodes are then examined task by task.
        lacks += np.maximum(0, amount - board.free[row]) * board.per_capacity[row]
    slots = np.nonzero(able)[0]
    found: list[int] = slots[np.lexsort((slots, lacks[slots]))[:_CANDIDATES]].tolist()
    return found


def _row(board: Board, resource: str) -> int | None:
    return TASKS_ROW if resource == TASKS else board.row(resource)


def _cheapest_victims(
    view: View, board: Board, job: JobView, slot: int, evicting: Set[TaskKey]
) -> tuple[Victim, ...] | None:
    """The victims with the lowest maximum priority, then the fewest tasks.

    None if even all are not enough.
    """
    node = view.nodes[view.node_table.ids[slot]]
    need = _Shortfall(view, board, job, slot, node)
    candidates = sorted(
        _victims(view, node, job, evicting), key=lambda victim: (victim.priority, len(victim.tasks))
    )
    for count, victim in enumerate(candidates, 1):
        # Whole levels of priority at a time: the lowest level that is enough decides,
        # before the number of tasks does.
        last = count == len(candidates) or candidates[count].priority > victim.priority
        if last and need.met_by(candidates[:count]):
            return _fewest_victims(need, candidates[:count])
    return () if need.met_by([]) else None


def _fewest_victims(need: "_Shortfall", candidates: list[Victim]) -> tuple[Victim, ...]:
    """The fewest of these candidates; all of them are enough, those below the top priority are not."""
    if need.met_by([]):
        return ()
    # 2^10 subsets at most. Beyond it the greedy search below may evict one task more than necessary.
    if len(candidates) <= _EXACT:
        return _fewest_by_trial(need, candidates)
    chosen = list(candidates)
    for victim in sorted(candidates, key=lambda victim: (victim.priority, len(victim.tasks)), reverse=True):
        fewer = [other for other in chosen if other is not victim]
        if need.met_by(fewer):
            chosen = fewer
    return tuple(chosen)


def _fewest_by_trial(need: "_Shortfall", candidates: list[Victim]) -> tuple[Victim, ...]:
    best, fewest = tuple(candidates), _count_tasks(candidates)
    counts = sorted(len(victim.tasks) for victim in candidates)  # 0 for a gang that is already stopping
    for size in range(1, len(candidates)):
        if fewest <= sum(counts[:size]):  # no set of this size or larger has fewer tasks
            break
        for chosen in combinations(candidates, size):
            if _count_tasks(chosen) < fewest and need.met_by(chosen):
                best, fewest = chosen, _count_tasks(chosen)
    return best


def _count_tasks(victims: Sequence[Victim]) -> int:
    return sum(len(victim.tasks) for victim in victims)


class _Shortfall:
    """Amounts and GPUs that are missing on one node."""

    def __init__(self, view: View, board: Board, job: JobView, slot: int, node: NodeView) -> None:
        preemptible = view.node_table.preemptible
        self._missing: dict[str, int] = {}
        for resource, amount in ((TASKS, 1), *job.spec.shape.needs):
            row = _row(board, resource)
            leaving = preemptible.leaving.get(resource)
            free = 0 if row is None else int(board.free[row, slot])
            # What others are leaving counts as free. So a restart, which forgets nominations,
            # evicts nothing a second time.
            coming = 0 if leaving is None or slot >= leaving.size else int(leaving[slot])
            if amount > free + coming:
                self._missing[resource] = amount - free - coming
        self._gpu = job.spec.needs.get(GPU, 0)
        self._devices = board.devices[slot].copy() if self._gpu else board.devices[:0]
        if self._gpu:
            for device, part in _leaving_gpus(view, node):
                self._devices[device] += part

    def met_by(self, victims: Sequence[Victim]) -> bool:
        for resource, missing in self._missing.items():
            if sum([victim.freed.get(resource, 0) for victim in victims]) < missing:
                return False
        return not self._gpu or self._devices_met_by(victims)

    def _devices_met_by(self, victims: Sequence[Victim]) -> bool:
        devices = self._devices.copy()
        for victim in victims:
            for device, part in victim.devices:
                devices[device] += part
        return bool(fits_gpus(devices[None, :], self._gpu)[0])


def _victims(view: View, node: NodeView, job: JobView, evicting: Set[TaskKey]) -> Iterator[Victim]:
    """Everything on a node that may be evicted, within the eviction budget of each job."""
    budgets: dict[JobId, int] = {}
    gangs: dict[JobId, None] = {}
    for (job_id, index), _ in sorted(node.assigned.items()):
        other = view.jobs[job_id]
        if not other.spec.evictable or other.spec.priority > job.spec.priority - PREEMPT_MARGIN:
            continue
        tasks = live_tasks(other) if other.spec.gang else ((job_id, index),)
        # A gang is one victim: it is counted once for this node, and only if each of
        # its live tasks may be evicted.
        if job_id in gangs or not all(
            may_evict(other, at) and (job_id, at) not in evicting for _, at in tasks
        ):
            continue
        # The budget is shared by all candidates of this node, so that a set of victims never exceeds it.
        left = budgets.setdefault(job_id, _eviction_budget(other, evicting))
        if len(tasks) > left:
            continue
        budgets[job_id] = left - len(tasks)
        if other.spec.gang:
            gangs[job_id] = None
        here = [at for owner, at in node.assigned if owner == job_id] if other.spec.gang else [index]
        amounts = {
            TASKS: len(here),
            **{name: amount * len(here) for name, amount in other.spec.needs.items()},
        }
        devices = tuple(pair for at in here for pair in _gpus_of(other, at))
        yield Victim(other.spec.priority, tasks, amounts, devices)


# A lookahead task starts by itself as soon as a slot is free: left there, it would take what the victims
# free before the preempting task arrives.
def _lookahead_tasks_below(view: View, slot: int, job: JobView, evicting: Set[TaskKey]) -> Iterator[TaskKey]:
    """Lookahead tasks of lower priority on the node."""
    for name in sorted(view.nodes[view.node_table.ids[slot]].assigned):
        other = view.jobs[name[0]]
        if (
            other.spec.priority < job.spec.priority
            and _waits_as_lookahead(other, name[1])
            and name not in evicting
        ):
            yield name


def live_tasks(job: JobView) -> tuple[TaskKey, ...]:
    """All live tasks of a job that are not stopping yet. A gang is evicted as a whole."""
    live = (Phase.OFFERED, Phase.QUEUED, Phase.ACCEPTED, Phase.RUNNING)
    return tuple(
        (job.spec.id, block * BLOCK_TASKS + position)
        for block in sorted(job.phases)
        for position, phase in enumerate(job.phases[block])
        if phase in live
    )


def _eviction_budget(job: JobView, evicting: Set[TaskKey]) -> int:
    allowed = job.spec.evict_at_most
    if allowed is None:
        return job.spec.count
    return max(0, allowed - job.task_counts.stopping - sum(name[0] == job.spec.id for name in evicting))


def may_evict(job: JobView, index: int) -> bool:
    """Whether it holds resources and is not stopping."""
    block, position = divmod(index, BLOCK_TASKS)
    return job.phases[block][position] < Phase.STOPPING and not _waits_as_lookahead(job, index)


def _waits_as_lookahead(job: JobView, index: int) -> bool:
    """Whether it is queued on its node as lookahead and is not stopping."""
    block, position = divmod(index, BLOCK_TASKS)
    is_lookahead = job.attempts[block].flags[position] & LOOKAHEAD > 0
    return is_lookahead and job.phases[block][position] < Phase.ACCEPTED


def _gpus_of(job: JobView, index: int) -> list[tuple[int, int]]:
    block, position = divmod(index, BLOCK_TASKS)
    mask = job.attempts[block].gpus.get(position, 0)
    return [(device, min(job.spec.needs.get(GPU, 0), WHOLE_GPU)) for device in bits(mask)]


def _leaving_gpus(view: View, node: NodeView) -> Iterator[tuple[int, int]]:
    for job_id, index in node.assigned:
        other = view.jobs[job_id]
        block, position = divmod(index, BLOCK_TASKS)
        if other.attempts[block].flags[position] & EVICTED:
            yield from _gpus_of(other, index)
