"""The backoff of an agent before it reconnects."""

from itertools import pairwise
from random import Random

from rota.agent.backoff import FIRST_SECONDS, LAST_SECONDS, Backoff


def made(spread_seconds: float = 0.0) -> Backoff:
    pauses = Backoff(Random(1))
    pauses.reset(heartbeat_seconds=5.0)
    pauses.spread_seconds = spread_seconds
    return pauses


def test_the_backoff_grows_with_failures_up_to_a_bound() -> None:
    pauses = made()
    waited = [pauses.after_round(None) for _ in range(12)]

    assert waited[0] <= FIRST_SECONDS
    assert all(later > earlier / 2 for earlier, later in pairwise(waited))
    assert LAST_SECONDS / 2 <= waited[-1] <= LAST_SECONDS


def test_a_welcome_resets_the_backoff_and_bounds_it_by_the_heartbeat() -> None:
    pauses = made()
    for _ in range(12):
        pauses.after_round(None)
    pauses.reset(heartbeat_seconds=1.0)
    waited = [pauses.after_round(None) for _ in range(12)]

    assert waited[0] <= FIRST_SECONDS
    assert max(waited) <= 1.0


def test_nodes_that_lose_a_server_reconnect_evenly_over_the_spread() -> None:
    first = sorted(_with_seed(seed, 8.0).after_loss(None) for seed in range(1000))

    assert first[-1] <= 8.0
    assert all(abs(at - 8.0 * place / 1000) < 0.6 for place, at in enumerate(first))


def test_failed_reconnects_stay_spread_out() -> None:
    again = sorted(_with_seed(seed, 8.0).after_round(None) for seed in range(1000))

    assert again[0] >= 4.0
    assert again[-1] <= 8.0


def test_a_run_lease_shortens_the_backoff() -> None:
    pauses = made(spread_seconds=80.0)

    assert max(pauses.after_loss(20.0) for _ in range(100)) <= 5.0
    assert max(pauses.after_round(20.0) for _ in range(100)) <= 5.0


def _with_seed(seed: int, spread_seconds: float) -> Backoff:
    pauses = Backoff(Random(seed))
    pauses.spread_seconds = spread_seconds
    return pauses
