"""What every process of ours does alike: run its loop, hear signals, tell errors, keep a diary. [I/O]"""

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
    """Run it; the user's and the world's errors become a line on stderr and an exit code."""
    tune_interpreter()
    try:
        uvloop.run(main)
    except BaseExceptionGroup as group:
        return explain(first_of(group))
    except EXPLAINED_ERRORS as error:
        return explain(error)
    return 0


class Interruption:
    """The first of these signals, heard from now on; a second one ends the process as usual."""

    def __init__(self, *signals: signal.Signals) -> None:
        loop = asyncio.get_running_loop()
        self._received: asyncio.Future[signal.Signals] = loop.create_future()
        for one in signals:
            loop.add_signal_handler(one, self._on_signal, one, signals)

    async def wait(self) -> signal.Signals:
        return await asyncio.shield(self._received)  # whoever stops waiting does not end it for the next one

    def _on_signal(self, which: signal.Signals, signals: tuple[signal.Signals, ...]) -> None:
        for one in signals:
            asyncio.get_running_loop().remove_signal_handler(one)
        if not self._received.done():
            self._received.set_result(which)


async def shielded(closing: Coroutine[Any, Any, None]) -> None:
    """Whoever is cancelled while it closes its doors closes them all the same, and is cancelled then."""
    task = asyncio.get_running_loop().create_task(closing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as again:
            cancelled = again
    task.result()
    if cancelled is not None:
        raise cancelled


def open_private(path: Path) -> BinaryIO:
    """A log to append to, which other users cannot read, jobs among them."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def log_to(descriptor: int) -> None:
    """Structured lines, one JSON object each."""
    diary = os.fdopen(os.dup(descriptor), "w", buffering=1)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.WriteLoggerFactory(file=diary),
        cache_logger_on_first_use=True,
    )


def tune_interpreter() -> None:
    """We make many small objects and few cycles: collect rarely; and hand the interpreter on promptly."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(0.001)


def raise_descriptor_limit() -> None:
    """As many descriptors as we may: each node is one, and most shells give a thousand unless asked."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    return flatten_group(group)[0]
