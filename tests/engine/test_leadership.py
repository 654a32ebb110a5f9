"""When a leader renews its lease, and when it no longer believes in itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.engine.leadership import Act, Due, Tenure, due, surely_leads

TENURE = Tenure(10_000)


@pytest.mark.parametrize(
    ("renewed_at_ms", "tried_at_ms", "now_ms", "expected"),
    [
        (0, 0, 0, Due(Act.REST, 3000)),
        (0, 0, 2999, Due(Act.REST, 1)),
        (0, 0, 3000, Due(Act.RENEW, 4000)),
        (0, 3000, 3100, Due(Act.REST, 400)),
        (0, 3000, 3500, Due(Act.RENEW, 3500)),
        (0, 6800, 6900, Due(Act.REST, 100)),
        (0, 6800, 7000, Due(Act.STEP_DOWN, 0)),
        (0, 0, 3_600_000, Due(Act.STEP_DOWN, 0)),
    ],
)
def test_it_is_renewed_early_tried_again_soon_and_given_up_in_time(
    renewed_at_ms: int, tried_at_ms: int, now_ms: int, expected: Due
) -> None:
    assert due(TENURE, renewed_at_ms, tried_at_ms, now_ms) == expected


@given(st.integers(2, 300), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_whoever_is_to_step_down_does_not_surely_lead(
    ttl_seconds: int, renewed_at_ms: int, tried_later_ms: int, later_ms: int
) -> None:
    tenure = Tenure(ttl_seconds * 1000)
    now_ms = renewed_at_ms + later_ms
    what = due(tenure, renewed_at_ms, min(now_ms, renewed_at_ms + tried_later_ms), now_ms)

    assert (what.act is Act.STEP_DOWN) is not surely_leads(tenure, renewed_at_ms, now_ms)
    assert what.act is Act.STEP_DOWN or what.within_ms > 0
    assert now_ms + what.within_ms <= max(now_ms, renewed_at_ms + tenure.fence_ms)
