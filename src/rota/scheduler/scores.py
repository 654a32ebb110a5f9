"""How good is a node for a shape? In points, absolute: 100 is a whole node, idle against full."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from rota.model.amounts import GPU
from rota.model.columns import Array
from rota.model.room import Room
from rota.model.shape import Policy, Shape
from rota.scheduler.board import Board, Nodes
from rota.scheduler.filters import admitted
from rota.scheduler.gpus import Gpus

NEVER = -np.inf
_HALF = 50.0  # points of cpu, and of memory
_MILLI_A_POINT = 10.0  # thousandths of a GPU that are a point: a whole one is a whole node
_GPU_NODE = 200.0  # what asks for no GPU stays away from nodes that have some, while others fit
_PACK = Policy.PACK  # enum members are slow to look up, and this one is asked for at every placement
SAME_NOISE = 20  # points that a neighbour of the same kind of noise costs, unless configured otherwise

Interference = Mapping[str, Mapping[str, int]]  # kind of noise -> kind of its neighbour -> points


class Score(Protocol):
    """An opinion of one's own on which node is good for a shape: a plugin of the group `rota.scores`.

    It may look at nothing but the nodes it is given, and gives points for each, which are added up. What it
    says of a node may change only when that node does.
    """

    name: str

    def points(self, nodes: Nodes) -> Array: ...


def said(room: Room, shape: Shape) -> Array | None:
    """Points for what is said of the nodes, NEVER where that excludes them; None where it says nothing."""
    silent = not shape.where and not shape.prefer and not any(room.taints)
    if silent and room.outside(shape.cluster) is None:
        return None
    found = np.where(admitted(room, shape), 0.0, NEVER)
    for one in shape.prefer:
        found += one.weight * np.array([one.condition.holds(labels) for labels in room.labels], np.float64)
    return found


def points(nodes: Nodes, interference: Interference, gpus: Gpus) -> Array:
    """Of nodes that fit, by their state alone."""
    shape = nodes.shape
    if shape.policy is Policy.PACK:
        found: Array = nodes.idle() * -_HALF
    else:
        found = nodes.idle() - nodes.wholly_idle - nodes.outside_load
        found *= _HALF
    if nodes.any_gpu:
        found = _on_gpu_nodes(nodes, found, gpus)
    if shape.noise is not None:
        found -= _disturbance(nodes, shape.noise, interference)
    return found


def merits(board: Board, policy: Policy) -> Array:
    """The same of all nodes, where neither GPUs nor noise play a part."""
    if policy is Policy.PACK:
        packed: Array = board.idle * -_HALF
        return packed
    found: Array = board.idle - len(board.filling) - board.outside_load
    return found * _HALF


def merit(board: Board, policy: Policy, slot: int) -> float:
    """And of one: for few nodes plain numbers beat NumPy's cost per call."""
    idle: float = board.idle.item(slot)
    if policy is _PACK:
        return idle * -_HALF
    outside: float = board.outside_load.item(slot)
    return (idle - len(board.filling) - outside) * _HALF


def _on_gpu_nodes(nodes: Nodes, found: Array, gpus: Gpus) -> Array:
    """Nodes with GPUs are judged by how well these fill up, whatever the policy."""
    there = np.nonzero(nodes.capacity(GPU) > 0)[0]
    if there.size:
        density = gpus.rank(nodes.some(there)).score / _MILLI_A_POINT
        asks_none = not any(resource == GPU and amount for resource, amount in nodes.shape.needs)
        found[there] = density - _GPU_NODE if asks_none else density
    return found


def _disturbance(nodes: Nodes, kind: str, interference: Interference) -> Array:
    found = np.zeros(len(nodes))
    for other, cost in {kind: SAME_NOISE, **interference.get(kind, {})}.items():
        if cost:
            found += cost * nodes.noise(other)
    return found
