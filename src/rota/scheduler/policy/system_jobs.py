"""A system job + the nodes -> a task for each that fits, on that node and no other."""

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
    """Tasks in the order in which they were looked at: first those that have a seat."""

    indices: list[int]
    assignments: Assignments


class SystemJobInput(NamedTuple):
    """What decides which nodes a system job has tasks for, as it was when the job was last looked at."""

    eligibility_version: int  # of the room: nodes that came, went or changed
    version: int  # of the job's spec: an update may admit other nodes


def pin_tasks(view: View, placer: Placer, seen: dict[JobId, SystemJobInput]) -> Plan | None:
    """Tasks for nodes that have come since a job was last looked at; `seen` says when that was."""
    puts: list[Record] = []
    events: list[EventRecord] = []
    for job_id in view.system_jobs:
        job = view.jobs[job_id]
        now = SystemJobInput(view.node_table.eligibility_version, job.spec.version)
        if seen.get(job_id) == now or (job.adoption is not None and not job.adoption.closed):
            continue  # a node that is not back yet may have the next index already
        seen[job_id] = now
        new = _new_nodes(view, placer, job)
        if new:
            puts += _pin_blocks(job, new)
            events.append(_pinned_event(view, job, new))
    return Plan(tuple(puts), events=tuple(events), why="; ".join(one.why for one in events)) if puts else None


def _new_nodes(view: View, placer: Placer, job: JobView) -> list[NodeId]:
    """Open, as it wishes, and large enough were they empty."""
    shape = job.spec.shape
    able = placer.rows.eligible(shape) & (placer.board.tasks_when_empty(shape) > 0)
    found = (view.node_table.ids[slot] for slot in np.nonzero(able)[0].tolist())
    return [node for node in found if node not in job.task_by_node]


def _pin_blocks(job: JobView, new: list[NodeId]) -> list[PinBlock]:
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
    """Each on its own node, if that has room now; taken off the board."""
    shape, nodes = job.spec.shape, list(job.task_by_node)
    seats: list[Assignment] = []
    here: list[int] = []
    left: list[int] = []
    for index in ready:
        slot = view.node_table.slot.get(nodes[index])
        worth = placer.rows.points(shape)
        if slot is None or worth[slot] == EXCLUDED or (barred is not None and barred[slot]):
            left.append(index)
            continue
        devices = choose_gpus(placer.rows, shape, slot) if placer.board.devices.shape[1] else 0
        placer.board.allocate(shape, slot, 1, devices)
        seats.append(Assignment(slot, devices))
        here.append(index)
    chosen = seats[0].slot if seats else -1
    return PinnedAssignments([*here, *left], Assignments(seats, chosen, len(seats)))


def other_nodes_mask(view: View, job: JobView, left: list[int]) -> Array:
    """The nodes that are not for any of these tasks; one of theirs may be deleted by now."""
    nodes, slots = list(job.task_by_node), view.node_table.slot
    barred = np.ones(view.node_table.size, np.bool_)
    barred[[slots[nodes[index]] for index in left if nodes[index] in slots]] = False
    return barred
