"""Coroutines in virtual time: they take no real time, stop while their process is frozen, and die with it."""

import asyncio

import pytest

from rota.sim.world.coroutines import Coroutines
from rota.sim.world.virtual_time import SimClock, SimProcess, World


class Sleeper:
    """A process with coroutines that sleep, and what they recorded."""

    def __init__(self) -> None:
        self.world = World(0)
        self.process = SimProcess(self.world, "p", SimClock(self.world))
        self.process.start_life()
        self.loop = Coroutines(self.process)
        self.lines: list[tuple[int, str]] = []

    def record(self, text: str) -> None:
        self.lines.append((self.world.now_ms, text))

    async def wait(self, seconds: float, limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await asyncio.sleep(seconds)
            self.record("slept")
        except TimeoutError:
            self.record("timed out")
        finally:
            self.record("over")


def test_an_hour_of_sleep_takes_no_real_time_and_a_shorter_timeout_comes_first() -> None:
    sleeper = Sleeper()
    sleeper.loop.start(sleeper.wait(3600, 7200))
    sleeper.loop.start(sleeper.wait(5, 2))
    sleeper.world.run(4_000_000)

    assert sleeper.lines == [(2000, "timed out"), (2000, "over"), (3_600_000, "slept"), (3_600_000, "over")]


def test_coroutines_of_a_frozen_process_continue_when_it_is_resumed() -> None:
    sleeper = Sleeper()
    sleeper.loop.start(sleeper.wait(5, 60))
    sleeper.world.run(1000)
    sleeper.process.freeze()
    sleeper.world.run(9000)
    sleeper.process.resume()
    sleeper.world.run(9000)

    assert sleeper.lines == [(9000, "slept"), (9000, "over")]


def test_coroutines_end_with_their_process() -> None:
    sleeper = Sleeper()
    sleeper.loop.start(sleeper.wait(5, 60))
    sleeper.world.run(1000)
    sleeper.process.end()
    sleeper.world.run(100_000)

    assert sleeper.lines == [(1000, "over")]


def test_an_exception_of_a_coroutine_ends_the_run() -> None:
    sleeper = Sleeper()

    async def broken() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sleeper.wait(100, 1000))
            await asyncio.sleep(1)
            raise LookupError("nothing there")

    sleeper.loop.start(broken())
    with pytest.raises(LookupError, match="nothing there"):
        sleeper.world.run(2000)
    sleeper.process.end()
