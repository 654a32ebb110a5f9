"""May a shape run on a node? By what is said of the node; kept while nothing said of any node changes."""

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
    """A rule of one's own on where a shape may run: a plugin of the group `rota.filters`.

    It may look at nothing but the nodes it is given, one truth value for each. What it says of a node may
    change only when that node does.
    """

    name: str

    def allows(self, nodes: NodeSlice) -> Array: ...


def node_matches(shape: Shape, labels: Mapping[str, str], taints: tuple[str, ...]) -> bool:
    """What is said of a node allows it, were there room."""
    return all(one.holds(labels) for one in shape.where) and tolerates(shape.tolerate, taints)


def matching_nodes(node_table: NodeTable, shape: Shape) -> Array:
    """The same for all nodes of its cluster."""
    found = matching_nodes_of_all_clusters(node_table, shape)
    outside = node_table.other_clusters(shape.cluster)
    if outside is not None:
        found &= ~outside
    return found


def matching_nodes_of_all_clusters(node_table: NodeTable, shape: Shape) -> Array:
    """The same for all nodes, whatever their cluster. Nodes with equal labels and taints are tested once."""
    if not shape.where:
        return np.array(
            [not taints or tolerates(shape.tolerate, taints) for taints in node_table.taints], np.bool_
        )
    asked = {one.label for one in shape.where}
    known: dict[tuple[object, ...], bool] = {}
    found = np.zeros(node_table.size, np.bool_)
    for slot, (labels, taints) in enumerate(zip(node_table.labels, node_table.taints, strict=True)):
        said = (taints, *(labels.get(label) for label in asked))
        if said not in known:
            known[said] = node_matches(shape, labels, taints)
        found[slot] = known[said]
    return found


def fits(nodes: NodeSlice, minimum: Array) -> Array:
    """Is there room for one more? `floor` is the least that has to be free, row by row."""
    room: Array = np.logical_and.reduce(nodes.amounts >= minimum, axis=0)
    for resource, amount in nodes.shape.needs:
        if resource == GPU and amount:
            room &= fits_gpus(nodes.devices, amount)
    return room


def minimum_free(board: Board, shape: Shape) -> Array:
    """As a column. What is not asked for may be short; what no node has is short everywhere."""
    needs = board.needs(shape)
    least = np.where(needs > 0, needs, NO_MINIMUM)
    if any(amount > 0 and board.row(resource) is None for resource, amount in shape.needs):
        least[0] = UNSATISFIABLE
    return least[:, None]


def fits_gpus(devices: Array, amount: int) -> Array:
    """A part of a GPU must be free on one; whole ones must be wholly free."""
    if devices.shape[1] == 0:
        return np.zeros(devices.shape[0], np.bool_)
    if amount < WHOLE_GPU:
        part: Array = devices.max(axis=1) >= amount
        return part
    whole: Array = (devices == WHOLE_GPU).sum(axis=1) * WHOLE_GPU >= amount
    return whole
