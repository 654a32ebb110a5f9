"""Points of a node for a shape. The scale is absolute: an idle node and a full one differ by 100."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from rota.model.amounts import GPU
from rota.model.columns import Array
from rota.model.node_table import NodeTable
from rota.model.shape import Policy, Shape
from rota.scheduler.placement.board import Board, NodeSlice
from rota.scheduler.placement.filters import matching_nodes
from rota.scheduler.placement.gpus import GpuScorer

EXCLUDED = -np.inf
_RESOURCE_POINTS = 50.0  # points of CPU, and of memory
_MILLI_PER_POINT = 10.0  # thousandths of a GPU per point: a whole GPU equals a whole node
_GPU_NODE_PENALTY = 200.0  # tasks without GPUs avoid GPU nodes while others fit
_PACK = Policy.PACK  # enum members are slow to look up, and this one is needed at every placement
SAME_NOISE_POINTS = 20  # cost of a neighbour with the same kind of noise, unless configured

Interference = Mapping[str, Mapping[str, int]]  # kind of noise -> kind of its neighbour -> points


class Score(Protocol):
    """A plugin of the entry point group `rota.scores`: gives each node points for a shape.

    It may read nothing but the nodes it is given. Its points for a node may change only when that node
    changes: score rows cache them.
    """

    name: str

    def points(self, nodes: NodeSlice) -> Array: ...


def label_points(node_table: NodeTable, shape: Shape) -> Array | None:
    """Points for labels and taints, EXCLUDED where they forbid the shape; None where none of them matters."""
    # None is the common case and saves an array per row and an addition per rescore.
    unaffected = not shape.where and not shape.prefer and not any(node_table.taints)
    if unaffected and node_table.other_clusters(shape.cluster) is None:
        return None
    found = np.where(matching_nodes(node_table, shape), 0.0, EXCLUDED)
    for preference in shape.prefer:
        found += preference.weight * np.array(
            [preference.condition.holds(labels) for labels in node_table.labels], np.float64
        )
    return found


def state_points(nodes: NodeSlice, interference: Interference, gpus: GpuScorer) -> Array:
    """Points of fitting nodes by their state: idleness, load, GPUs and noise."""
    shape = nodes.shape
    if shape.policy is Policy.PACK:
        found: Array = nodes.idle() * -_RESOURCE_POINTS
    else:
        # Load lowers the score and never excludes a node: cores can be shared, so a busy
        # node is slow and not broken.
        found = nodes.idle() - nodes.idle_max - nodes.outside_load
        found *= _RESOURCE_POINTS
    if nodes.has_gpus:
        found = _with_gpu_density(nodes, found, gpus)
    if shape.noise is not None:
        found -= _interference_cost(nodes, shape.noise, interference)
    return found


def idle_points(board: Board, policy: Policy) -> Array:
    """`state_points` of all nodes, where neither GPUs nor noise matter."""
    if policy is Policy.PACK:
        packed: Array = board.idle * -_RESOURCE_POINTS
        return packed
    found: Array = board.idle - len(board.idle_rows) - board.outside_load
    return found * _RESOURCE_POINTS


def idle_points_at(board: Board, policy: Policy, slot: int) -> float:
    """`idle_points` of one node: for few nodes plain Python is faster than NumPy."""
    idle: float = board.idle.item(slot)
    if policy is _PACK:
        return idle * -_RESOURCE_POINTS
    outside: float = board.outside_load.item(slot)
    return (idle - len(board.idle_rows) - outside) * _RESOURCE_POINTS


def _with_gpu_density(nodes: NodeSlice, found: Array, gpus: GpuScorer) -> Array:
    """Score GPU nodes by GPU density instead, whatever the policy."""
    gpu_nodes = np.nonzero(nodes.capacity(GPU) > 0)[0]
    if gpu_nodes.size:
        density = gpus.rank(nodes.subset(gpu_nodes)).score / _MILLI_PER_POINT
        needs_none = not any(resource == GPU and amount for resource, amount in nodes.shape.needs)
        found[gpu_nodes] = density - _GPU_NODE_PENALTY if needs_none else density
    return found


def _interference_cost(nodes: NodeSlice, kind: str, interference: Interference) -> Array:
    found = np.zeros(len(nodes))
    for other, cost in {kind: SAME_NOISE_POINTS, **interference.get(kind, {})}.items():
        if cost:
            found += cost * nodes.noise(other)
    return found
