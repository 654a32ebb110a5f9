"""An ended attempt is the end of its task, or another try: by whose fault it was and what the job allows."""

import pytest

from rota.controllers.retry import Verdict, judge, pause_ms
from rota.model.job import Recovery
from rota.model.lifecycle import ATTEMPT_FIRST_END, NOT_A_TRY, AttemptState, TaskEvent
from rota.model.shape import RunMode
from rota.testing.builders import job_spec


def test_success_is_success_whether_wished_any_more_or_not() -> None:
    assert judge(job_spec(), AttemptState.SUCCEEDED, 0, wanted=True) == Verdict(TaskEvent.DONE)
    assert judge(job_spec(), AttemptState.SUCCEEDED, 0, wanted=False) == Verdict(TaskEvent.DONE)


@pytest.mark.parametrize(
    ("retries", "failures", "event"),
    [
        (0, 0, TaskEvent.SPENT),
        (1, 0, TaskEvent.AGAIN),
        (1, 1, TaskEvent.SPENT),
        (3, 2, TaskEvent.AGAIN),
        (3, 3, TaskEvent.SPENT),
    ],
)
def test_a_failure_is_tried_again_as_often_as_the_job_allows(
    retries: int, failures: int, event: TaskEvent
) -> None:
    verdict = judge(job_spec(retries=retries), AttemptState.FAILED, failures, wanted=True)

    assert verdict.event is event
    assert verdict.spends_a_retry == (event is TaskEvent.AGAIN)


def test_a_failure_of_a_task_that_is_no_longer_wished_is_not_tried_again() -> None:
    assert judge(job_spec(retries=9), AttemptState.FAILED, 0, wanted=False) == Verdict(TaskEvent.SPENT)


def test_the_pause_doubles_from_a_second_to_a_minute() -> None:
    assert [pause_ms(failures) for failures in range(8)] == [
        1000,
        2000,
        4000,
        8000,
        16000,
        32000,
        60000,
        60000,
    ]
    assert pause_ms(1000) == 60_000


def test_a_time_limit_is_not_tried_again() -> None:
    assert judge(job_spec(retries=9), AttemptState.TIMED_OUT, 0, wanted=True) == Verdict(TaskEvent.OVERTIME)


def test_what_was_stopped_though_it_is_wanted_is_tried_again_for_free() -> None:
    assert judge(job_spec(), AttemptState.STOPPED, 0, wanted=True) == Verdict(TaskEvent.AGAIN)
    assert judge(job_spec(), AttemptState.STOPPED, 0, wanted=False) == Verdict(TaskEvent.STOPPED)


@pytest.mark.parametrize(
    ("owner", "event"),
    [
        (Recovery.SCHEDULER, TaskEvent.AGAIN),
        (Recovery.CANCEL, TaskEvent.STOPPED),
        (Recovery.NONE, TaskEvent.GONE),
        (Recovery.CONTROLLER, TaskEvent.GONE),
    ],
)
def test_each_recovery_owner_deals_with_a_lost_node_in_its_way_at_no_cost(
    owner: Recovery, event: TaskEvent
) -> None:
    assert judge(job_spec(recovery=owner), AttemptState.LOST, 0, wanted=True) == Verdict(event)
    assert judge(job_spec(recovery=owner), AttemptState.LOST, 0, wanted=False) == Verdict(TaskEvent.GONE)


@pytest.mark.parametrize(
    "ended",
    [
        (AttemptState.LOST),
        (AttemptState.FAILED),
        (AttemptState.STOPPED),
        AttemptState.TIMED_OUT,
    ],
)
def test_what_may_start_once_only_is_never_tried_again(ended: AttemptState) -> None:
    spec = job_spec(run=RunMode.AT_MOST_ONCE, retries=5)

    assert judge(spec, ended, 0, wanted=True).event is not TaskEvent.AGAIN


def test_what_may_start_once_only_and_was_stopped_by_its_node_is_lost_not_canceled() -> None:
    spec = job_spec(run=RunMode.AT_MOST_ONCE)

    assert judge(spec, AttemptState.STOPPED, 0, wanted=True) == Verdict(TaskEvent.GONE)
    assert judge(spec, AttemptState.STOPPED, 0, wanted=False) == Verdict(TaskEvent.STOPPED)


def test_every_end_of_a_try_has_a_verdict_and_nothing_else_has() -> None:
    ends = {state for state in AttemptState if state >= ATTEMPT_FIRST_END} - NOT_A_TRY
    for state in AttemptState:
        if state in ends:
            assert judge(job_spec(), state, 0, wanted=True).event in TaskEvent
        else:
            with pytest.raises(AssertionError):
                judge(job_spec(), state, 0, wanted=True)
