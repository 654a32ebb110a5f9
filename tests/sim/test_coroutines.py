"""Coroutines in virtual time: they take no real time, stop while their process is frozen, and die with it."""

import asyncio

import pytest

from rota.sim.world.coroutines import Coroutines
from rota.sim.world.virtual_time import SimClock, SimProcess, World


class Told:
    def __init__(self) -> None:
        self.world = World(0)
        self.process = SimProcess(self.world, "p", SimClock(self.world))
        self.process.start_life()
        self.loop = Coroutines(self.process)
        self.lines: list[tuple[int, str]] = []

    def say(self, word: str) -> None:
        self.lines.append((self.world.now_ms, word))

    async def wait(self, seconds: float, limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await asyncio.sleep(seconds)
            self.say("slept")
        except TimeoutError:
            self.say("timed out")
        finally:
            self.say("over")


def test_an_hour_of_sleep_takes_no_time_and_a_timeout_comes_first_where_it_is_shorter() -> None:
    told = Told()
    told.loop.begin(told.wait(3600, 7200))
    told.loop.begin(told.wait(5, 2))
    told.world.run(4_000_000)

    assert told.lines == [(2000, "timed out"), (2000, "over"), (3_600_000, "slept"), (3_600_000, "over")]


def test_a_frozen_process_goes_on_when_it_thaws() -> None:
    told = Told()
    told.loop.begin(told.wait(5, 60))
    told.world.run(1000)
    told.process.freeze()
    told.world.run(9000)
    told.process.resume()
    told.world.run(9000)

    assert told.lines == [(9000, "slept"), (9000, "over")]


def test_with_their_process_they_end_and_do_nothing_more() -> None:
    told = Told()
    told.loop.begin(told.wait(5, 60))
    told.world.run(1000)
    told.process.end()
    told.world.run(100_000)

    assert told.lines == [(1000, "over")]


def test_what_a_coroutine_raises_breaks_the_run() -> None:
    told = Told()

    async def broken() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(told.wait(100, 1000))
            await asyncio.sleep(1)
            raise LookupError("nothing there")

    told.loop.begin(broken())
    with pytest.raises(LookupError, match="nothing there"):
        told.world.run(2000)
    told.process.end()
