"""Many followers of one stream share one reading of it; whoever falls behind reads alone until he is not."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from rota.apiserver.logs import LogSource
from rota.model.ids import NodeId
from rota.model.sync import LogPiece, LogRequest

HELD_BYTES = 1 << 20  # of one stream, for those who are a little slower
HELD_PIECES = 1024


class Shared:
    """A LogSource that opens each followed stream once."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._feeds: dict[tuple[NodeId, LogRequest], Feed] = {}

    async def open(self, node: NodeId, wanted: LogRequest) -> AsyncIterator[LogPiece]:
        request = wanted
        while True:
            alone = request._replace(follow=False)
            if not wanted.follow or self._is_behind(node, request):
                async with _opened(self._source, node, alone) as pieces:
                    async for piece in pieces:
                        yield piece
                        request = request._replace(offset=piece.offset + len(piece.data))
            if not wanted.follow:
                return
            async with self._joined(node, request) as feed:
                place = feed.place(request.offset)
                while place is not None and (held := await feed.at(place)) is not None:
                    yield _after(request.offset, held)
                    request = request._replace(offset=max(request.offset, held.offset + len(held.data)))
                    place = feed.after(place)
                if feed.is_over and request.offset >= feed.end:
                    return

    def _is_behind(self, node: NodeId, request: LogRequest) -> bool:
        feed = self._feeds.get((node, request._replace(offset=0)))
        return feed is not None and feed.place(request.offset) is None

    @asynccontextmanager
    async def _joined(self, node: NodeId, request: LogRequest) -> AsyncIterator["Feed"]:
        key = (node, request._replace(offset=0))
        feed = self._feeds.get(key)
        if feed is None or feed.is_broken:
            feed = self._feeds[key] = Feed(self._source.open(node, request), request.offset)
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers or feed.is_broken:
                if self._feeds.get(key) is feed:
                    del self._feeds[key]
                await feed.close()


class Feed:
    """One reading, at the pace of its fastest follower, who fetches for all; what came last is held."""

    def __init__(self, pieces: AsyncIterator[LogPiece], offset: int) -> None:
        self._pieces = pieces
        self._held: list[LogPiece] = []
        self._held_bytes = 0
        self._dropped = 0  # pieces that were held before
        self._begin = offset
        self._fetching = asyncio.Lock()
        self.end = offset
        self.followers = 0
        self.is_over = False
        self.is_broken = False  # whoever fetched has gone or met an error: others begin anew

    def place(self, offset: int) -> int | None:
        """The number of the piece that holds this byte, or of the next one; None: it is held no more."""
        if offset < self._begin:
            return None
        for number, piece in enumerate(self._held):
            if offset < piece.offset + len(piece.data):
                return self._dropped + number
        return self._dropped + len(self._held)

    def after(self, place: int) -> int | None:
        return None if place + 1 < self._dropped else place + 1

    async def at(self, place: int) -> LogPiece | None:
        """The piece of that number, when there is one; None: the stream has ended, or begin anew."""
        if place - self._dropped >= len(self._held):
            async with self._fetching:
                while place - self._dropped >= len(self._held) and not (self.is_over or self.is_broken):
                    await self._fetch()
        number = place - self._dropped
        return self._held[number] if 0 <= number < len(self._held) else None

    async def close(self) -> None:
        if isinstance(self._pieces, AsyncGenerator):
            await self._pieces.aclose()

    async def _fetch(self) -> None:
        try:
            piece = await anext(self._pieces)
        except StopAsyncIteration:
            self.is_over = True
            return
        except BaseException:
            self.is_broken = True
            raise
        if piece.data or piece.missing:
            self._held.append(piece)
            self._held_bytes += len(piece.data)
            self.end = piece.offset + len(piece.data)
        while len(self._held) > 1 and (self._held_bytes > HELD_BYTES or len(self._held) > HELD_PIECES):
            gone = self._held.pop(0)
            self._dropped += 1
            self._held_bytes -= len(gone.data)
            self._begin = gone.offset + len(gone.data)


def _after(offset: int, piece: LogPiece) -> LogPiece:
    """The part of it that lies beyond."""
    missing = min(piece.missing, max(0, piece.offset - offset))
    cut = max(0, offset - piece.offset)
    return piece._replace(offset=piece.offset + cut, data=piece.data[cut:], missing=missing)


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
