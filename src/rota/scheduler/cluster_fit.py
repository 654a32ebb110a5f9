"""A job + the nodes of one cluster -> how many could run a task of it, and how many tasks have room now."""

import msgspec
import numpy as np

from rota.model.cluster import ClusterFit
from rota.model.columns import Array
from rota.model.job import JobSpec
from rota.model.limits import ROWS_KEPT
from rota.model.node_table import NodeTable
from rota.model.shape import Shape
from rota.model.view import View
from rota.scheduler.placement.filters import matching_nodes_of_all_clusters

_ANY_CLUSTER = ""  # in place of a shape's cluster: nodes of all clusters are looked at in one pass


class FitCalculator:
    """Caches which nodes admit a shape, until something that is said of any node changes."""

    def __init__(self) -> None:
        self._node_table: NodeTable | None = None
        self._version = -1  # Room.abilities
        self._capable: dict[Shape, Array] = {}  # slots, of all clusters

    def cluster_fit(self, view: View, spec: JobSpec, cluster: str) -> ClusterFit:
        room, shape = view.node_table, msgspec.structs.replace(spec.shape, cluster=_ANY_CLUSTER)
        if (
            room is not self._node_table
            or room.feasibility_version != self._version
            or len(self._capable) >= ROWS_KEPT
        ):
            self._node_table, self._version, self._capable = room, room.feasibility_version, {}
        able = self._capable.get(shape)
        if able is None:
            able = self._capable[shape] = self._capable_slots(room, shape)
        here = able[room.cluster[able] == room.clusters.get(cluster, -1)]
        return ClusterFit(int(here.size), _fitting_tasks(room, shape, here[room.open[here]]))

    def _capable_slots(self, node_table: NodeTable, shape: Shape) -> Array:
        able = matching_nodes_of_all_clusters(node_table, shape) & node_table.expected[: node_table.size]
        for resource, amount in shape.needs:
            row = node_table.rows.get(resource)
            able &= row is not None and node_table.capacity[row, : node_table.size] >= amount
        slots: Array = np.nonzero(able)[0]
        return slots


def _fitting_tasks(node_table: NodeTable, shape: Shape, slots: Array) -> int:
    if not slots.size:
        return 0
    free = node_table.free_at(slots)
    most = [free[node_table.rows[resource]] // amount for resource, amount in shape.needs if amount]
    return int(np.maximum(0, np.minimum.reduce(most)).sum()) if most else int(slots.size)
