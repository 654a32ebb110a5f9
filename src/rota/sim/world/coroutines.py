"""An asyncio event loop on virtual time, for the coroutines of one simulated process."""

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVarTuple

from rota.sim.world.virtual_time import SimProcess

Ts = TypeVarTuple("Ts")


class Coroutines(asyncio.BaseEventLoop):
    """An event loop driven by a SimProcess: its coroutines wait while the process is frozen and end with it.

    Only what the product's coroutines use is implemented: call_soon, call_at and the exception handler.
    """

    def __init__(self, process: SimProcess) -> None:
        super().__init__()
        self._process = process
        self._due: deque[asyncio.Handle] = deque()
        self._scheduled = False  # an iteration is scheduled
        process.on_end_hooks.append(self._end)

    def __del__(self) -> None:
        """Skip BaseEventLoop's warning: this loop holds no selector or socket that must be closed."""

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine; an exception that it raises ends the simulation."""
        asyncio.Task(coroutine, loop=self).add_done_callback(_raise_error)

    # ---- the interface that asyncio requires

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
        if not self._scheduled:
            self._scheduled = True
            self._process.after(0, self._iterate)
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
        # Raised instead of logged: a simulation must not hide an error of a coroutine.
        raise context.get("exception") or AssertionError(context["message"])

    # ---- iterations

    def _iterate(self) -> None:
        self._scheduled = False
        while self._due:
            self._run(self._due.popleft())

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        # Set per callback: several loops of simulated processes take turns in one thread.
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def _end(self) -> None:
        """Cancel every task: the process has ended."""
        self._scheduled = True  # the dead process runs no callbacks, so call_soon must not schedule one
        for task in asyncio.all_tasks(self):
            task.cancel()
        self._iterate()


def _raise_error(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
