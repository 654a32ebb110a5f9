"""Sight: one job, held against every node; Obstacle: one reason, where it holds, what would remove it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rota.model.columns import Array
from rota.model.job import JobSpec
from rota.model.outlook import WaitReason
from rota.model.view import NodeView, View
from rota.scheduler.explain.phrases import count_of_nodes, join_few
from rota.scheduler.placement.place import Placer

NO_REMEDY = np.inf


class Obstacle(NamedTuple):
    """One reason, where it holds, and what would remove it there."""

    reason: WaitReason
    nodes: Array  # one truth value per node
    lacks: Callable[[int], str]  # what it is on one node, in few words
    cost: Array | float = (
        NO_REMEDY  # how much would have to give way, from 0 on; infinite where nothing helps
    )
    change: Callable[[int], str] = lambda _: ""
    lasting: bool = False  # it holds on an empty, open node as well


class FeasibilityReport(NamedTuple):
    """All nodes, held against one job; columns are in the order of `names`."""

    names: list[str]
    fits: Array  # how many more of its tasks each has room for now
    obstacles: list[Obstacle]
    slots: Array  # of each node in the columns
    barred: Array  # by slot: nodes that the next round leaves out for it

    @property
    def lasting(self) -> Array:
        """Nodes that could not run it, were they empty and open."""
        found = np.zeros(len(self.names), np.bool_)
        for one in self.obstacles:
            if one.lasting:
                found |= one.nodes
        return found


class FeasibilityInput:
    """What every kind of obstacle looks at."""

    def __init__(self, view: View, placer: Placer, spec: JobSpec) -> None:
        self.view = view
        self.placer = placer
        self.board = placer.board
        self.spec = spec
        # Of its cluster only: others are not for it, whatever they have.
        self.nodes: list[NodeView] = [one for one in view.nodes.values() if one.spec.cluster == spec.home]
        self.names = [node.spec.name for node in self.nodes]
        self.slots: Array = np.array([view.node_table.slot[node.spec.id] for node in self.nodes], np.intp)
        self.has_reported = np.array([node.status is not None for node in self.nodes], np.bool_)

    def make_obstacle(self, kind: str, on: Array, text: str, lacks: Callable[[int], str] | str) -> Obstacle:
        reason = WaitReason(kind, int(np.count_nonzero(on)), len(self.nodes), text)
        return Obstacle(reason, on, (lambda _: lacks) if isinstance(lacks, str) else lacks)

    def named_obstacles(self, kind: str, on: list[bool], verb: tuple[str, str]) -> Iterator[Obstacle]:
        names = [name for name, here in zip(self.names, on, strict=True) if here]
        if names:
            text = f"{count_of_nodes(len(names), len(self.names), *verb)}: {join_few(names)}"
            yield self.make_obstacle(kind, np.array(on, np.bool_), text, verb[0])


def without(what: str) -> Callable[[int], str]:
    return lambda _: f"without {what}"
