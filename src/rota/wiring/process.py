"""What all processes share: running the event loop, signals, error messages, the log. [I/O]"""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, BinaryIO

import structlog
import uvloop

from rota.model.errors import flatten_group
from rota.wiring.console import EXPLAINED_ERRORS, explain


def guarded(main: Coroutine[Any, Any, None]) -> int:
    """Run the coroutine; expected errors become a line on stderr and an exit code."""
    tune_interpreter()
    try:
        uvloop.run(main)
    except BaseExceptionGroup as group:
        return explain(first_of(group))
    except EXPLAINED_ERRORS as error:
        return explain(error)
    return 0


class Interruption:
    """Catches the first of these signals, from now on; a second one ends the process as usual."""

    def __init__(self, *signals: signal.Signals) -> None:
        loop = asyncio.get_running_loop()
        self._received: asyncio.Future[signal.Signals] = loop.create_future()
        for signum in signals:
            loop.add_signal_handler(signum, self._on_signal, signum, signals)

    async def wait(self) -> signal.Signals:
        return await asyncio.shield(self._received)  # a cancelled waiter must not cancel it for the next

    def _on_signal(self, received: signal.Signals, signals: tuple[signal.Signals, ...]) -> None:
        for signum in signals:
            asyncio.get_running_loop().remove_signal_handler(signum)
        if not self._received.done():
            self._received.set_result(received)


async def shielded(closing: Coroutine[Any, Any, None]) -> None:
    """Await a cleanup to its end even if this task is cancelled meanwhile; the cancellation follows."""
    task = asyncio.get_running_loop().create_task(closing)
    cancelled: asyncio.CancelledError | None = None
    # A loop, because a second cancellation must not interrupt the cleanup either.
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as again:
            cancelled = again
    task.result()
    if cancelled is not None:
        raise cancelled


def open_private(path: Path) -> BinaryIO:
    """Open a log file to append to that other users, tasks among them, cannot read."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def log_to(descriptor: int) -> None:
    """Log to this descriptor, one JSON object per line."""
    log_file = os.fdopen(os.dup(descriptor), "w", buffering=1)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.WriteLoggerFactory(file=log_file),
        cache_logger_on_first_use=True,
    )


def tune_interpreter() -> None:
    """Collect garbage rarely, as there are many small objects and few cycles; switch threads sooner."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(0.001)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: each node needs one, and 1024 is the usual."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    return flatten_group(group)[0]
