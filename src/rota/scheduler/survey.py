"""A job + the nodes of one cluster -> how many could run a task of it, and how many tasks have room now."""

import numpy as np

from rota.model.columns import Array
from rota.model.fit import Fit
from rota.model.job import JobSpec, at_home
from rota.model.limits import ROWS_KEPT
from rota.model.room import Room
from rota.model.shape import Shape
from rota.model.view import View
from rota.scheduler.filters import admitted


class Surveyor:
    """Remembers which nodes admit a shape, while nothing that is said of any node changes."""

    def __init__(self) -> None:
        self._room: Room | None = None
        self._version = -1  # Room.doors
        self._able: dict[Shape, Array] = {}  # slots

    def look(self, view: View, spec: JobSpec, cluster: str) -> Fit:
        room, shape = view.room, at_home(spec, cluster).shape
        if room is not self._room or room.doors != self._version or len(self._able) >= ROWS_KEPT:
            self._room, self._version, self._able = room, room.doors, {}
        able = self._able.get(shape)
        if able is None:
            able = self._able[shape] = self._find(room, shape)
        return Fit(int(able.size), _copies(room, shape, able))

    def _find(self, room: Room, shape: Shape) -> Array:
        able = admitted(room, shape) & room.open[: room.size]
        for resource, amount in shape.needs:
            row = room.rows.get(resource)
            able &= row is not None and room.capacity[row, : room.size] >= amount
        slots: Array = np.nonzero(able)[0]
        return slots


def _copies(room: Room, shape: Shape, slots: Array) -> int:
    if not slots.size:
        return 0
    most = [_free(room, room.rows[resource], slots) // amount for resource, amount in shape.needs if amount]
    return int(np.maximum(0, np.minimum.reduce(most)).sum()) if most else int(slots.size)


def _free(room: Room, row: int, slots: Array) -> Array:
    free: Array = np.minimum(room.capacity[row, slots] - room.reserved[row, slots], room.measured[row, slots])
    return free
