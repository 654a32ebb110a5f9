"""Run a blocking call in a thread and await its result."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

Answer = TypeVar("Answer")
_END: Any = object()


async def run_in_thread(function: Callable[[], Answer]) -> Answer:
    """Run a function in a daemon thread of its own and await its result.

    Unlike a worker of the event loop's pool, a daemon thread does not keep a cancelled program from exiting.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def resolve(value: Answer | None, error: BaseException | None) -> None:
        # Race: the caller may have been cancelled while the thread was still working.
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # without an error there is a value

    def call() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:  # re-raised in the awaiting task, whatever it is
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(resolve, value, error)

    threading.Thread(target=call, daemon=True, name="rota-client").start()
    return await answer


async def iterate_in_threads(start: Callable[[], Iterator[Answer]]) -> AsyncIterator[Answer]:
    """Iterate over a blocking iterator; each item is fetched in a thread."""
    items = start()
    while True:
        item = await run_in_thread(lambda: next(items, _END))
        if item is _END:
            return
        yield item
