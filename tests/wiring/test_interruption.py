"""A signal is heard by whoever waits for it, also after somebody else has given up waiting."""

import asyncio
import os
import signal

import pytest

from rota.wiring.process import Interruption


async def test_one_who_stops_waiting_does_not_end_it_for_the_next() -> None:
    interruption = Interruption(signal.SIGUSR1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await interruption.wait()

    os.kill(os.getpid(), signal.SIGUSR1)

    async with asyncio.timeout(10):
        assert await interruption.wait() is signal.SIGUSR1
