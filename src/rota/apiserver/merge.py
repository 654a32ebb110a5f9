"""Streams of chunks -> one, in the order in which they arrived. [I/O]"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from heapq import heappop, heappush

from rota.apiserver.chunks import Chunk

Source = Callable[[], AsyncGenerator[Chunk, None]]


async def merge(sources: Iterator[Source], most: int, write: Callable[[Chunk], Awaitable[None]]) -> None:
    """So many are read at once, the next when one has ended: the earlier ones first."""
    async with asyncio.TaskGroup() as tasks:
        lines = _Lines(sources, tasks, most)
        while (chunk := await lines.next()) is not None:
            await write(chunk)


class _Line:
    """One source, read a little ahead."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.at_ms = 0  # of its latest chunk: whatever has no time of its own comes right after
        self.ahead: asyncio.Queue[Chunk | None] = asyncio.Queue(2)

    async def read(self, source: Source) -> None:
        async with aclosing(source()) as chunks:
            async for chunk in chunks:
                await self.ahead.put(chunk)
        await self.ahead.put(None)


class _Lines:
    def __init__(self, sources: Iterator[Source], tasks: asyncio.TaskGroup, most: int) -> None:
        self._sources = enumerate(sources)
        self._tasks = tasks
        self._fresh: deque[_Line] = deque()  # opened, and nothing is known of them
        self._heads: list[tuple[int, int, Chunk, _Line]] = []  # the next chunk of each that has one
        self._last: _Line | None = None  # whose chunk was given
        for _ in range(most):
            self._open()

    async def next(self) -> Chunk | None:
        if self._last is not None:
            await self._advance(self._last)
        while self._fresh:
            await self._advance(self._fresh.popleft())
        if not self._heads:
            return None
        *_, chunk, self._last = heappop(self._heads)
        return chunk

    async def _advance(self, line: _Line) -> None:
        chunk = await line.ahead.get()
        if chunk is None:
            self._last = None
            self._open()
        else:
            line.at_ms = max(line.at_ms, chunk.at_ms)
            heappush(self._heads, (line.at_ms, line.number, chunk, line))

    def _open(self) -> None:
        found = next(self._sources, None)
        if found is not None:
            number, source = found
            line = _Line(number)
            self._fresh.append(line)
            self._tasks.create_task(line.read(source))
