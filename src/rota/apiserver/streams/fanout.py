"""Followers of one stream share one read of it; a slow one reads alone until it has caught up. [I/O]"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from rota.apiserver.streams.logs import LogSource
from rota.model.ids import NodeId
from rota.model.messages import WHOLE_LOG, LogPiece, LogRequest
from rota.rules.log_pieces import behind, joined

BUFFER_BYTES_MAX = 1 << 20  # of one stream, for those who are a little slower
BUFFER_PIECES_MAX = 1024
JOINED_BYTES_MAX = 128 << 10  # in one piece: what a follower who stalls holds of it in memory
WAKE_BATCH = 25  # followers: a millisecond of the server's time
FOLLOWER_SHARE_SECONDS = 200e-6  # of each follower between two tellings: all together take a part of a core


class SharedLogSource:
    """A LogSource that opens each followed stream once."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._streams: dict[tuple[NodeId, LogRequest], SharedStream] = {}

    async def open(self, node: NodeId, wanted: LogRequest) -> AsyncIterator[LogPiece]:
        request = wanted
        while True:
            if not wanted.follow or request.window != WHOLE_LOG or self._is_behind(node, request):
                async with _opened(self._source, node, request._replace(follow=False)) as pieces:
                    async for piece in pieces:
                        yield piece
                        request = _request_from(request, piece.offset + len(piece.data))
            if not wanted.follow:
                return
            request = _request_from(request, request.offset)
            async with self._join(node, request) as feed:
                offset = request.offset
                while (held := await feed.read_after(offset)) is not None:
                    yield held if held.offset == offset else behind(offset, held)
                    offset = max(offset, held.offset + len(held.data))
                request = _request_from(request, offset)
                if feed.has_ended and offset >= feed.end_offset:
                    return

    def _is_behind(self, node: NodeId, request: LogRequest) -> bool:
        feed = self._streams.get((node, request._replace(offset=0)))
        return feed is not None and request.offset < feed.first_offset

    @asynccontextmanager
    async def _join(self, node: NodeId, request: LogRequest) -> AsyncIterator["SharedStream"]:
        key = (node, request._replace(offset=0))
        feed = self._streams.get(key)
        if feed is None or feed.is_broken:
            feed = self._streams[key] = SharedStream(self._source.open(node, request), request.offset)
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers or feed.is_broken:
                if self._streams.get(key) is feed:
                    del self._streams[key]
                await feed.close()


class SharedStream:
    """One reading, at the pace of its fastest follower, who fetches for all; what came last is held."""

    def __init__(self, pieces: AsyncIterator[LogPiece], offset: int) -> None:
        self._pieces = pieces
        self._held: list[LogPiece] = []
        self._ends: list[int] = []  # where each of them ends
        self._held_bytes = 0
        self._joined_piece: LogPiece | None = (
            None  # what was last made of several: most followers want the same
        )
        self._joined_until = 0
        self._is_fetching = False
        self._waiting: list[asyncio.Future[None]] = []
        self._fetched_at = 0.0
        self.first_offset = offset
        self.end_offset = offset
        self.followers = 0
        self.has_ended = False
        self.is_broken = False  # whoever fetched has gone or met an error: others begin anew

    async def read_after(self, offset: int) -> LogPiece | None:
        """What is held from there on, or comes next; None: it is held no more, has ended, or begin anew."""
        while offset >= self.first_offset:
            first = bisect_right(self._ends, offset)
            if first < len(self._held):
                return self._joined_from(first)
            if self.has_ended or self.is_broken:
                return None
            if self._is_fetching:
                news = asyncio.get_running_loop().create_future()
                self._waiting.append(news)
                await news
            else:
                await self._fetch()
        return None

    async def close(self) -> None:
        if isinstance(self._pieces, AsyncGenerator):
            await self._pieces.aclose()

    def _joined_from(self, first: int) -> LogPiece:
        """From that piece on some in one: who is told seldom is told more at a time."""
        piece = self._held[first]
        if first + 1 == len(self._held):
            return piece
        if (
            self._joined_piece is None
            or self._joined_piece.offset != piece.offset
            or self._joined_until != self._ends[-1]
        ):
            self._joined_piece = joined(self._held[first:], JOINED_BYTES_MAX)[0]
            self._joined_until = self._ends[-1]
        return self._joined_piece

    async def _fetch(self) -> None:
        self._is_fetching = True
        try:
            await self._throttle()
            self._buffer(await anext(self._pieces))
        except StopAsyncIteration:
            self.has_ended = True
        except BaseException:
            self.is_broken = True
            _wake(self._waiting, len(self._waiting))
            raise
        finally:
            self._is_fetching = False
            self._fetched_at = asyncio.get_running_loop().time()
        waiting, self._waiting = self._waiting, []
        try:
            while waiting:
                waiting = _wake(waiting)
                await asyncio.sleep(0)  # between some and some others everybody else has a turn
        finally:
            _wake(waiting, len(waiting))

    async def _throttle(self) -> None:
        """The more followers there are, the less often all of them are told: others need the core, too."""
        early_seconds = (
            self._fetched_at + self.followers * FOLLOWER_SHARE_SECONDS - asyncio.get_running_loop().time()
        )
        if early_seconds > 0:
            await asyncio.sleep(early_seconds)

    def _buffer(self, piece: LogPiece) -> None:
        if piece.data or piece.missing:
            self._held.append(piece)
            self.end_offset = piece.offset + len(piece.data)
            self._ends.append(self.end_offset)
            self._held_bytes += len(piece.data)
        while len(self._held) > 1 and (
            self._held_bytes > BUFFER_BYTES_MAX or len(self._held) > BUFFER_PIECES_MAX
        ):
            self.first_offset = self._ends.pop(0)
            self._held_bytes -= len(self._held.pop(0).data)


def _wake(waiting: list[asyncio.Future[None]], count: int = WAKE_BATCH) -> list[asyncio.Future[None]]:
    """Some; the others are left."""
    for news in waiting[:count]:
        if not news.done():
            news.set_result(None)
    return waiting[count:]


def _request_from(request: LogRequest, offset: int) -> LogRequest:
    """All that comes after it."""
    return request._replace(offset=offset, window=WHOLE_LOG)


@asynccontextmanager
async def _opened(
    source: LogSource, node: NodeId, request: LogRequest
) -> AsyncIterator[AsyncIterator[LogPiece]]:
    pieces = source.open(node, request)
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
