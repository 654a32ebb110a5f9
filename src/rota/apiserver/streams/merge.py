"""Merge: many streams of chunks -> one, in the order of arrival. [I/O]"""

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
    """Write the chunks of all sources. At most `most` sources are open; the next opens when one has ended.

    Sources have to be in the order of their starts, or chunks of a source that opens late come too late.
    """
    async with asyncio.TaskGroup() as tasks:
        merger = _Merger(sources, tasks, most)
        while (chunk := await merger.next()) is not None:
            await write(chunk)


class _SourceReader:
    """One source, read ahead by at most two chunks: backpressure on its node."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.at_ms = 0  # of its latest chunk: a chunk without a time comes right after it
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
        self._unread: deque[_SourceReader] = deque()  # opened, and their first chunk is not known yet
        # A heap of the next chunk of each source, by time, then by number so that the order is total.
        self._heads: list[tuple[int, int, StreamChunk, _SourceReader]] = []
        self._last: _SourceReader | None = None  # the source of the chunk returned last
        for _ in range(most):
            self._open()

    async def next(self) -> StreamChunk | None:
        if self._last is not None:
            await self._advance(self._last)
        # Ordering: the earliest chunk is known only when every open source has shown its next one.
        while self._unread:
            await self._advance(self._unread.popleft())
        if not self._heads:
            return None
        *_, chunk, self._last = heappop(self._heads)
        return chunk

    async def _advance(self, reader: _SourceReader) -> None:
        chunk = await reader.ahead.get()
        if chunk is None:
            self._last = None
            self._open()
        else:
            reader.at_ms = max(reader.at_ms, chunk.at_ms)
            heappush(self._heads, (reader.at_ms, reader.number, chunk, reader))

    def _open(self) -> None:
        numbered = next(self._sources, None)
        if numbered is not None:
            number, source = numbered
            reader = _SourceReader(number)
            self._unread.append(reader)
            self._tasks.create_task(reader.read(source))
