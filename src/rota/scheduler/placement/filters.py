"""Whether a shape may run on a node: constraints on labels, taints, clusters, and free resources."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.columns import Array
from rota.model.node_table import NodeTable
from rota.model.shape import Shape, tolerates
from rota.scheduler.placement.board import Board, NodeSlice

NO_MINIMUM = np.iinfo(np.int64).min
UNSATISFIABLE = np.iinfo(np.int64).max


class Filter(Protocol):
    """A plugin of the entry point group `rota.filters`: decides where a shape may run.

    It returns one truth value for each node it is given and may read nothing but those nodes. Its value for a
    node may change only when that node changes: score rows cache it.
    """

    name: str

    def allows(self, nodes: NodeSlice) -> Array: ...


def node_matches(shape: Shape, labels: Mapping[str, str], taints: tuple[str, ...]) -> bool:
    """Whether labels and taints of a node permit the shape, regardless of free resources."""
    return all(constraint.holds(labels) for constraint in shape.where) and tolerates(shape.tolerate, taints)


def matching_nodes(node_table: NodeTable, shape: Shape) -> Array:
    """Mask of the nodes of its cluster whose labels and taints permit the shape."""
    found = matching_nodes_of_all_clusters(node_table, shape)
    outside = node_table.other_clusters(shape.cluster)
    if outside is not None:
        found &= ~outside
    return found


def matching_nodes_of_all_clusters(node_table: NodeTable, shape: Shape) -> Array:
    """The same mask for nodes of all clusters. Nodes with equal labels and taints are tested once."""
    if not shape.where:
        return np.array(
            [not taints or tolerates(shape.tolerate, taints) for taints in node_table.taints], np.bool_
        )
    labels_used = {constraint.label for constraint in shape.where}
    known: dict[tuple[object, ...], bool] = {}
    found = np.zeros(node_table.size, np.bool_)
    for slot, (labels, taints) in enumerate(zip(node_table.labels, node_table.taints, strict=True)):
        # The key holds every label that a constraint reads. With one missing, the result of one
        # node would be used for another.
        values = (taints, *(labels.get(label) for label in labels_used))
        if values not in known:
            known[values] = node_matches(shape, labels, taints)
        found[slot] = known[values]
    return found


def fits(nodes: NodeSlice, minimum: Array) -> Array:
    """Mask of the nodes on which one more task fits; `minimum` is what has to be free, row by row."""
    found: Array = np.logical_and.reduce(nodes.amounts >= minimum, axis=0)
    for resource, amount in nodes.shape.needs:
        if resource == GPU and amount:
            found &= fits_gpus(nodes.devices, amount)
    return found


def minimum_free(board: Board, shape: Shape) -> Array:
    """Column of the free amounts that one task needs; UNSATISFIABLE if it needs a resource no node has."""
    needs = board.needs(shape)
    least = np.where(needs > 0, needs, NO_MINIMUM)
    if any(amount > 0 and board.row(resource) is None for resource, amount in shape.needs):
        least[0] = UNSATISFIABLE
    return least[:, None]


def fits_gpus(devices: Array, amount: int) -> Array:
    """Mask of the nodes with enough free GPUs: a share on one device, or whole devices."""
    if devices.shape[1] == 0:
        return np.zeros(devices.shape[0], np.bool_)
    if amount < WHOLE_GPU:
        part: Array = devices.max(axis=1) >= amount
        return part
    whole: Array = (devices == WHOLE_GPU).sum(axis=1) * WHOLE_GPU >= amount
    return whole
