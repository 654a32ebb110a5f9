"""A process's coroutines in virtual time: asyncio's loop, whose clock and turns are the world's."""

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVarTuple

from rota.sim.world.virtual_time import SimProcess

Ts = TypeVarTuple("Ts")


class Coroutines(asyncio.BaseEventLoop):
    """They wait while their process is frozen, and end with it."""

    def __init__(self, process: SimProcess) -> None:
        super().__init__()
        self._process = process
        self._due: deque[asyncio.Handle] = deque()
        self._turns = False  # one is to come
        process.at_its_end.append(self._end)

    def __del__(self) -> None:
        """There is nothing in it that would have to be closed."""

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """What it raises breaks the run."""
        asyncio.Task(coroutine, loop=self).add_done_callback(_look_at_end)

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self._process.clock.boot_ms() / 1000

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._due.append(handle)
        if not self._turns:
            self._turns = True
            self._process.after(0, self._turn)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._process.after(math.ceil((when - self.time()) * 1000), lambda: self._run(handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context.get("exception") or AssertionError(context["message"])

    # ---- turns

    def _turn(self) -> None:
        self._turns = False
        while self._due:
            self._run(self._due.popleft())

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def _end(self) -> None:
        """Their process is gone: nobody goes on with what he waited for."""
        self._turns = True
        for task in asyncio.all_tasks(self):
            task.cancel()
        self._turn()


def _look_at_end(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
