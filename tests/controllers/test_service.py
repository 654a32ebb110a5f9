"""What becomes of a service's task whose attempt ended."""

import pytest

from rota.controllers import service
from rota.model.lifecycle import AttemptState, TaskEvent
from rota.model.limits import SERVICE_LAST_MS

OWN = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.TIMED_OUT)
OTHERS = (AttemptState.STOPPED, AttemptState.LOST)


@pytest.mark.parametrize("ended", OWN + OTHERS)
def test_it_is_wanted_again_whatever_way_it_ended(ended: AttemptState) -> None:
    assert service.judge(ended, 10_000, wanted=True).event is TaskEvent.AGAIN


@pytest.mark.parametrize("ended", OWN + OTHERS)
def test_once_it_is_not_wanted_it_is_stopped(ended: AttemptState) -> None:
    assert service.judge(ended, 0, wanted=False).event is TaskEvent.STOPPED


@pytest.mark.parametrize("ended", OTHERS)
def test_what_others_did_to_it_costs_no_pause(ended: AttemptState) -> None:
    assert service.judge(ended, 5, wanted=True).pause_ms == 0


def test_its_own_ends_cost_a_pause_that_grows_to_a_bound() -> None:
    pauses = [service.judge(AttemptState.FAILED, failures, wanted=True).pause_ms for failures in range(20)]

    assert pauses[:4] == [1_000, 2_000, 4_000, 8_000]
    assert pauses == sorted(pauses)
    assert pauses[-1] == SERVICE_LAST_MS
