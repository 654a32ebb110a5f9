"""A signal reaches its waiter, also after another waiter was cancelled."""

import asyncio
import os
import signal

import pytest

from rota.wiring.process import Interruption, shielded


async def test_a_cancelled_waiter_does_not_cancel_the_next_one() -> None:
    interruption = Interruption(signal.SIGUSR1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await interruption.wait()

    os.kill(os.getpid(), signal.SIGUSR1)

    async with asyncio.timeout(10):
        assert await interruption.wait() is signal.SIGUSR1


async def test_cleanup_is_finished_though_its_task_is_cancelled_twice() -> None:
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
