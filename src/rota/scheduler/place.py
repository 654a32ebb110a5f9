"""Many tasks of one shape onto nodes: every node considered, the idlest first, ties by the node's slot."""

from typing import NamedTuple

import numpy as np

from rota.model.columns import Array
from rota.model.job import Shape
from rota.model.limits import NODE_TASKS_MAX
from rota.model.room import Room


class Space:
    """What is free during one round: a copy that placements are taken from."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.free = room.free()
        self.held = room.held[: room.size].copy()
        self.queued = room.queued[: room.size].copy()

    def fits(self, shape: Shape, allowed: Array) -> Array:
        """How many more tasks of this shape each node can take."""
        return self._copies(shape, allowed, self.free)

    def slots(self, shape: Shape, allowed: Array) -> Array:
        """How many tasks of this shape each node runs at once when it has nothing else."""
        return self._copies(shape, allowed, self.room.capacity[:, : self.room.size])

    def take(self, shape: Shape, slot: int, times: int) -> None:
        for resource, amount in shape.needs:
            if amount:
                self.free[self.room.rows[resource], slot] -= amount * times
        self.held[slot] += times

    def _copies(self, shape: Shape, allowed: Array, amounts: Array) -> Array:
        copies = np.where(allowed, np.maximum(0, NODE_TASKS_MAX - self.held), 0)
        for resource, amount in shape.needs:
            row = self.room.rows.get(resource)
            if amount <= 0:
                continue
            if row is None:
                return np.zeros_like(copies)
            np.minimum(copies, np.maximum(0, amounts[row]) // amount, out=copies)
        return copies


def place(space: Space, shape: Shape, wanted: int, copies: Array) -> list[int]:
    """Slots for up to `wanted` tasks, in the order in which a task at a time would choose them."""
    candidates = np.nonzero(copies)[0]
    if candidates.size == 0 or wanted <= 0:
        return []
    usage = _usage(space, shape, candidates)
    times = np.minimum(copies[candidates], wanted)
    order = np.repeat(np.arange(candidates.size), times)
    nth = np.arange(order.size) - np.repeat(np.cumsum(times) - times, times)
    fill = np.maximum(usage.start[order] + usage.step[order] * nth, usage.least[order])
    best = np.lexsort((candidates[order], fill))[:wanted]
    chosen: list[int] = candidates[order[best]].tolist()
    return chosen


class Usage(NamedTuple):
    """How full nodes are by what is reserved, how much a task fills them, how busy they are at least."""

    start: Array
    step: Array
    least: Array


def _usage(space: Space, shape: Shape, slots: Array) -> Usage:
    room = space.room
    needs = dict(shape.needs)
    start = space.held[slots] / NODE_TASKS_MAX
    step = np.full(slots.size, 1.0 / NODE_TASKS_MAX)
    for resource in ("cpu", "memory"):
        row = room.rows.get(resource)
        if row is None:
            continue
        capacity = np.maximum(1, room.capacity[row, slots])
        start += 1.0 - np.minimum(space.free[row, slots], capacity) / capacity
        step += needs.get(resource, 0) / capacity
    return Usage(start, step, room.load[slots])
