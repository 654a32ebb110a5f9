"""Phases and holds of a block equal those of its tasks, each computed alone."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from rota.model.attempt import LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import Draft
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptState, TaskState
from rota.model.task import TaskBlock
from rota.rules.phases import FIRST_END, NodeHold, Phase, block_phases
from rota.testing.records import decided, placed, reported
from tests.model.reference import cells_one_by_one

JOB = JobId("1")


class Row(NamedTuple):
    """The entries of one task in all three records."""

    task: TaskState
    wanted: int
    number: int
    behind: int  # tries since the one the attempt serves
    flags: int
    reported: int  # the attempt the last report was of
    attempt: AttemptState


rows = st.builds(
    Row,
    st.sampled_from(TaskState),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([0, LOOKAHEAD]),
    st.integers(0, 3),
    st.sampled_from(AttemptState),
)


@given(st.lists(rows, min_size=1, max_size=40), st.booleans(), st.booleans(), st.booleans())
def test_phases_of_a_block_equal_the_phases_of_its_tasks(
    table: list[Row], with_task: bool, with_attempt: bool, with_status: bool
) -> None:
    task = task_block(table) if with_task else None
    attempt = attempt_block(table, tried=with_task) if with_attempt else None
    status = status_block(table) if with_status else None
    expected = cells_one_by_one(len(table), task, attempt, status)

    found = block_phases(len(table), task, attempt, status)

    assert list(found.phase) == [row.phase for row in expected]
    assert list(found.hold) == [row.hold for row in expected]


def test_every_task_is_pending_without_records() -> None:
    found = block_phases(3, None, None, None)

    assert list(found.phase) == [Phase.PENDING] * 3
    assert list(found.hold) == [NodeHold.NOTHING] * 3


def test_a_newer_attempt_is_merely_offered() -> None:
    twice = placed(placed(AttemptBlock.new(JOB, 0, 1), [0], "n1"), [0], "n2")
    refused = reported(StatusBlock.new(JOB, 0, 1), [0], AttemptState.REFUSED, number=1)

    found = block_phases(1, None, twice, refused)

    assert (found.phase[0], found.hold[0]) == (Phase.OFFERED, NodeHold.RESERVED)


def test_an_ended_attempt_holds_nothing_even_before_controllers_decide() -> None:
    attempt = placed(AttemptBlock.new(JOB, 0, 1), [0], "n1")
    status = reported(StatusBlock.new(JOB, 0, 1), [0], AttemptState.FAILED)

    found = block_phases(1, None, attempt, status)

    assert (found.phase[0], found.hold[0]) == (Phase.RUNNING, NodeHold.NOTHING)


def test_lookahead_holds_resources_once_it_is_accepted() -> None:
    attempt = placed(AttemptBlock.new(JOB, 0, 1), [0], "n1", flags=LOOKAHEAD)
    holds = [
        block_phases(1, None, attempt, reported(StatusBlock.new(JOB, 0, 1), [0], state)).hold[0]
        for state in (AttemptState.QUEUED, AttemptState.ACCEPTED, AttemptState.RUNNING, AttemptState.STOPPED)
    ]

    assert holds == [NodeHold.LOOKAHEAD, NodeHold.RESERVED, NodeHold.RESERVED, NodeHold.NOTHING]


def test_the_retry_of_a_failed_task_is_pending() -> None:
    attempt = placed(AttemptBlock.new(JOB, 0, 1), [0], "n1")
    status = reported(StatusBlock.new(JOB, 0, 1), [0], AttemptState.FAILED)
    task = decided(TaskBlock.new(JOB, 0, 1), [0], wanted=1, failures=1)

    assert block_phases(1, task, attempt, status).phase[0] == Phase.PENDING


def test_ends_of_phases_and_of_tasks_have_the_same_names() -> None:
    ends = {state.name for state in TaskState} - {TaskState.WANTED.name, TaskState.UNWANTED.name}

    assert {phase.name for phase in Phase if phase >= FIRST_END} == ends


def task_block(table: list[Row]) -> TaskBlock:
    draft = Draft(TaskBlock.new(JOB, 0, len(table)))
    draft["state"][:] = [row.task for row in table]
    draft["wanted"][:] = [row.wanted for row in table]
    return draft.done()


def attempt_block(table: list[Row], *, tried: bool) -> AttemptBlock:
    """Without a task block there was no retry: every attempt is for desired attempt number 0."""
    draft = Draft(AttemptBlock.new(JOB, 0, len(table)))
    draft["number"][:] = [row.number for row in table]
    draft["tries"][:] = [max(0, row.wanted - row.behind) if tried else 0 for row in table]
    draft["flags"][:] = [row.flags for row in table]
    return draft.done(nodes=(NodeId("n1"),))


def status_block(table: list[Row]) -> StatusBlock:
    draft = Draft(StatusBlock.new(JOB, 0, len(table)))
    draft["number"][:] = [row.reported for row in table]
    draft["state"][:] = [row.attempt for row in table]
    return draft.done()
