"""Restart of a service's task after its attempt ended."""

import pytest

from rota.controllers import retry
from rota.controllers.attempt_end import AttemptEnd
from rota.controllers.retry import backoff_ms
from rota.model.job import JobKind
from rota.model.lifecycle import AttemptState, TaskEvent
from rota.model.limits import SERVICE_BACKOFF_MAX_MS
from rota.testing.builders import job_spec

SPEC = job_spec(kind=JobKind.SERVICE)
OWN = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.TIMED_OUT)
OTHERS = (AttemptState.STOPPED, AttemptState.LOST)


@pytest.mark.parametrize("ended", OWN + OTHERS)
def test_a_service_restarts_whatever_its_end(ended: AttemptState) -> None:
    assert retry.decide_restart(SPEC, AttemptEnd(ended), 10_000, is_wanted=True).event is TaskEvent.RETRY


@pytest.mark.parametrize("ended", OWN + OTHERS)
def test_a_canceled_service_is_stopped(ended: AttemptState) -> None:
    assert retry.decide_restart(SPEC, AttemptEnd(ended), 0, is_wanted=False).event is TaskEvent.STOPPED


@pytest.mark.parametrize("ended", OTHERS)
def test_faults_of_the_cluster_cost_a_service_no_backoff(ended: AttemptState) -> None:
    assert not retry.decide_restart(SPEC, AttemptEnd(ended), 5, is_wanted=True).counts_as_retry


def test_a_service_that_takes_down_nodes_is_quarantined() -> None:
    suspect = AttemptEnd(AttemptState.LOST, is_suspect=True)

    assert retry.decide_restart(SPEC, suspect, 0, is_wanted=True).event is TaskEvent.QUARANTINED


def test_exits_of_a_service_cost_a_bounded_growing_backoff() -> None:
    assert all(
        retry.decide_restart(SPEC, AttemptEnd(ended), 0, is_wanted=True).counts_as_retry for ended in OWN
    )
    pauses = [backoff_ms(retry.SERVICE_BACKOFF, failures, "1/0/0") for failures in range(20)]

    assert pauses == sorted(pauses)
    assert SERVICE_BACKOFF_MAX_MS * 0.8 <= pauses[-1] <= SERVICE_BACKOFF_MAX_MS
