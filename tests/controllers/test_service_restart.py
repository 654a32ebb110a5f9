"""What becomes of a service's task whose attempt ended."""

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
def test_it_is_wanted_again_whatever_way_it_ended(ended: AttemptState) -> None:
    assert retry.decide_restart(SPEC, AttemptEnd(ended), 10_000, wanted=True).event is TaskEvent.RETRY


@pytest.mark.parametrize("ended", OWN + OTHERS)
def test_once_it_is_not_wanted_it_is_stopped(ended: AttemptState) -> None:
    assert retry.decide_restart(SPEC, AttemptEnd(ended), 0, wanted=False).event is TaskEvent.STOPPED


@pytest.mark.parametrize("ended", OTHERS)
def test_what_others_did_to_it_costs_no_pause(ended: AttemptState) -> None:
    assert not retry.decide_restart(SPEC, AttemptEnd(ended), 5, wanted=True).counts_as_retry


def test_one_that_took_down_its_nodes_is_held() -> None:
    suspect = AttemptEnd(AttemptState.LOST, is_suspect=True)

    assert retry.decide_restart(SPEC, suspect, 0, wanted=True).event is TaskEvent.QUARANTINED


def test_its_own_ends_cost_a_pause_that_grows_to_a_bound() -> None:
    assert all(retry.decide_restart(SPEC, AttemptEnd(ended), 0, wanted=True).counts_as_retry for ended in OWN)
    pauses = [backoff_ms(retry.SERVICE_BACKOFF, failures, "1/0/0") for failures in range(20)]

    assert pauses == sorted(pauses)
    assert SERVICE_BACKOFF_MAX_MS * 0.8 <= pauses[-1] <= SERVICE_BACKOFF_MAX_MS
