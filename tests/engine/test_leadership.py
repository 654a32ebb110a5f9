"""When a leader renews its lease, and when it steps down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.engine.leadership import LeaseAction, LeaseStep, LeaseTiming, lease_valid, next_step

TENURE = LeaseTiming(10_000)


@pytest.mark.parametrize(
    ("renewed_at_ms", "tried_at_ms", "now_ms", "expected"),
    [
        (0, 0, 0, LeaseStep(LeaseAction.WAIT, 3000)),
        (0, 0, 2999, LeaseStep(LeaseAction.WAIT, 1)),
        (0, 0, 3000, LeaseStep(LeaseAction.RENEW, 4000)),
        (0, 3000, 3100, LeaseStep(LeaseAction.WAIT, 400)),
        (0, 3000, 3500, LeaseStep(LeaseAction.RENEW, 3500)),
        (0, 6800, 6900, LeaseStep(LeaseAction.WAIT, 100)),
        (0, 6800, 7000, LeaseStep(LeaseAction.STEP_DOWN, 0)),
        (0, 0, 3_600_000, LeaseStep(LeaseAction.STEP_DOWN, 0)),
    ],
)
def test_a_lease_is_renewed_early_retried_soon_and_given_up_in_time(
    renewed_at_ms: int, tried_at_ms: int, now_ms: int, expected: LeaseStep
) -> None:
    assert next_step(TENURE, renewed_at_ms, tried_at_ms, now_ms) == expected


@given(st.integers(2, 300), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_leader_that_must_step_down_has_no_valid_lease(
    ttl_seconds: int, renewed_at_ms: int, tried_later_ms: int, later_ms: int
) -> None:
    tenure = LeaseTiming(ttl_seconds * 1000)
    now_ms = renewed_at_ms + later_ms
    what = next_step(tenure, renewed_at_ms, min(now_ms, renewed_at_ms + tried_later_ms), now_ms)

    assert (what.action is LeaseAction.STEP_DOWN) is not lease_valid(tenure, renewed_at_ms, now_ms)
    assert what.action is LeaseAction.STEP_DOWN or what.within_ms > 0
    assert now_ms + what.within_ms <= max(now_ms, renewed_at_ms + tenure.fence_ms)
