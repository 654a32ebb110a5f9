"""Placement plugins of a laboratory: no noisy jobs on its nodes, and newer machines first."""

import numpy as np

from rota.model.columns import Array
from rota.scheduler.placement.board import NodeSlice

POINTS_A_GENERATION = 5.0
GENERATIONS_MAX = 20


class QuietLab:
    """Filter: jobs with any kind of noise run on no node whose name starts with `lab-`."""

    name = "nothing noisy runs in the lab"  # shown by `rota why`

    def allows(self, nodes: NodeSlice) -> Array:
        if nodes.shape.noise is None:
            return np.ones(len(nodes), np.bool_)
        return np.array([not labels["node"].startswith("lab-") for labels in nodes.labels], np.bool_)


class NewerFirst:
    """Score: five points for each generation of the machine, by its label `generation`."""

    name = "newer machines first"

    def points(self, nodes: NodeSlice) -> Array:
        return POINTS_A_GENERATION * np.array(
            [_generation(labels.get("generation")) for labels in nodes.labels]
        )


def _generation(label: str | None) -> float:
    """The generation; a missing or invalid label counts as the oldest."""
    return float(min(int(label), GENERATIONS_MAX)) if label is not None and label.isdecimal() else 0.0
