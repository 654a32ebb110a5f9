"""A job + the nodes of one cluster -> how many nodes could run a task of it, and how many tasks fit now."""

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

_ANY_CLUSTER = ""  # replaces the shape's cluster: one pass covers the nodes of all clusters


class FitCalculator:
    """Caches which nodes could run a shape, until labels, taints or capacity of any node change."""

    def __init__(self) -> None:
        self._node_table: NodeTable | None = None
        self._version = -1  # of the node table's feasibility
        self._capable: dict[Shape, Array] = {}  # slots, of all clusters

    def cluster_fit(self, view: View, spec: JobSpec, cluster: str) -> ClusterFit:
        table, shape = view.node_table, msgspec.structs.replace(spec.shape, cluster=_ANY_CLUSTER)
        if (
            table is not self._node_table
            or table.feasibility_version != self._version
            or len(self._capable) >= ROWS_KEPT
        ):
            self._node_table, self._version, self._capable = table, table.feasibility_version, {}
        capable = self._capable.get(shape)
        if capable is None:
            capable = self._capable[shape] = self._capable_slots(table, shape)
        in_cluster = capable[table.cluster[capable] == table.clusters.get(cluster, -1)]
        return ClusterFit(
            int(in_cluster.size), _fitting_tasks(table, shape, in_cluster[table.open[in_cluster]])
        )

    def _capable_slots(self, node_table: NodeTable, shape: Shape) -> Array:
        capable = matching_nodes_of_all_clusters(node_table, shape) & node_table.expected[: node_table.size]
        for resource, amount in shape.needs:
            row = node_table.rows.get(resource)
            capable &= row is not None and node_table.capacity[row, : node_table.size] >= amount
        slots: Array = np.nonzero(capable)[0]
        return slots


def _fitting_tasks(node_table: NodeTable, shape: Shape, slots: Array) -> int:
    if not slots.size:
        return 0
    free = node_table.free_at(slots)
    most = [free[node_table.rows[resource]] // amount for resource, amount in shape.needs if amount]
    return int(np.maximum(0, np.minimum.reduce(most)).sum()) if most else int(slots.size)
