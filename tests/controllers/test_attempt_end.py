"""Which ends of an attempt are losses, decided by the recovery policy of its job."""

import msgspec
import pytest

from rota.controllers.attempt_end import end_of_attempt, is_loss
from rota.model.attempt import DRAINED, EVICTED, AttemptBlock, StatusBlock
from rota.model.ids import JobId
from rota.model.lifecycle import ATTEMPT_FIRST_END, AttemptState
from rota.model.recovery import EndCause
from rota.testing.builders import job_spec
from rota.testing.records import placed, reported

ONE = JobId("1")
BY_DRAIN = EVICTED | DRAINED
ENDS = [state for state in AttemptState if state >= ATTEMPT_FIRST_END]
LOST, STOPPED = AttemptState.LOST, AttemptState.STOPPED


def blocks(
    state: AttemptState, flags: int = 0, cause: EndCause | None = None
) -> tuple[AttemptBlock, StatusBlock]:
    status = reported(StatusBlock.new(ONE, 0, 1), [0], state)
    causes = {} if cause is None else {0: str(cause)}
    return (
        placed(AttemptBlock.new(ONE, 0, 1), [0], "n1", flags=flags),
        msgspec.structs.replace(status, causes=causes),
    )


@pytest.mark.parametrize(
    ("state", "flags", "cause"),
    [
        (LOST, 0, None),
        (LOST, 0, EndCause.NODE_DOWN),
        (LOST, 0, EndCause.KEEPER_DIED),
        (STOPPED, 0, EndCause.NODE_LEFT),
        (STOPPED, BY_DRAIN, None),
        (LOST, BY_DRAIN, None),
    ],
)
def test_an_end_with_its_node_is_a_loss(state: AttemptState, flags: int, cause: EndCause | None) -> None:
    attempt, status = blocks(state, flags, cause)

    assert is_loss(attempt, status, 0)
    assert end_of_attempt(job_spec(), attempt, status, 0).is_loss


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        (STOPPED, 0),  # by request
        (STOPPED, EVICTED),  # preempted
        (LOST, EVICTED),  # preempted, and then its node was lost
        *((state, BY_DRAIN) for state in ENDS if state not in (LOST, STOPPED)),  # before it could be stopped
    ],
)
def test_own_exits_requested_stops_and_preemptions_are_no_losses(state: AttemptState, flags: int) -> None:
    attempt, status = blocks(state, flags)

    assert not is_loss(attempt, status, 0)
    assert not end_of_attempt(job_spec(), attempt, status, 0).is_loss


def test_a_drained_task_says_why_it_ended() -> None:
    assert end_of_attempt(job_spec(), *blocks(STOPPED, BY_DRAIN), 0).reason == "its node was drained"
