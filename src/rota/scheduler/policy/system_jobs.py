"""A system job + the nodes -> one task pinned to each node that fits."""

from typing import NamedTuple

import msgspec
import numpy as np

from rota.model.columns import Array, Ranges
from rota.model.ids import JobId, NodeId
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import EventRecord, Plan, Record
from rota.model.task import PinBlock
from rota.model.view import JobView, View
from rota.scheduler.placement.place import Assignment, Assignments, Placer, choose_gpus
from rota.scheduler.placement.scores import EXCLUDED


class PinnedAssignments(msgspec.Struct, frozen=True):
    """Task indices with those that were placed first, and the assignments of these."""

    indices: list[int]
    assignments: Assignments


class SystemJobInput(NamedTuple):
    """The versions of node table and spec for which the nodes of a system job were last computed."""

    eligibility_version: int  # of the node table: nodes were added, removed or changed
    version: int  # of the job's spec: an update may match other nodes


def pin_tasks(view: View, placer: Placer, seen: dict[JobId, SystemJobInput]) -> Plan | None:
    """New tasks for nodes that fit a system job and have none; `seen` caches the inputs of the last call."""
    puts: list[Record] = []
    events: list[EventRecord] = []
    for job_id in view.system_jobs:
        job = view.jobs[job_id]
        now = SystemJobInput(view.node_table.eligibility_version, job.spec.version)
        if seen.get(job_id) == now or (job.adoption is not None and not job.adoption.closed):
            continue  # a node that has not reconnected may hold the next index already
        seen[job_id] = now
        new = _new_nodes(view, placer, job)
        if new:
            puts += _pin_blocks(job, new)
            events.append(_pinned_event(view, job, new))
    return (
        Plan(tuple(puts), events=tuple(events), why="; ".join(event.why for event in events))
        if puts
        else None
    )


def _new_nodes(view: View, placer: Placer, job: JobView) -> list[NodeId]:
    """Open nodes without a task of the job that match its constraints and are large enough when empty."""
    shape = job.spec.shape
    able = placer.rows.eligible(shape) & (placer.board.tasks_when_empty(shape) > 0)
    found = (view.node_table.ids[slot] for slot in np.nonzero(able)[0].tolist())
    return [node for node in found if node not in job.task_by_node]


def _pin_blocks(job: JobView, new: list[NodeId]) -> list[PinBlock]:
    # Appended: the index of a pinned task is its position in this order, and must never change.
    nodes = [*job.task_by_node, *new]
    first = len(job.task_by_node) // BLOCK_TASKS
    last = (len(nodes) - 1) // BLOCK_TASKS
    return [
        PinBlock(job.spec.id, block, tuple(nodes[block * BLOCK_TASKS : (block + 1) * BLOCK_TASKS]))
        for block in range(first, last + 1)
    ]


def _pinned_event(view: View, job: JobView, new: list[NodeId]) -> EventRecord:
    first = len(job.task_by_node)
    ranges = Ranges(list(range(first, first + len(new))))
    where = f"node {view.nodes[new[0]].spec.name}" if len(new) == 1 else f"{len(new)} nodes"
    why = f"task{'s' if len(new) > 1 else ''} {ranges} of job {job.spec.id} wanted on {where}"
    return EventRecord("task.wanted", why, job=job.spec.id, indices=tuple(ranges.pairs))


def place_pinned(
    view: View, placer: Placer, job: JobView, ready: list[int], barred: Array | None
) -> PinnedAssignments:
    """Place each task on its own node, if it fits there now, and allocate it on the board."""
    shape, nodes = job.spec.shape, list(job.task_by_node)
    assigned: list[Assignment] = []
    placed: list[int] = []
    left: list[int] = []
    for index in ready:
        slot = view.node_table.slot.get(nodes[index])
        worth = placer.rows.points(shape)
        if slot is None or worth[slot] == EXCLUDED or (barred is not None and barred[slot]):
            left.append(index)
            continue
        devices = choose_gpus(placer.rows, shape, slot) if placer.board.devices.shape[1] else 0
        placer.board.allocate(shape, slot, 1, devices)
        assigned.append(Assignment(slot, devices))
        placed.append(index)
    chosen = assigned[0].slot if assigned else -1
    return PinnedAssignments([*placed, *left], Assignments(assigned, chosen, len(assigned)))


def other_nodes_mask(view: View, job: JobView, left: list[int]) -> Array:
    """Mask of the nodes that none of these tasks is pinned to; a pinned node may have been deleted."""
    nodes, slots = list(job.task_by_node), view.node_table.slot
    barred = np.ones(view.node_table.size, np.bool_)
    barred[[slots[nodes[index]] for index in left if nodes[index] in slots]] = False
    return barred
