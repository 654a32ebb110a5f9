"""Placement rules of a laboratory: noise stays away from its nodes, and newer machines come first."""

import numpy as np

from rota.model.columns import Array
from rota.scheduler.placement.board import NodeSlice

POINTS_A_GENERATION = 5.0
GENERATIONS_MAX = 20


class QuietLab:
    """What makes noise of any kind runs on no node whose name begins with `lab-`."""

    name = "nothing noisy runs in the lab"  # as `rota why` counts it

    def allows(self, nodes: NodeSlice) -> Array:
        if nodes.shape.noise is None:
            return np.ones(len(nodes), np.bool_)
        return np.array([not labels["node"].startswith("lab-") for labels in nodes.labels], np.bool_)


class NewerFirst:
    """Five points for each generation of the machine, as its label `generation` says."""

    name = "newer machines first"

    def points(self, nodes: NodeSlice) -> Array:
        return POINTS_A_GENERATION * np.array(
            [_generation(labels.get("generation")) for labels in nodes.labels]
        )


def _generation(said: str | None) -> float:
    """Nothing, or nonsense, is as good as the oldest."""
    return float(min(int(said), GENERATIONS_MAX)) if said is not None and said.isdecimal() else 0.0
