"""Phase: a task's state as people see it, and what its attempt holds of its node, from three blocks."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from rota.model.attempt import LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import Array, column
from rota.model.lifecycle import ATTEMPT_FIRST_END, TASK_FIRST_END, AttemptState, TaskState
from rota.model.task import TaskBlock


class Phase(IntEnum):
    PENDING = 0
    OFFERED = 1
    QUEUED = 2
    ACCEPTED = 3
    RUNNING = 4
    STOPPING = 5
    SUCCEEDED = 6
    FAILED = 7
    CANCELED = 8
    TIMED_OUT = 9
    LOST = 10


class Hold(IntEnum):
    """What an attempt holds of its node."""

    NOTHING = 0
    A_PLACE_IN_LINE = 1  # lookahead, not started yet
    ROOM = 2


FIRST_END = Phase.SUCCEEDED
_OF_ATTEMPT = np.array([Phase.OFFERED, Phase.QUEUED, Phase.ACCEPTED, Phase.RUNNING, Phase.STOPPING], np.uint8)
_FROM_TASK = Phase.SUCCEEDED - TaskState.SUCCEEDED  # ends are in the same order in both


# Plain numbers: enum members are slow to look up, and these are needed for every block at every change.
_RUNNING, _STOPPING = int(Phase.RUNNING), int(Phase.STOPPING)
_ROOM, _LINE = int(Hold.ROOM), int(Hold.A_PLACE_IN_LINE)
_ATTEMPT_END, _REFUSED, _ACCEPTED = (
    int(ATTEMPT_FIRST_END),
    int(AttemptState.REFUSED),
    int(AttemptState.ACCEPTED),
)
_TASK_END, _UNWANTED = int(TASK_FIRST_END), int(TaskState.UNWANTED)


class Cells(NamedTuple):
    """One entry per task of a block."""

    phase: Array
    hold: Array


def cells(
    size: int, task: TaskBlock | None, attempt: AttemptBlock | None, status: StatusBlock | None
) -> Cells:
    phase = np.zeros(size, np.uint8)
    hold = np.zeros(size, np.uint8)
    if attempt is not None:
        number = column(attempt, "number")
        state = np.zeros(size, np.uint8)  # AttemptState.OFFERED
        if status is not None:
            state = np.where(column(status, "number") == number, column(status, "state"), state)
        live = (number > 0) & (state < _ATTEMPT_END)
        phase[live] = _OF_ATTEMPT[state[live]]
        # Ended, and the controllers have not looked yet: still counted as running, never seen outside.
        ending = (number > 0) & (state >= _ATTEMPT_END) & (state < _REFUSED)
        if task is not None:
            ending &= column(attempt, "tries") == column(task, "wanted")
        phase[ending] = _RUNNING
        in_line = (column(attempt, "flags") & LOOKAHEAD > 0) & (state < _ACCEPTED)
        hold[live] = np.where(in_line[live], _LINE, _ROOM)
    if task is not None:
        wanted_state = column(task, "state")
        ended = wanted_state >= _TASK_END
        phase[ended] = wanted_state[ended] + _FROM_TASK
        phase[wanted_state == _UNWANTED] = _STOPPING
    return Cells(phase, hold)
