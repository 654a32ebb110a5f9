"""Many followers of one log share one read of it; a follower that falls behind reads alone to catch up. [I/O]

A stream is read from its node at the pace of the fastest follower. The last part of it is buffered for slower
ones; a follower below the buffer reads the missing part from the node by a request of its own, then joins
again. No follower can hold back the others, and memory is bounded by the buffer of each stream.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from rota.apiserver.streams.logs import LogSource
from rota.model.ids import NodeId
from rota.model.messages import WHOLE_LOG, LogPiece, LogRequest
from rota.rules.log_pieces import behind, joined

BUFFER_BYTES_MAX = 1 << 20  # of one stream, for followers that are a little slower
BUFFER_PIECES_MAX = 1024
JOINED_BYTES_MAX = 128 << 10  # in one piece: what a stalled follower holds in memory
WAKE_BATCH = 25  # followers woken together: about a millisecond of the event loop
FOLLOWER_SHARE_SECONDS = 200e-6  # delay per follower between two reads: bounds their share of a core


class SharedLogSource:
    """A LogSource that opens each followed stream once."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._streams: dict[tuple[NodeId, LogRequest], SharedStream] = {}

    async def open(self, node: NodeId, log_request: LogRequest) -> AsyncIterator[LogPiece]:
        request = log_request
        # Each round: read alone up to where the shared stream is, then from the shared stream until this
        # follower falls behind it, it breaks, or it ends.
        while True:
            if not log_request.follow or request.window != WHOLE_LOG or self._is_behind(node, request):
                async with _opened(self._source, node, request._replace(follow=False)) as pieces:
                    async for piece in pieces:
                        yield piece
                        request = _request_from(request, piece.offset + len(piece.data))
            if not log_request.follow:
                return
            request = _request_from(request, request.offset)
            async with self._join(node, request) as stream:
                offset = request.offset
                while (shared := await stream.read_after(offset)) is not None:
                    yield shared if shared.offset == offset else behind(offset, shared)
                    offset = max(offset, shared.offset + len(shared.data))
                request = _request_from(request, offset)
                if stream.has_ended and offset >= stream.end_offset:
                    return

    def _is_behind(self, node: NodeId, request: LogRequest) -> bool:
        stream = self._streams.get((node, request._replace(offset=0)))
        return stream is not None and request.offset < stream.first_offset

    @asynccontextmanager
    async def _join(self, node: NodeId, request: LogRequest) -> AsyncIterator["SharedStream"]:
        key = (node, request._replace(offset=0))
        stream = self._streams.get(key)
        # The follower opens it at its own offset. Others join only if they are not below
        # it, else they catch up first.
        if stream is None or stream.is_broken:
            stream = self._streams[key] = SharedStream(self._source.open(node, request), request.offset)
        stream.followers += 1
        try:
            yield stream
        finally:
            stream.followers -= 1
            if not stream.followers or stream.is_broken:
                # After a break another follower may have replaced it already: then that one stays.
                if self._streams.get(key) is stream:
                    del self._streams[key]
                await stream.close()


class SharedStream:
    """One read of a log for many followers. Whichever follower needs more first fetches it for all.

    Invariant: `_held` covers the bytes from `first_offset` to `end_offset`, and `_ends[i]` is where piece i
    ends. At most one follower fetches at a time; the others wait for futures in `_waiting`.
    """

    def __init__(self, pieces: AsyncIterator[LogPiece], offset: int) -> None:
        self._pieces = pieces
        self._held: list[LogPiece] = []
        self._ends: list[int] = []
        self._held_bytes = 0
        self._joined_piece: LogPiece | None = None  # pieces joined last: most followers want the same ones
        self._joined_until = 0
        self._is_fetching = False
        self._waiting: list[asyncio.Future[None]] = []
        self._fetched_at = 0.0
        self.first_offset = offset
        self.end_offset = offset
        self.followers = 0
        self.has_ended = False
        self.is_broken = False  # the fetching follower was cancelled or failed: the others open it again

    async def read_after(self, offset: int) -> LogPiece | None:
        """The next piece from that offset on; None: not buffered any more, or the stream ended or broke."""
        while offset >= self.first_offset:
            first = bisect_right(self._ends, offset)
            if first < len(self._held):
                return self._joined_from(first)
            if self.has_ended or self.is_broken:
                return None
            if self._is_fetching:
                fetched = asyncio.get_running_loop().create_future()
                self._waiting.append(fetched)
                await fetched
            else:
                await self._fetch()
        return None

    async def close(self) -> None:
        if isinstance(self._pieces, AsyncGenerator):
            await self._pieces.aclose()

    def _joined_from(self, first: int) -> LogPiece:
        """Several pieces from that one on, joined: a follower that reads less often gets more at a time."""
        piece = self._held[first]
        # The common case: the follower is up to date and gets the object that all
        # others get, which is encoded once.
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
            # Cancellation included: the generator cannot be used after it. Set before the others are woken,
            # so that they open the stream again instead of waiting for this one.
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
                await asyncio.sleep(0)  # serve other requests between two batches
        finally:
            # This follower may be cancelled between two batches: the others must not wait for ever.
            _wake(waiting, len(waiting))

    async def _throttle(self) -> None:
        """Read less often the more followers there are, so that other requests get their part of the core."""
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
        # One piece always stays, or a piece larger than the buffer would be dropped
        # before any follower has read it.
        while len(self._held) > 1 and (
            self._held_bytes > BUFFER_BYTES_MAX or len(self._held) > BUFFER_PIECES_MAX
        ):
            self.first_offset = self._ends.pop(0)
            self._held_bytes -= len(self._held.pop(0).data)


def _wake(waiting: list[asyncio.Future[None]], count: int = WAKE_BATCH) -> list[asyncio.Future[None]]:
    """Wake the first `count` of those waiting; returns the others."""
    for fetched in waiting[:count]:
        if not fetched.done():
            fetched.set_result(None)
    return waiting[count:]


def _request_from(request: LogRequest, offset: int) -> LogRequest:
    """The request for everything from an offset on."""
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
