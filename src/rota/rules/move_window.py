"""How long a MoveOrder restricts where its task is placed next."""

from typing import NamedTuple

from rota.model.columns import ints
from rota.model.job import MoveOrder
from rota.model.limits import MOVE_WAIT_MS
from rota.model.task import TaskBlock


class MoveWindow(NamedTuple):
    """The span of cluster time in which a pending task may only be placed where its move permits."""

    from_ms: int
    until_ms: int


def move_window(move: MoveOrder, task: TaskBlock | None, position: int) -> MoveWindow | None:
    """The window of the task at this position of its block; None: a later try than the moved one is due."""
    wanted = 0 if task is None else ints(task, "wanted")[position]
    # The moved try has been started and has ended since; the move is finished, and a
    # retry is placed like any other.
    if wanted > move.tries + 1:
        return None
    not_before_ms = 0 if task is None else ints(task, "not_before")[position]
    return MoveWindow(not_before_ms, max(not_before_ms, move.at_ms) + MOVE_WAIT_MS)
