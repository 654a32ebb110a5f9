"""How good is a node for a shape? In points, absolute: 100 is a whole node, idle against full."""

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
_RESOURCE_POINTS = 50.0  # points of cpu, and of memory
_MILLI_PER_POINT = 10.0  # thousandths of a GPU that are a point: a whole one is a whole node
_GPU_NODE_PENALTY = 200.0  # what asks for no GPU stays away from nodes that have some, while others fit
_PACK = Policy.PACK  # enum members are slow to look up, and this one is asked for at every placement
SAME_NOISE_POINTS = 20  # points that a neighbour of the same kind of noise costs, unless configured otherwise

Interference = Mapping[str, Mapping[str, int]]  # kind of noise -> kind of its neighbour -> points


class Score(Protocol):
    """An opinion of one's own on which node is good for a shape: a plugin of the group `rota.scores`.

    It may look at nothing but the nodes it is given, and gives points for each, which are added up. What it
    says of a node may change only when that node does.
    """

    name: str

    def points(self, nodes: NodeSlice) -> Array: ...


def label_points(node_table: NodeTable, shape: Shape) -> Array | None:
    """Points for what is said of the nodes, NEVER where that excludes them; None where it says nothing."""
    silent = not shape.where and not shape.prefer and not any(node_table.taints)
    if silent and node_table.other_clusters(shape.cluster) is None:
        return None
    found = np.where(matching_nodes(node_table, shape), 0.0, EXCLUDED)
    for one in shape.prefer:
        found += one.weight * np.array(
            [one.condition.holds(labels) for labels in node_table.labels], np.float64
        )
    return found


def state_points(nodes: NodeSlice, interference: Interference, gpus: GpuScorer) -> Array:
    """Of nodes that fit, by their state alone."""
    shape = nodes.shape
    if shape.policy is Policy.PACK:
        found: Array = nodes.idle() * -_RESOURCE_POINTS
    else:
        found = nodes.idle() - nodes.idle_max - nodes.outside_load
        found *= _RESOURCE_POINTS
    if nodes.has_gpus:
        found = _with_gpu_density(nodes, found, gpus)
    if shape.noise is not None:
        found -= _interference_cost(nodes, shape.noise, interference)
    return found


def idle_points(board: Board, policy: Policy) -> Array:
    """The same of all nodes, where neither GPUs nor noise play a part."""
    if policy is Policy.PACK:
        packed: Array = board.idle * -_RESOURCE_POINTS
        return packed
    found: Array = board.idle - len(board.idle_rows) - board.outside_load
    return found * _RESOURCE_POINTS


def idle_points_at(board: Board, policy: Policy, slot: int) -> float:
    """And of one: for few nodes plain numbers beat NumPy's cost per call."""
    idle: float = board.idle.item(slot)
    if policy is _PACK:
        return idle * -_RESOURCE_POINTS
    outside: float = board.outside_load.item(slot)
    return (idle - len(board.idle_rows) - outside) * _RESOURCE_POINTS


def _with_gpu_density(nodes: NodeSlice, found: Array, gpus: GpuScorer) -> Array:
    """Nodes with GPUs are judged by how well these fill up, whatever the policy."""
    there = np.nonzero(nodes.capacity(GPU) > 0)[0]
    if there.size:
        density = gpus.rank(nodes.subset(there)).score / _MILLI_PER_POINT
        asks_none = not any(resource == GPU and amount for resource, amount in nodes.shape.needs)
        found[there] = density - _GPU_NODE_PENALTY if asks_none else density
    return found


def _interference_cost(nodes: NodeSlice, kind: str, interference: Interference) -> Array:
    found = np.zeros(len(nodes))
    for other, cost in {kind: SAME_NOISE_POINTS, **interference.get(kind, {})}.items():
        if cost:
            found += cost * nodes.noise(other)
    return found
