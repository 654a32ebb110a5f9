"""A call that waits -> one that can be awaited, in a thread of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

Answer = TypeVar("Answer")
_END: Any = object()


async def apart(function: Callable[[], Answer]) -> Answer:
    """Run in a daemon thread: unlike the loop's own pool it never keeps a cancelled program from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(value: Answer | None, error: BaseException | None) -> None:
        if answer.done():  # the caller was cancelled meanwhile
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # without an error there is a value

    def call() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:  # carried over to the caller, whatever it is
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, daemon=True, name="rota-client").start()
    return await answer


async def each(start: Callable[[], Iterator[Answer]]) -> AsyncIterator[Answer]:
    items = start()
    while True:
        item = await apart(lambda: next(items, _END))
        if item is _END:
            return
        yield item
