"""Restart backoff and health of a service, with a given clock."""

from hypothesis import given
from hypothesis import strategies as some

from rota.keeper.service.spec import KeeperCheck, KeeperRestart
from rota.keeper.service.state import HEALTHY, MS, STARTING, UNHEALTHY, HealthCounter, ServiceState

RULE = KeeperRestart(attempts=3, within_ms=600_000, delay_ms=1_000, delay_max_ms=60_000)
CHECK = KeeperCheck(interval_ms=10_000, timeout_ms=5_000, after_ms=30_000, failures=3, successes=2, port=80)


def pauses_ms(rule: KeeperRestart, ends_ms: list[int]) -> list[int | None]:
    """The backoff after each of these ends; None: no restart."""
    service = ServiceState()
    found: list[int | None] = []
    for end_ms in ends_ms:
        rests = service.back_off(rule, end_ms * MS)
        found.append((service.backoff_until_ns // MS - end_ms) if rests else None)
    return found


def test_the_backoff_doubles_and_the_fourth_end_is_the_last() -> None:
    assert pauses_ms(RULE, [0, 10, 20, 30]) == [1_000, 2_000, 4_000, None]


def test_the_backoff_is_bounded() -> None:
    often = KeeperRestart(attempts=100, within_ms=600_000, delay_ms=1_000, delay_max_ms=60_000)

    assert pauses_ms(often, list(range(9)))[-3:] == [60_000, 60_000, 60_000]


def test_a_long_run_resets_the_backoff() -> None:
    assert pauses_ms(RULE, [0, 10, 20, 700_000, 1_400_000]) == [1_000, 2_000, 4_000, 1_000, 1_000]


@given(some.lists(some.integers(1, 400_000), max_size=40))
def test_there_are_never_more_restarts_in_the_window_than_allowed(gaps_ms: list[int]) -> None:
    service, now_ms, restarts = ServiceState(), 0, []
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        if service.back_off(RULE, now_ms * MS):
            restarts.append(now_ms)

    for at_ms in restarts:
        assert sum(at_ms - RULE.within_ms < other <= at_ms for other in restarts) <= RULE.attempts


def health_after(results: str, *, began_ms: int = -60_000) -> str:
    """One check a second, + or -."""
    pulse, health = HealthCounter(CHECK, began_ms * MS), STARTING
    for second, result in enumerate(results):
        health = pulse.record(health, second * 1_000 * MS, succeeded=result == "+")
    return health


def test_consecutive_results_decide_on_the_health() -> None:
    assert health_after("+") == STARTING
    assert health_after("++") == HEALTHY
    assert health_after("+-+-+-") == STARTING
    assert health_after("++--+--") == HEALTHY
    assert health_after("++---") == UNHEALTHY
    assert health_after("---") == UNHEALTHY


def test_failures_in_the_start_grace_do_not_count() -> None:
    assert health_after("-" * 30, began_ms=0) == STARTING
    assert health_after("-" * 33, began_ms=0) == UNHEALTHY
    assert health_after("++---", began_ms=0) == UNHEALTHY  # it had started


def test_a_starting_service_is_checked_more_often() -> None:
    pulse = HealthCounter(CHECK, 0)

    assert pulse.next_interval_ns(STARTING, 0) == 1_000 * MS
    assert pulse.next_interval_ns(HEALTHY, 0) == 10_000 * MS
    assert pulse.next_interval_ns(STARTING, 40_000 * MS) == 10_000 * MS
