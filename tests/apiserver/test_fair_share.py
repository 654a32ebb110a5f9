"""Server time is shared by token: heavy tokens wait while others are active, light and equal ones do not."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping

import pytest

from rota.apiserver.access import Caller
from rota.apiserver.fair_share import Shares
from rota.apiserver.rate_limits import RateLimited, RateLimits
from rota.apiserver.thread_capacity import Counted, capacity, counted
from rota.engine.meter import Meter, current, metered
from rota.identity.task_tokens import TaskName
from rota.identity.tokens import Role
from rota.model.limits import SHARE_ACTIVE_SECONDS, SHARE_AT_ONCE_SECONDS, SHARE_LOOK_SECONDS, SHARE_OF_HEAVY

CI = Caller("ci", Role.SUBMITTER, ("team",), token="t1")
BOB = Caller("bob", Role.SUBMITTER, ("other",), token="t2")
ADA = Caller("ada", Role.ADMIN, ("*",), token="t3")
REQUEST_SECONDS = 0.002


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def simulate(
    shares: Shares, connections: Mapping[str, int], delays: Mapping[str, float], seconds: float
) -> defaultdict[str, float]:
    """Serve closed-loop clients on one simulated event loop; the CPU seconds that each account got.

    Each connection sends its next request when the last one is answered and its account's delay is over.
    """
    now, used = 0.0, defaultdict[str, float](float)
    due = [(0.0, name, False) for name, count in connections.items() for _ in range(count)]
    while now < seconds:
        at, name, has_waited = due.pop(due.index(min(due)))
        now = max(now, at)
        if has_waited:
            shares.resume(name)
        elif (wait := shares.enter(name, now)) > 0:
            due.append((now + wait, name, True))
            continue
        now += REQUEST_SECONDS
        shares.charge(name, REQUEST_SECONDS, now)
        used[name] += REQUEST_SECONDS
        due.append((now + delays.get(name, 0.0), name, False))
    return used


def test_one_token_alone_has_the_whole_server() -> None:
    used = simulate(Shares(), {"heavy": 50}, {}, 10)

    assert used["heavy"] == pytest.approx(10, rel=0.01)


def test_a_heavy_token_beside_light_ones_leaves_the_loop_idle_half_of_the_time() -> None:
    light = {f"light-{number}": 1 for number in range(5)}
    used = simulate(Shares(), {"heavy": 50, **light}, dict.fromkeys(light, 0.1), 20)

    assert sum(used.values()) == pytest.approx(20 * SHARE_OF_HEAVY, rel=0.1)
    assert min(used[name] for name in light) > 0.9 * 20 * REQUEST_SECONDS / (0.1 + 2 * REQUEST_SECONDS)


def test_a_token_with_many_connections_gets_no_more_than_one_with_few() -> None:
    used = simulate(Shares(), {"many": 50, "one": 1}, {}, 20)

    assert used["many"] < 2.2 * used["one"]  # above 1.3 of the mean to 0.7 the first one waits


def test_equal_tokens_together_have_the_whole_server() -> None:
    used = simulate(Shares(), {"a": 10, "b": 10, "c": 10}, {}, 20)

    assert sum(used.values()) == pytest.approx(20, rel=0.05)
    assert min(used.values()) > 0.9 * max(used.values())


def test_a_loop_that_has_less_than_a_core_gives_heavy_tokens_less() -> None:
    used = simulate(Shares(capacity=0.4), {"heavy": 50, "light": 1}, {"light": 0.1}, 20)

    assert sum(used.values()) == pytest.approx(20 * SHARE_OF_HEAVY * 0.4, rel=0.1)


def test_a_burst_within_the_bucket_does_not_wait() -> None:
    shares = Shares()
    shares.charge("light", 0.001, 0.0)
    shares.charge("heavy", 0.01, 0.0)
    waits = []
    for _ in range(round(SHARE_AT_ONCE_SECONDS / REQUEST_SECONDS)):
        waits.append(shares.enter("burst", 1.0))
        shares.charge("burst", REQUEST_SECONDS, 1.0)
    shares.charge("burst", REQUEST_SECONDS, 1.0)

    assert not any(waits)
    assert shares.enter("burst", 1.0) > 0


def test_waiting_requests_resume_one_after_the_other() -> None:
    shares = Shares()
    shares.charge("light", 0.001, 0.0)
    for _ in range(100):
        shares.enter("heavy", 0.0)
        shares.charge("heavy", REQUEST_SECONDS, 0.0)
    waits = [shares.enter("heavy", 0.1) for _ in range(10)]

    assert waits == sorted(waits)
    assert len(set(waits)) == 10


def test_an_inactive_token_does_not_wait() -> None:
    shares = Shares()
    for now in (0.0, SHARE_ACTIVE_SECONDS + 1, 2 * SHARE_ACTIVE_SECONDS + 2):
        assert shares.enter("t1", now) == 0.0
        shares.charge("t1", REQUEST_SECONDS, now)

    assert list(shares._accounts) == ["t1"]


def test_accounts_of_inactive_tokens_are_dropped() -> None:
    shares = Shares()
    for number in range(10_000):
        shares.enter(f"t{number}", number * SHARE_ACTIVE_SECONDS / 10)

    assert len(shares._accounts) <= 11


# ---- which callers wait


def rates_in_debt(clock: Clock, caller: Caller) -> RateLimits:
    """Rates of a server on which another token is active and this caller is in debt."""
    rates = RateLimits(now=clock)
    rates.charge(BOB, 0.001)
    rates.charge(caller, 0.9)
    clock.seconds += SHARE_LOOK_SECONDS
    return rates


async def test_a_token_beyond_its_share_waits_and_others_do_not() -> None:
    rates = rates_in_debt(Clock(), CI)
    async with asyncio.TaskGroup() as tasks:
        heavy = tasks.create_task(rates.enter(CI))
        await asyncio.sleep(0)
        await rates.enter(BOB)

        assert not heavy.done()
        heavy.cancel()


async def test_an_admin_of_all_namespaces_never_waits_and_is_charged() -> None:
    rates = rates_in_debt(Clock(), ADA)
    await rates.enter(ADA)

    assert rates._shares.use("t3", 100.0) > 0.5


async def test_tasks_of_one_job_share_an_account() -> None:
    first, second = (
        Caller(f"task {index}", Role.VIEWER, (), task=TaskName("7", index, 1, "node-1")) for index in (0, 1)
    )
    rates = rates_in_debt(Clock(), first)
    async with asyncio.TaskGroup() as tasks:
        waits = tasks.create_task(rates.enter(second))
        await asyncio.sleep(0)

        assert not waits.done()
        waits.cancel()


async def test_a_request_that_would_wait_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.apiserver.rate_limits.SHARE_WAIT_SECONDS_MAX", 0.01)
    rates = rates_in_debt(Clock(), CI)

    with pytest.raises(RateLimited, match="ci uses more than its share of a busy server"):
        await rates.enter(CI)
    await rates.acquire_or_wait(CI)  # requests of a stream are delayed, not refused


# ---- what is measured


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_a_meter_counts_cpu_time_and_not_waiting() -> None:
    charged: list[float] = []
    meter = Meter()

    async def call() -> str:
        spin(0.02)
        meter.bill(charged.append)
        await asyncio.sleep(0.2)
        spin(0.02)
        return "done"

    assert await meter.run(call()) == "done"
    assert 0.04 <= sum(charged) < 0.1


async def test_tasks_of_a_call_are_on_its_meter() -> None:
    charged: list[float] = []
    meter = Meter()
    meter.bill(charged.append)

    async def child() -> None:
        assert current() is meter
        spin(0.02)

    async def call() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(metered(child()))

    await meter.run(call())
    assert sum(charged) >= 0.02


async def test_an_error_and_a_cancel_pass_through_a_meter() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Meter().run(fail())
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Meter().run(hang())
    assert ended.is_set()


def test_capacity_is_the_part_of_the_time_that_a_thread_got_a_core() -> None:
    assert capacity(Counted(0, 0), Counted(100, 300)) == 0.25
    assert capacity(Counted(5, 5), Counted(5, 5)) == 1.0
    assert capacity(None, Counted(5, 5)) == 1.0
    assert counted() is not None
