"""Of each class of nodes the best one for a shape, and the next; looked for again where a node changed."""

from typing import NamedTuple

import numpy as np

from rota.model.columns import Array
from rota.scheduler.placement.affinity_counts import NodeClasses
from rota.scheduler.placement.board import Board
from rota.scheduler.placement.scores import EXCLUDED


class BestTwo(NamedTuple):
    """The best of some nodes, and who comes second; the lower slot among equals."""

    slot: int = -1
    fitting: int = 0  # nodes that were to choose from
    points: float = 0.0
    runner_up: int | None = None  # slot
    runner_up_points: float = 0.0


NONE_FITS = BestTwo()


class BestNodes:
    """Nodes of one class are alike to every rule of a job: what its rules add is the same for all of them."""

    def __init__(self, classes: NodeClasses) -> None:
        self.classes = classes
        self._best_by_class = [NONE_FITS] * len(classes.slots)
        self._version: object = None
        self._position = -1  # of the board's log

    def sync(self, board: Board, points: Array, version: object) -> None:
        """These are the shape's points now; `version` is another one when all of them may have changed."""
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
        """With what the rules add to each class; none of a class that they forbid."""
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
    """Of nodes that may be NEVER; `fitting` is how many are not, where that is known."""
    if fitting is None:
        fitting = count_fitting(worth)
    if not fitting:
        return NONE_FITS
    best = int(worth.argmax())
    points = worth.item(best)
    if fitting == 1:
        return BestTwo(best, 1, points)
    worth[best] = EXCLUDED  # for a moment
    second = int(worth.argmax())
    worth[best] = points
    return BestTwo(best, fitting, points, second, worth.item(second))


def count_fitting(points: Array) -> int:
    """On how many nodes they are not NEVER."""
    return int(np.count_nonzero(np.isfinite(points)))
