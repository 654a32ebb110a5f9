"""A system job + the nodes -> a task for each that fits, on that node and no other."""

from typing import NamedTuple

import msgspec
import numpy as np

from rota.model.columns import Array, Ranges
from rota.model.ids import JobId, NodeId
from rota.model.limits import BLOCK_TASKS
from rota.model.pins import PinBlock
from rota.model.plan import Event, Plan, Record
from rota.model.view import JobView, View
from rota.scheduler.place import Seat, Seated, Seating, choose_devices
from rota.scheduler.scores import NEVER


class Pinned(msgspec.Struct, frozen=True):
    """Tasks in the order in which they were looked at: first those that have a seat."""

    indices: list[int]
    seated: Seated


class Seen(NamedTuple):
    """What decides which nodes a system job has tasks for, as it was when the job was last looked at."""

    doors: int  # of the room: nodes that came, went or changed
    version: int  # of the job's spec: an update may admit other nodes


def pin(view: View, seating: Seating, seen: dict[JobId, Seen]) -> Plan | None:
    """Tasks for nodes that have come since a job was last looked at; `seen` says when that was."""
    puts: list[Record] = []
    events: list[Event] = []
    for job_id in view.systems:
        job = view.jobs[job_id]
        now = Seen(view.room.doors, job.spec.version)
        if seen.get(job_id) == now or (job.adoption is not None and not job.adoption.closed):
            continue  # a node that is not back yet may have the next index already
        seen[job_id] = now
        new = _new_nodes(view, seating, job)
        if new:
            puts += _blocks(job, new)
            events.append(_event(view, job, new))
    return Plan(tuple(puts), events=tuple(events), why="; ".join(one.why for one in events)) if puts else None


def _new_nodes(view: View, seating: Seating, job: JobView) -> list[NodeId]:
    """Open, as it wishes, and large enough were they empty."""
    shape = job.spec.shape
    able = seating.rows.eligible(shape) & (seating.board.slots(shape) > 0)
    found = (view.room.ids[slot] for slot in np.nonzero(able)[0].tolist())
    return [node for node in found if node not in job.pinned]


def _blocks(job: JobView, new: list[NodeId]) -> list[PinBlock]:
    nodes = [*job.pinned, *new]
    first = len(job.pinned) // BLOCK_TASKS
    last = (len(nodes) - 1) // BLOCK_TASKS
    return [
        PinBlock(job.spec.id, block, tuple(nodes[block * BLOCK_TASKS : (block + 1) * BLOCK_TASKS]))
        for block in range(first, last + 1)
    ]


def _event(view: View, job: JobView, new: list[NodeId]) -> Event:
    first = len(job.pinned)
    ranges = Ranges(list(range(first, first + len(new))))
    where = f"node {view.nodes[new[0]].spec.name}" if len(new) == 1 else f"{len(new)} nodes"
    why = f"task{'s' if len(new) > 1 else ''} {ranges} of job {job.spec.id} wanted on {where}"
    return Event("task.wanted", why, job=job.spec.id, indices=tuple(ranges.pairs))


def seat(view: View, seating: Seating, job: JobView, ready: list[int], barred: Array | None) -> Pinned:
    """Each on its own node, if that has room now; taken off the board."""
    shape, nodes = job.spec.shape, list(job.pinned)
    seats: list[Seat] = []
    here: list[int] = []
    left: list[int] = []
    for index in ready:
        slot = view.room.slot.get(nodes[index])
        worth = seating.rows.of(shape)
        if slot is None or worth[slot] == NEVER or (barred is not None and barred[slot]):
            left.append(index)
            continue
        devices = choose_devices(seating.rows, shape, slot) if seating.board.devices.shape[1] else 0
        seating.board.take(shape, slot, 1, devices)
        seats.append(Seat(slot, devices))
        here.append(index)
    chosen = seats[0].slot if seats else -1
    return Pinned([*here, *left], Seated(seats, chosen, len(seats)))


def elsewhere(view: View, job: JobView, left: list[int]) -> Array:
    """The nodes that are not for any of these tasks; one of theirs may be deleted by now."""
    nodes, slots = list(job.pinned), view.room.slot
    barred = np.ones(view.room.size, np.bool_)
    barred[[slots[nodes[index]] for index in left if nodes[index] in slots]] = False
    return barred
