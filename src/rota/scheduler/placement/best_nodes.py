"""Cache of the best and second-best node of each node class for a shape; updated where nodes changed."""

from typing import NamedTuple

import numpy as np

from rota.model.columns import Array
from rota.scheduler.placement.affinity_counts import NodeClasses
from rota.scheduler.placement.board import Board
from rota.scheduler.placement.scores import EXCLUDED


class BestTwo(NamedTuple):
    """The best of some nodes and the runner-up; the lower slot among equals."""

    slot: int = -1
    fitting: int = 0  # number of nodes that fitted
    points: float = 0.0
    runner_up: int | None = None  # slot
    runner_up_points: float = 0.0


NONE_FITS = BestTwo()


class BestNodes:
    """Best two nodes per class. The rules of a job add the same points to all nodes of one class."""

    def __init__(self, classes: NodeClasses) -> None:
        self.classes = classes
        self._best_by_class = [NONE_FITS] * len(classes.slots)
        self._version: object = None
        self._position = -1  # of the board's log

    def sync(self, board: Board, points: Array, version: object) -> None:
        """Update from the shape's current points.

        A different `version` means that all of them may have changed.
        """
        # Only classes with a changed node are searched again. A new version may have changed every node.
        changed = board.changed_since(self._position) if version == self._version else None
        stale = (
            range(len(self._best_by_class))
            if changed is None
            else set(self.classes.class_of[changed].tolist())
        )
        for number in stale:
            slots = self.classes.slots[number]
            here = best_two(points[slots])
            if here.fitting:
                second = None if here.runner_up is None else slots.item(here.runner_up)
                here = here._replace(slot=slots.item(here.slot), runner_up=second)
            self._best_by_class[number] = here
        self._version, self._position = version, board.log_position

    def best_two(self, added: list[float]) -> BestTwo:
        """The best two of all classes, given the points that rules add to each.

        EXCLUDED: the class is forbidden.
        """
        fitting = 0
        best, second = (EXCLUDED, 1), (EXCLUDED, 1)  # points, and minus the slot
        for head, more in zip(self._best_by_class, added, strict=True):
            if more == EXCLUDED or not head.fitting:
                continue
            fitting += head.fitting
            first = head.points + more, -head.slot
            if first > best:
                best, second = first, best
            elif first > second:
                second = first
            if head.runner_up is not None:
                second = max(second, (head.runner_up_points + more, -head.runner_up))
        if not fitting:
            return NONE_FITS
        if fitting == 1:
            return BestTwo(-best[1], 1, best[0])
        return BestTwo(-best[1], fitting, best[0], -second[1], second[0])


def best_two(worth: Array, fitting: int | None = None) -> BestTwo:
    """The best two by points; `fitting`, if known, is the number of nodes that are not EXCLUDED."""
    if fitting is None:
        fitting = count_fitting(worth)
    if not fitting:
        return NONE_FITS
    best = int(worth.argmax())
    points = worth.item(best)
    if fitting == 1:
        return BestTwo(best, 1, points)
    worth[best] = EXCLUDED  # restored below: a copy of the row would cost more
    second = int(worth.argmax())
    worth[best] = points
    return BestTwo(best, fitting, points, second, worth.item(second))


def count_fitting(points: Array) -> int:
    """Number of nodes that are not EXCLUDED."""
    return int(np.count_nonzero(np.isfinite(points)))
