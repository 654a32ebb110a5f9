"""Data of the feasibility report: one job against every node, and the obstacles on each."""

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
    """One reason why nodes do not fit, where it applies, and what would remove it there."""

    reason: WaitReason
    nodes: Array  # mask over the nodes of the report
    lacks: Callable[[int], str]  # short text for one node
    cost: Array | float = NO_REMEDY  # cost of removing it, from 0 on; infinite where nothing helps
    change: Callable[[int], str] = lambda _: ""
    lasting: bool = False  # it applies even to an empty, open node


class FeasibilityReport(NamedTuple):
    """One job against every node of its cluster; columns are in the order of `names`."""

    names: list[str]
    fits: Array  # number of its tasks that fit on each node now
    obstacles: list[Obstacle]
    slots: Array  # of each node in the columns
    barred: Array  # by slot: nodes that the next round excludes for this job

    @property
    def lasting(self) -> Array:
        """Mask of the nodes that could not run the job even if they were empty and open."""
        found = np.zeros(len(self.names), np.bool_)
        for obstacle in self.obstacles:
            if obstacle.lasting:
                found |= obstacle.nodes
        return found


class FeasibilityInput:
    """Inputs that all kinds of obstacles are computed from."""

    def __init__(self, view: View, placer: Placer, spec: JobSpec) -> None:
        self.view = view
        self.placer = placer
        self.board = placer.board
        self.spec = spec
        # Nodes of other clusters can never run it.
        self.nodes: list[NodeView] = [node for node in view.nodes.values() if node.spec.cluster == spec.home]
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
