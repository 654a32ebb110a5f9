"""Phase and hold of one task, computed the simple way, as a reference for `rota.rules.phases`."""

from typing import NamedTuple

from rota.model.attempt import LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import column
from rota.model.lifecycle import NOT_STARTED, AttemptState, TaskState
from rota.model.task import TaskBlock
from rota.rules.phases import FIRST_END, NodeHold, Phase

LIVE = {
    AttemptState.OFFERED: Phase.OFFERED,
    AttemptState.QUEUED: Phase.QUEUED,
    AttemptState.ACCEPTED: Phase.ACCEPTED,
    AttemptState.RUNNING: Phase.RUNNING,
    AttemptState.STOPPING: Phase.STOPPING,
}
ENDED = {
    TaskState.SUCCEEDED: Phase.SUCCEEDED,
    TaskState.FAILED: Phase.FAILED,
    TaskState.CANCELED: Phase.CANCELED,
    TaskState.TIMED_OUT: Phase.TIMED_OUT,
    TaskState.LOST: Phase.LOST,
    TaskState.HELD: Phase.HELD,
}


class Cell(NamedTuple):
    """What the three blocks say of one task."""

    task: TaskState = TaskState.WANTED
    wanted: int = 0
    not_before: int = 0
    number: int = 0  # of the attempt; 0: never placed
    tries: int = 0
    node: str = ""
    lookahead: bool = False
    attempt: AttemptState = AttemptState.OFFERED
    beyond: bool = False  # more than are wanted of its job

    @property
    def live(self) -> bool:
        return self.number > 0 and self.attempt in LIVE

    @property
    def phase(self) -> Phase:
        phase = self._phase
        if self.beyond and phase in (Phase.PENDING, Phase.HELD):
            return Phase.CANCELED
        return Phase.STOPPING if self.beyond and phase < FIRST_END else phase

    @property
    def _phase(self) -> Phase:
        if self.task in ENDED:
            return ENDED[self.task]
        if self.task is TaskState.UNWANTED:
            return Phase.STOPPING
        if self.number == 0 or self.attempt in NOT_STARTED:
            return Phase.PENDING
        if self.live:
            return LIVE[self.attempt]
        return Phase.RUNNING if self.tries == self.wanted else Phase.PENDING

    @property
    def hold(self) -> NodeHold:
        if not self.live:
            return NodeHold.NOTHING
        waits = self.attempt in (AttemptState.OFFERED, AttemptState.QUEUED)
        return NodeHold.LOOKAHEAD if self.lookahead and waits else NodeHold.RESERVED


def cells_one_by_one(
    size: int, task: TaskBlock | None, attempt: AttemptBlock | None, status: StatusBlock | None
) -> list[Cell]:
    found = [Cell()] * size
    if task is not None:
        found = [
            Cell(TaskState(state), wanted, not_before)
            for state, wanted, not_before in _rows(task, "state", "wanted", "not_before")
        ]
    if attempt is None:
        return found
    reports = [(0, 0)] * size if status is None else _rows(status, "number", "state")
    placements = _rows(attempt, "number", "tries", "node", "flags")
    return [
        _attempted(cell, placement, report, attempt)
        for cell, placement, report in zip(found, placements, reports, strict=True)
    ]


def _attempted(cell: Cell, placement: tuple[int, ...], report: tuple[int, ...], block: AttemptBlock) -> Cell:
    number, tries, node, flags = placement
    if number == 0:
        return cell
    state = report[1] if report[0] == number else AttemptState.OFFERED
    return cell._replace(
        number=number,
        tries=tries,
        node=block.nodes[node],
        lookahead=bool(flags & LOOKAHEAD),
        attempt=AttemptState(state),
    )


def _rows(block: TaskBlock | AttemptBlock | StatusBlock, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(column(block, name).tolist() for name in names), strict=True))
