"""Phase and hold of one task, the obvious slow way: what `cells` does to whole columns."""

from typing import NamedTuple

from rota.model.attempt import LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import column
from rota.model.lifecycle import NOT_A_TRY, AttemptState, TaskState
from rota.model.phase import Hold, Phase
from rota.model.task import TaskBlock

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

    @property
    def live(self) -> bool:
        return self.number > 0 and self.attempt in LIVE

    @property
    def phase(self) -> Phase:
        if self.task in ENDED:
            return ENDED[self.task]
        if self.task is TaskState.UNWANTED:
            return Phase.STOPPING
        if self.number == 0 or self.attempt in NOT_A_TRY:
            return Phase.PENDING
        if self.live:
            return LIVE[self.attempt]
        return Phase.RUNNING if self.tries == self.wanted else Phase.PENDING

    @property
    def hold(self) -> Hold:
        if not self.live:
            return Hold.NOTHING
        waits = self.attempt in (AttemptState.OFFERED, AttemptState.QUEUED)
        return Hold.A_PLACE_IN_LINE if self.lookahead and waits else Hold.ROOM


def cell(
    position: int, task: TaskBlock | None, attempt: AttemptBlock | None, status: StatusBlock | None
) -> Cell:
    found = Cell()
    if task is not None:
        found = found._replace(
            task=TaskState(int(column(task, "state")[position])),
            wanted=int(column(task, "wanted")[position]),
            not_before=int(column(task, "not_before")[position]),
        )
    if attempt is None or column(attempt, "number")[position] == 0:
        return found
    found = found._replace(
        number=int(column(attempt, "number")[position]),
        tries=int(column(attempt, "tries")[position]),
        node=attempt.nodes[int(column(attempt, "node")[position])],
        lookahead=bool(column(attempt, "flags")[position] & LOOKAHEAD),
    )
    if status is not None and int(column(status, "number")[position]) == found.number:
        found = found._replace(attempt=AttemptState(int(column(status, "state")[position])))
    return found
