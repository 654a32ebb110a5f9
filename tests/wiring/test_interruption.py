"""A signal is heard by whoever waits for it, also after somebody else has given up waiting."""

import asyncio
import os
import signal

import pytest

from rota.wiring.process import Interruption, shielded


async def test_one_who_stops_waiting_does_not_end_it_for_the_next() -> None:
    interruption = Interruption(signal.SIGUSR1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await interruption.wait()

    os.kill(os.getpid(), signal.SIGUSR1)

    async with asyncio.timeout(10):
        assert await interruption.wait() is signal.SIGUSR1


async def test_doors_are_closed_to_the_end_by_one_who_is_cancelled_twice() -> None:
    closed = []
    closing, going_on = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        closing.set()
        await going_on.wait()
        closed.append("all")

    async def serve() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await shielded(close())

    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve())
        await asyncio.sleep(0)
        serving.cancel()
        await closing.wait()
        serving.cancel()
        await asyncio.sleep(0)
        going_on.set()
        await asyncio.wait([serving])

    assert closed == ["all"]
    assert serving.cancelled()
