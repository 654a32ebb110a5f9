"""Streams of chunks -> one, in the order in which they arrived. [I/O]"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from heapq import heappop, heappush

from rota.apiserver.streams.chunks import StreamChunk

Source = Callable[[], AsyncGenerator[StreamChunk, None]]


async def merge(
    sources: Iterator[Source], most: int, write: Callable[[StreamChunk], Awaitable[None]]
) -> None:
    """So many are read at once, the next when one has ended: the earlier ones first."""
    async with asyncio.TaskGroup() as tasks:
        lines = _Merger(sources, tasks, most)
        while (chunk := await lines.next()) is not None:
            await write(chunk)


class _SourceReader:
    """One source, read a little ahead."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.at_ms = 0  # of its latest chunk: whatever has no time of its own comes right after
        self.ahead: asyncio.Queue[StreamChunk | None] = asyncio.Queue(2)

    async def read(self, source: Source) -> None:
        async with aclosing(source()) as chunks:
            async for chunk in chunks:
                await self.ahead.put(chunk)
        await self.ahead.put(None)


class _Merger:
    def __init__(self, sources: Iterator[Source], tasks: asyncio.TaskGroup, most: int) -> None:
        self._sources = enumerate(sources)
        self._tasks = tasks
        self._unread: deque[_SourceReader] = deque()  # opened, and nothing is known of them
        self._heads: list[
            tuple[int, int, StreamChunk, _SourceReader]
        ] = []  # the next chunk of each that has one
        self._last: _SourceReader | None = None  # whose chunk was given
        for _ in range(most):
            self._open()

    async def next(self) -> StreamChunk | None:
        if self._last is not None:
            await self._advance(self._last)
        while self._unread:
            await self._advance(self._unread.popleft())
        if not self._heads:
            return None
        *_, chunk, self._last = heappop(self._heads)
        return chunk

    async def _advance(self, line: _SourceReader) -> None:
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
            line = _SourceReader(number)
            self._unread.append(line)
            self._tasks.create_task(line.read(source))
