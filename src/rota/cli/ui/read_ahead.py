"""Read an iterator ahead in a thread, so that waiting for the server overlaps with printing."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
BUFFERED_MAX = 4
_END = object()


def read_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; an exception of the iterator is raised here."""
    # Bounded: a command that prints slowly must not read the whole list into memory.
    waiting: queue.Queue[object] = queue.Queue(BUFFERED_MAX)
    failed: list[Exception] = []

    def pump() -> None:
        try:
            for item in items:
                waiting.put(item)
        except Exception as error:  # top of a thread: raised again in the main thread
            failed.append(error)
        waiting.put(_END)

    # A daemon: a command that ends early must not wait for answers that it will not print.
    threading.Thread(target=pump, daemon=True).start()
    while (item := waiting.get()) is not _END:
        yield item  # type: ignore[misc]  # everything but _END is an item
    for error in failed:
        raise error
