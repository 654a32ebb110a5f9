"""Phase of a task as users see it, and what its attempt holds of its node; derived from three blocks."""

from collections.abc import Iterable
from enum import IntEnum

import msgspec
import numpy as np

from rota.model.attempt import EVICTED, LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import FEW, column, ints
from rota.model.lifecycle import ATTEMPT_FIRST_END, AttemptState, TaskState
from rota.model.task import TaskBlock


class Phase(IntEnum):
    PENDING = 0
    OFFERED = 1
    QUEUED = 2
    ACCEPTED = 3
    RUNNING = 4
    STOPPING = 5
    UNRESOLVED = 6  # lost with its node; its recovery controller has not decided yet
    SUCCEEDED = 7
    FAILED = 8
    CANCELED = 9
    TIMED_OUT = 10
    LOST = 11
    HELD = 12  # not ended, and no live attempt


class NodeHold(IntEnum):
    """The resources of its node that an attempt holds."""

    NOTHING = 0
    LOOKAHEAD = 1  # lookahead, not started yet
    RESERVED = 2
    RESERVED_UNTIL_STOPPED = 3  # evicted: it is being stopped


FIRST_END = Phase.SUCCEEDED
AFTER_ENDS = Phase.HELD  # terminal phases are below it
# Terminal states and HELD are in the same order in both enums.
_FROM_TASK = Phase.SUCCEEDED - TaskState.SUCCEEDED
_FROM_ATTEMPT = Phase.OFFERED - AttemptState.OFFERED  # and so are the live states


# Plain numbers: enum members are slow to look up, and these are needed for every block at every change.
_RUNNING, _STOPPING, _UNRESOLVED = int(Phase.RUNNING), int(Phase.STOPPING), int(Phase.UNRESOLVED)
_RESERVED, _LOOKAHEAD, _UNTIL_STOPPED = (
    int(NodeHold.RESERVED),
    int(NodeHold.LOOKAHEAD),
    int(NodeHold.RESERVED_UNTIL_STOPPED),
)
_ATTEMPT_END, _REFUSED, _ACCEPTED = (
    int(ATTEMPT_FIRST_END),
    int(AttemptState.REFUSED),
    int(AttemptState.ACCEPTED),
)
_UNWANTED = int(TaskState.UNWANTED)


# A scaled-down task: pending ones count as canceled without a record, live ones are stopping.
_SCALED_DOWN = bytes.maketrans(
    bytes([Phase.PENDING, Phase.HELD, Phase.UNRESOLVED, *range(Phase.OFFERED, Phase.STOPPING)]),
    bytes([Phase.CANCELED] * 3 + [Phase.STOPPING] * (Phase.STOPPING - Phase.OFFERED)),
)


class BlockPhases(msgspec.Struct, frozen=True):
    """Phase and hold of each task of a block, one byte each."""

    phase: bytes
    hold: bytes

    def changed(
        self,
        positions: Iterable[int],
        task: TaskBlock | None,
        attempt: AttemptBlock | None,
        status: StatusBlock | None,
    ) -> "BlockPhases":
        """A copy with the tasks at these positions computed again."""
        phase, hold = bytearray(self.phase), bytearray(self.hold)
        for at in positions:
            task_phase = _task_phase(at, task, attempt, status)
            phase[at], hold[at] = task_phase.phase, task_phase.hold
        return BlockPhases(bytes(phase), bytes(hold))

    def bounded(self, size: int) -> "BlockPhases":
        """A copy in which tasks from index `size` on are scaled down."""
        return BlockPhases(self.phase[:size] + self.phase[size:].translate(_SCALED_DOWN), self.hold)


class _TaskPhase(msgspec.Struct, frozen=True):
    phase: int
    hold: int


def block_phases(
    size: int, task: TaskBlock | None, attempt: AttemptBlock | None, status: StatusBlock | None
) -> BlockPhases:
    """Phases of a whole block. Most jobs have one task, for which plain Python is faster than NumPy."""
    if size > FEW:
        return _block_phases_vectorised(size, task, attempt, status)
    return BlockPhases(bytes(size), bytes(size)).changed(range(size), task, attempt, status)


def _task_phase(
    at: int, task: TaskBlock | None, attempt: AttemptBlock | None, status: StatusBlock | None
) -> _TaskPhase:
    """Phase of one task. An attempt newer than its status is only offered."""
    phase = hold = 0
    number = 0 if attempt is None else ints(attempt, "number")[at]
    if attempt is not None and number:
        state = status.state[at] if status is not None and ints(status, "number")[at] == number else 0
        if state < _ATTEMPT_END:
            phase = state + _FROM_ATTEMPT
            hold = _LOOKAHEAD if attempt.flags[at] & LOOKAHEAD and state < _ACCEPTED else _RESERVED
            if attempt.flags[at] & EVICTED:
                phase, hold = _STOPPING, _UNTIL_STOPPED if hold == _RESERVED else hold
        # Compared by try: after a retry was decided, this attempt is of an older
        # one, and the task is pending.
        elif state < _REFUSED and (task is None or ints(task, "wanted")[at] == ints(attempt, "tries")[at]):
            phase = _RUNNING  # ended, and the controllers have not decided yet
    if task is not None and at in task.losses:
        phase = _UNRESOLVED
    if task is not None and (task_state := task.state[at]):
        phase = _STOPPING if task_state == _UNWANTED else task_state + _FROM_TASK
    return _TaskPhase(phase, hold)


def _block_phases_vectorised(
    size: int, task: TaskBlock | None, attempt: AttemptBlock | None, status: StatusBlock | None
) -> BlockPhases:
    phase = np.zeros(size, np.uint8)
    hold = np.zeros(size, np.uint8)
    if attempt is not None:
        number = column(attempt, "number")
        state = np.zeros(size, np.uint8)  # AttemptState.OFFERED
        if status is not None:
            state = np.where(column(status, "number") == number, column(status, "state"), state)
        live = (number > 0) & (state < _ATTEMPT_END)
        phase[live] = state[live] + _FROM_ATTEMPT
        # Ended, and the controllers have not decided yet: counted as running until the batch is complete.
        ending = (number > 0) & (state >= _ATTEMPT_END) & (state < _REFUSED)
        if task is not None:
            ending &= column(attempt, "tries") == column(task, "wanted")
        phase[ending] = _RUNNING
        is_lookahead = (column(attempt, "flags") & LOOKAHEAD > 0) & (state < _ACCEPTED)
        hold[live] = np.where(is_lookahead[live], _LOOKAHEAD, _RESERVED)
        evicted = live & (column(attempt, "flags") & EVICTED > 0)
        phase[evicted] = _STOPPING
        hold[evicted & (hold == _RESERVED)] = _UNTIL_STOPPED
    if task is not None:
        phase[list(task.losses)] = _UNRESOLVED
        task_state = column(task, "state")
        ended = task_state > _UNWANTED
        phase[ended] = task_state[ended] + _FROM_TASK
        phase[task_state == _UNWANTED] = _STOPPING
    return BlockPhases(phase.tobytes(), hold.tobytes())
