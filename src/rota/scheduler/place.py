"""Many tasks of one shape onto nodes: every node considered, the idlest first, ties by the node's slot."""

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
    start, step = _usage(space, shape, candidates)
    times = np.minimum(copies[candidates], wanted)
    order = np.repeat(np.arange(candidates.size), times)
    nth = np.arange(order.size) - np.repeat(np.cumsum(times) - times, times)
    usage = start[order] + step[order] * nth
    best = np.lexsort((candidates[order], usage))[:wanted]
    chosen: list[int] = candidates[order[best]].tolist()
    return chosen


def _usage(space: Space, shape: Shape, slots: Array) -> tuple[Array, Array]:
    """How full each node is, by what is reserved or by its measured load, and by how much a task fills it."""
    room = space.room
    needs = dict(shape.needs)
    start = np.zeros(slots.size)
    step = np.full(slots.size, 1.0 / NODE_TASKS_MAX)
    for resource in ("cpu", "memory"):
        row = room.rows.get(resource)
        if row is None:
            continue
        capacity = np.maximum(1, room.capacity[row, slots])
        start += 1.0 - np.minimum(space.free[row, slots], capacity) / capacity
        step += needs.get(resource, 0) / capacity
    return np.maximum(start, room.load[slots]), step
