"""A job + the nodes of one cluster -> how many could run a task of it, and how many tasks have room now."""

import msgspec
import numpy as np

from rota.model.columns import Array
from rota.model.fit import Fit
from rota.model.job import JobSpec
from rota.model.limits import ROWS_KEPT
from rota.model.room import Room
from rota.model.shape import Shape
from rota.model.view import View
from rota.scheduler.filters import admitted_anywhere

_ANY = ""  # in place of a shape's cluster: nodes of all clusters are looked at in one pass


class Surveyor:
    """Caches which nodes admit a shape, until something that is said of any node changes."""

    def __init__(self) -> None:
        self._room: Room | None = None
        self._version = -1  # Room.abilities
        self._able: dict[Shape, Array] = {}  # slots, of all clusters

    def look(self, view: View, spec: JobSpec, cluster: str) -> Fit:
        room, shape = view.room, msgspec.structs.replace(spec.shape, cluster=_ANY)
        if room is not self._room or room.abilities != self._version or len(self._able) >= ROWS_KEPT:
            self._room, self._version, self._able = room, room.abilities, {}
        able = self._able.get(shape)
        if able is None:
            able = self._able[shape] = self._find(room, shape)
        here = able[room.cluster[able] == room.clusters.get(cluster, -1)]
        return Fit(int(here.size), _copies(room, shape, here[room.open[here]]))

    def _find(self, room: Room, shape: Shape) -> Array:
        able = admitted_anywhere(room, shape) & room.expected[: room.size]
        for resource, amount in shape.needs:
            row = room.rows.get(resource)
            able &= row is not None and room.capacity[row, : room.size] >= amount
        slots: Array = np.nonzero(able)[0]
        return slots


def _copies(room: Room, shape: Shape, slots: Array) -> int:
    if not slots.size:
        return 0
    free = room.free_at(slots)
    most = [free[room.rows[resource]] // amount for resource, amount in shape.needs if amount]
    return int(np.maximum(0, np.minimum.reduce(most)).sum()) if most else int(slots.size)
