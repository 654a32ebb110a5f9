"""The CPU time of the event loop that a call uses -> the account that the call is charged to. [I/O]

The event loop is one thread, so its time is what callers compete for. A call runs in segments, from one await
to the next, and no other call runs during a segment. `Meter.run` drives a call and adds up its segments, in
time of the CPU: the time that the loop waits for a core is not charged to the call it waits with.

A command does not run in the task that asked for it, but in an iteration of the engine. So `Engine.ask`
passes the meter of the asking task with the request, and the requests of an iteration are charged equal
parts of its time: which decisions of a batch were caused by which request is not known.
"""

import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Charge = Callable[[float], None]


class Meter:
    """The CPU time of one call. Time used before `bill` names an account is charged when it does."""

    def __init__(self) -> None:
        self._unbilled = 0.0
        self._charge: Charge | None = None

    def bill(self, charge: Charge) -> None:
        """Charge the time used so far to this account, and all time from now on."""
        self._charge = charge
        charge(self._unbilled)
        self._unbilled = 0.0

    def add(self, seconds: float) -> None:
        if self._charge is None:
            self._unbilled += seconds
        else:
            self._charge(seconds)

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of the call, whose segments and requests to the engine are added to this meter."""
        _current.set(self)
        return await _Segments(call, self.add)


_current: ContextVar[Meter | None] = ContextVar("meter", default=None)


def current() -> Meter | None:
    """The meter of the call that the running task is part of, if it has one."""
    return _current.get()


async def metered(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call in a task of its own, on the meter of the call that made the task."""
    meter = current()
    return await (call if meter is None else meter.run(call))


class _Segments(Generator[Any, Any, T]):
    """An awaitable that wraps a coroutine and measures the CPU time of each of its segments."""

    def __init__(self, call: Coroutine[Any, Any, T], add: Charge) -> None:
        self._call = call
        self._add = add

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        began = time.thread_time()
        try:
            return self._call.send(value)
        finally:
            self._add(time.thread_time() - began)

    def throw(self, *error: Any) -> Any:
        began = time.thread_time()
        try:
            return self._call.throw(*error)
        finally:
            self._add(time.thread_time() - began)
