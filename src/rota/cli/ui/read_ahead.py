"""An iterator that a thread reads ahead: waiting for the server overlaps with work on its answers."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
MOST_WAITING = 4
_END = object()


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; what the iterator raises is raised here."""
    waiting: queue.Queue[object] = queue.Queue(MOST_WAITING)
    failed: list[Exception] = []

    def pump() -> None:
        try:
            for item in items:
                waiting.put(item)
        except Exception as error:  # the edge of a thread: the other one raises it
            failed.append(error)
        waiting.put(_END)

    # A daemon: a command that ends early does not wait for an answer that it will not show.
    threading.Thread(target=pump, daemon=True).start()
    while (item := waiting.get()) is not _END:
        yield item  # type: ignore[misc]  # all but the end are items
    for error in failed:
        raise error
