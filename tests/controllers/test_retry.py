"""An ended attempt ends its task or is retried, depending on the cause and on what the job permits."""

import pytest

from rota.controllers.attempt_end import AttemptEnd, RetryOutcome
from rota.controllers.retry import backoff_ms, decide_retry
from rota.model.job import Recovery
from rota.model.lifecycle import ATTEMPT_FIRST_END, NOT_STARTED, AttemptState, TaskEvent
from rota.model.recovery import EndCause, Failure, Retry
from rota.model.shape import RunMode
from rota.testing.builders import job_spec


def test_success_counts_whether_the_task_is_still_desired_or_not() -> None:
    assert decide_retry(job_spec(), AttemptEnd(AttemptState.SUCCEEDED), 0, is_wanted=True) == RetryOutcome(
        TaskEvent.SUCCEEDED
    )
    assert decide_retry(job_spec(), AttemptEnd(AttemptState.SUCCEEDED), 0, is_wanted=False) == RetryOutcome(
        TaskEvent.SUCCEEDED
    )


@pytest.mark.parametrize(
    ("retries", "failures", "event"),
    [
        (0, 0, TaskEvent.RETRIES_EXHAUSTED),
        (1, 0, TaskEvent.RETRY),
        (1, 1, TaskEvent.RETRIES_EXHAUSTED),
        (3, 2, TaskEvent.RETRY),
        (3, 3, TaskEvent.RETRIES_EXHAUSTED),
    ],
)
def test_a_failure_is_tried_again_as_often_as_the_job_allows(
    retries: int, failures: int, event: TaskEvent
) -> None:
    verdict = decide_retry(
        job_spec(retries=retries), AttemptEnd(AttemptState.FAILED, 1), failures, is_wanted=True
    )

    assert verdict.event is event
    assert verdict.counts_as_retry == (event is TaskEvent.RETRY)


def test_a_failure_of_a_canceled_task_is_not_retried() -> None:
    assert decide_retry(
        job_spec(retries=9), AttemptEnd(AttemptState.FAILED), 0, is_wanted=False
    ) == RetryOutcome(TaskEvent.RETRIES_EXHAUSTED)


def test_the_backoff_doubles_from_a_second_to_a_minute() -> None:
    even = Retry(jitter_percent=0)

    assert [backoff_ms(even, failures, "1/0/0") for failures in range(8)] == [
        1000,
        2000,
        4000,
        8000,
        16000,
        32000,
        60000,
        60000,
    ]
    assert backoff_ms(even, 1000, "1/0/0") == 60_000


def test_backoff_jitter_is_at_most_a_fifth_and_equal_for_every_leader() -> None:
    pauses = [backoff_ms(Retry(), 3, f"1/{index}/3") for index in range(1000)]

    assert pauses == [backoff_ms(Retry(), 3, f"1/{index}/3") for index in range(1000)]
    assert 6400 <= min(pauses) < 6500
    assert 7900 < max(pauses) <= 8000
    assert len(set(pauses)) > 500


def test_a_job_chooses_its_own_backoff() -> None:
    patient = Retry(delay_ms=5_000, delay_max_ms=12_000, jitter_percent=0)

    assert [backoff_ms(patient, failures, "x") for failures in range(3)] == [5_000, 10_000, 12_000]
    assert backoff_ms(Retry(delay_ms=0), 5, "x") == 0


# ---- by cause

EXIT_3 = AttemptEnd(AttemptState.FAILED, 3)
KILLED = AttemptEnd(AttemptState.FAILED, signal=9)
OOM = AttemptEnd(AttemptState.FAILED, signal=9, cause=EndCause.OOM)
OOM_IN_A_CONTAINER = AttemptEnd(AttemptState.FAILED, 137, cause=EndCause.OOM)
LATE = AttemptEnd(AttemptState.TIMED_OUT, signal=15)


@pytest.mark.parametrize(
    ("retry", "again", "not_again"),
    [
        (Retry(), [EXIT_3, KILLED, OOM], [LATE]),
        (Retry(fail_on=(3,)), [KILLED, OOM], [EXIT_3, LATE]),
        (Retry(codes=(3,)), [EXIT_3], [KILLED, OOM, OOM_IN_A_CONTAINER, LATE]),
        (Retry(codes=(4, 137)), [], [EXIT_3, KILLED, OOM_IN_A_CONTAINER, LATE]),
        (Retry(on=(Failure.SIGNAL,)), [KILLED], [EXIT_3, OOM, OOM_IN_A_CONTAINER, LATE]),
        (Retry(on=(Failure.OOM,)), [OOM, OOM_IN_A_CONTAINER], [EXIT_3, KILLED, LATE]),
        (Retry(on=(Failure.TIMEOUT,)), [LATE], [EXIT_3, KILLED, OOM]),
        (Retry(on=(Failure.TIMEOUT, Failure.SIGNAL), codes=(3,)), [LATE, KILLED, EXIT_3], [OOM]),
        (Retry(fail_on=(0,)), [KILLED], [LATE]),
    ],
)
def test_a_job_chooses_which_failures_are_retried(
    retry: Retry, again: list[AttemptEnd], not_again: list[AttemptEnd]
) -> None:
    spec = job_spec(retries=1, retry=retry)

    assert all(
        decide_retry(spec, end, 0, is_wanted=True) == RetryOutcome(TaskEvent.RETRY, True) for end in again
    )
    assert all(decide_retry(spec, end, 1, is_wanted=True).event is not TaskEvent.RETRY for end in again)
    assert all(decide_retry(spec, end, 0, is_wanted=True).event is not TaskEvent.RETRY for end in not_again)


def test_the_reason_says_why_a_failure_is_not_retried_although_retries_are_left() -> None:
    named = decide_retry(job_spec(retries=1, retry=Retry(fail_on=(3,))), EXIT_3, 0, is_wanted=True)
    unnamed = decide_retry(job_spec(retries=1, retry=Retry(codes=(4,))), EXIT_3, 0, is_wanted=True)

    assert named.reason == "exit 3, and by its fail_on that is not tried again"
    assert unnamed.reason == "exit 3, which its retry_on does not name"
    assert decide_retry(job_spec(retries=1), EXIT_3, 1, is_wanted=True).reason is None


@pytest.mark.parametrize("retry", [Retry(codes=(4,)), Retry(fail_on=(3,)), Retry(on=(Failure.OOM,))])
def test_a_fault_of_the_cluster_costs_no_retry_whatever_retry_on_says(retry: Retry) -> None:
    spec = job_spec(retry=retry)

    assert decide_retry(spec, AttemptEnd(AttemptState.LOST), 0, is_wanted=True) == RetryOutcome(
        TaskEvent.RETRY
    )
    assert decide_retry(spec, AttemptEnd(AttemptState.STOPPED), 0, is_wanted=True) == RetryOutcome(
        TaskEvent.RETRY
    )


def test_a_timeout_is_not_retried() -> None:
    assert decide_retry(
        job_spec(retries=9), AttemptEnd(AttemptState.TIMED_OUT), 0, is_wanted=True
    ) == RetryOutcome(TaskEvent.TIMED_OUT)


def test_a_desired_task_that_was_stopped_is_retried_at_no_cost() -> None:
    assert decide_retry(job_spec(), AttemptEnd(AttemptState.STOPPED), 0, is_wanted=True) == RetryOutcome(
        TaskEvent.RETRY
    )
    assert decide_retry(job_spec(), AttemptEnd(AttemptState.STOPPED), 0, is_wanted=False) == RetryOutcome(
        TaskEvent.STOPPED
    )


OWNERS = {
    Recovery.SCHEDULER: TaskEvent.RETRY,
    Recovery.CANCEL: TaskEvent.STOPPED,
    Recovery.NONE: TaskEvent.NODE_LOST,
    Recovery.CONTROLLER: TaskEvent.NODE_LOST,
}
STOPPED_BY_NODE = AttemptEnd(AttemptState.STOPPED, left_with_node=True)


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("end", [AttemptEnd(AttemptState.LOST), STOPPED_BY_NODE])
def test_each_recovery_policy_decides_every_loss_at_no_cost(owner: Recovery, end: AttemptEnd) -> None:
    assert decide_retry(job_spec(recovery=owner), end, 0, is_wanted=True) == RetryOutcome(OWNERS[owner])


@pytest.mark.parametrize("owner", OWNERS)
def test_a_loss_of_a_canceled_task_is_not_recovered(owner: Recovery) -> None:
    spec = job_spec(recovery=owner)

    assert decide_retry(spec, AttemptEnd(AttemptState.LOST), 0, is_wanted=False) == RetryOutcome(
        TaskEvent.NODE_LOST
    )
    assert decide_retry(spec, STOPPED_BY_NODE, 0, is_wanted=False) == RetryOutcome(TaskEvent.STOPPED)


@pytest.mark.parametrize("owner", OWNERS)
def test_an_at_most_once_task_ends_as_lost_under_every_recovery_policy(owner: Recovery) -> None:
    spec = job_spec(run=RunMode.AT_MOST_ONCE, recovery=owner)

    assert decide_retry(spec, AttemptEnd(AttemptState.LOST), 0, is_wanted=True) == RetryOutcome(
        TaskEvent.NODE_LOST
    )
    assert decide_retry(spec, STOPPED_BY_NODE, 0, is_wanted=True) == RetryOutcome(TaskEvent.NODE_LOST)


@pytest.mark.parametrize("owner", OWNERS)
def test_a_requested_stop_does_not_concern_the_recovery_policy(owner: Recovery) -> None:
    spec = job_spec(recovery=owner)

    assert decide_retry(spec, AttemptEnd(AttemptState.STOPPED), 0, is_wanted=True) == RetryOutcome(
        TaskEvent.RETRY
    )


@pytest.mark.parametrize(
    "ended",
    [
        (AttemptState.LOST),
        (AttemptState.FAILED),
        (AttemptState.STOPPED),
        AttemptState.TIMED_OUT,
    ],
)
def test_an_at_most_once_task_is_never_retried(ended: AttemptState) -> None:
    spec = job_spec(run=RunMode.AT_MOST_ONCE, retries=5)

    assert decide_retry(spec, AttemptEnd(ended), 0, is_wanted=True).event is not TaskEvent.RETRY


def test_an_at_most_once_task_stopped_by_its_node_is_lost_not_canceled() -> None:
    spec = job_spec(run=RunMode.AT_MOST_ONCE)

    assert decide_retry(spec, AttemptEnd(AttemptState.STOPPED), 0, is_wanted=True) == RetryOutcome(
        TaskEvent.NODE_LOST
    )
    assert decide_retry(spec, AttemptEnd(AttemptState.STOPPED), 0, is_wanted=False) == RetryOutcome(
        TaskEvent.STOPPED
    )


def test_every_end_of_a_try_has_an_outcome_and_no_other_state_has() -> None:
    ends = {state for state in AttemptState if state >= ATTEMPT_FIRST_END} - NOT_STARTED
    for state in AttemptState:
        if state in ends:
            assert decide_retry(job_spec(), AttemptEnd(state), 0, is_wanted=True).event in TaskEvent
        else:
            with pytest.raises(AssertionError):
                decide_retry(job_spec(), AttemptEnd(state), 0, is_wanted=True)
