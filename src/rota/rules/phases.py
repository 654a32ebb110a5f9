"""Phase: a task's state as people see it, and what its attempt holds of its node, from three blocks."""

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
    UNRESOLVED = 6  # lost with its node; its controller is to say what becomes of it
    SUCCEEDED = 7
    FAILED = 8
    CANCELED = 9
    TIMED_OUT = 10
    LOST = 11
    HELD = 12  # no end, and nothing lives


class NodeHold(IntEnum):
    """What an attempt holds of its node."""

    NOTHING = 0
    LOOKAHEAD = 1  # lookahead, not started yet
    RESERVED = 2
    RESERVED_UNTIL_STOPPED = 3  # evicted: it is being stopped


FIRST_END = Phase.SUCCEEDED
AFTER_ENDS = Phase.HELD  # ends are below it
_FROM_TASK = Phase.SUCCEEDED - TaskState.SUCCEEDED  # ends, and held, are in the same order in both
_FROM_ATTEMPT = Phase.OFFERED - AttemptState.OFFERED  # and so are the states of what lives


# Plain numbers: enum members are slow to look up, and these are needed for every block at every change.
_RUNNING, _STOPPING, _UNRESOLVED = int(Phase.RUNNING), int(Phase.STOPPING), int(Phase.UNRESOLVED)
_ROOM, _LINE, _FOR_NOW = int(NodeHold.RESERVED), int(NodeHold.LOOKAHEAD), int(NodeHold.RESERVED_UNTIL_STOPPED)
_ATTEMPT_END, _REFUSED, _ACCEPTED = (
    int(ATTEMPT_FIRST_END),
    int(AttemptState.REFUSED),
    int(AttemptState.ACCEPTED),
)
_UNWANTED = int(TaskState.UNWANTED)


# A task beyond what is wanted of its job: what waits is over without a word, what lives is to stop.
_SCALED_DOWN = bytes.maketrans(
    bytes([Phase.PENDING, Phase.HELD, Phase.UNRESOLVED, *range(Phase.OFFERED, Phase.STOPPING)]),
    bytes([Phase.CANCELED] * 3 + [Phase.STOPPING] * (Phase.STOPPING - Phase.OFFERED)),
)


class BlockPhases(msgspec.Struct, frozen=True):
    """One byte per task of a block."""

    phase: bytes
    hold: bytes

    def changed(
        self,
        positions: Iterable[int],
        task: TaskBlock | None,
        attempt: AttemptBlock | None,
        status: StatusBlock | None,
    ) -> "BlockPhases":
        """The same with those at some positions found anew."""
        phase, hold = bytearray(self.phase), bytearray(self.hold)
        for at in positions:
            one = _task_phase(at, task, attempt, status)
            phase[at], hold[at] = one.phase, one.hold
        return BlockPhases(bytes(phase), bytes(hold))

    def bounded(self, size: int) -> "BlockPhases":
        """The same if only the first so many are wanted."""
        return BlockPhases(self.phase[:size] + self.phase[size:].translate(_SCALED_DOWN), self.hold)


class _TaskPhase(msgspec.Struct, frozen=True):
    phase: int
    hold: int


def block_phases(
    size: int, task: TaskBlock | None, attempt: AttemptBlock | None, status: StatusBlock | None
) -> BlockPhases:
    """Of a whole block. Most jobs are one task: a plain loop beats NumPy's cost per call."""
    if size > FEW:
        return _block_phases_vectorised(size, task, attempt, status)
    return BlockPhases(bytes(size), bytes(size)).changed(range(size), task, attempt, status)


def _task_phase(
    at: int, task: TaskBlock | None, attempt: AttemptBlock | None, status: StatusBlock | None
) -> _TaskPhase:
    """Of one task. An attempt newer than its status is merely offered."""
    phase = hold = 0
    number = 0 if attempt is None else ints(attempt, "number")[at]
    if attempt is not None and number:
        state = status.state[at] if status is not None and ints(status, "number")[at] == number else 0
        if state < _ATTEMPT_END:
            phase = state + _FROM_ATTEMPT
            hold = _LINE if attempt.flags[at] & LOOKAHEAD and state < _ACCEPTED else _ROOM
            if attempt.flags[at] & EVICTED:
                phase, hold = _STOPPING, _FOR_NOW if hold == _ROOM else hold
        elif state < _REFUSED and (task is None or ints(task, "wanted")[at] == ints(attempt, "tries")[at]):
            phase = _RUNNING  # ended, and the controllers have not looked yet
    if task is not None and at in task.losses:
        phase = _UNRESOLVED
    if task is not None and (wish := task.state[at]):
        phase = _STOPPING if wish == _UNWANTED else wish + _FROM_TASK
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
        # Ended, and the controllers have not looked yet: still counted as running, never seen outside.
        ending = (number > 0) & (state >= _ATTEMPT_END) & (state < _REFUSED)
        if task is not None:
            ending &= column(attempt, "tries") == column(task, "wanted")
        phase[ending] = _RUNNING
        in_line = (column(attempt, "flags") & LOOKAHEAD > 0) & (state < _ACCEPTED)
        hold[live] = np.where(in_line[live], _LINE, _ROOM)
        evicted = live & (column(attempt, "flags") & EVICTED > 0)
        phase[evicted] = _STOPPING
        hold[evicted & (hold == _ROOM)] = _FOR_NOW
    if task is not None:
        phase[list(task.losses)] = _UNRESOLVED
        wish = column(task, "state")
        beyond = wish > _UNWANTED
        phase[beyond] = wish[beyond] + _FROM_TASK
        phase[wish == _UNWANTED] = _STOPPING
    return BlockPhases(phase.tobytes(), hold.tobytes())
