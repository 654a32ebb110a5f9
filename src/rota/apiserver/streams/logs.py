"""Output of tasks, over retries and whole arrays: which attempts to read, a bounded number at once. [I/O]"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from rota.apiserver.streams.chunks import (
    EncodedChunkCache,
    StreamChunk,
    split_into_chunks,
    to_json_line,
    to_text,
)
from rota.apiserver.streams.event_hub import EventHub, JobChangeSignal
from rota.apiserver.streams.log_selection import (
    AttemptSearch,
    LogSelection,
    ReadableAttempt,
    StreamKey,
    log_request,
)
from rota.apiserver.streams.merge import Source, merge
from rota.engine.run import Engine
from rota.engine.state.mirror import Mirror
from rota.model.errors import Unavailable, Withheld
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import LOST_MS, TAIL_BYTES
from rota.model.messages import LogPiece, LogRequest, Tail
from rota.rules.log_pieces import behind

OPEN_AT_ONCE = 64  # streams one request reads at the same time: each is a call to a node
SORTED_AT_ONCE = 65_536  # attempts put in the order of their starts: of a larger array each such part
AGAIN_SECONDS = 0.5  # between two looks for a node that is away: about the time in which an agent restarts

Write = Callable[[bytes], Awaitable[None]]


class LogSource(Protocol):
    def open(self, node: NodeId, wanted: LogRequest) -> AsyncIterator[LogPiece]:
        """What was written so far; with `follow` until the attempt has ended. Raises Unavailable."""


class TailSource(Protocol):
    def find(self, job: JobId, index: int, attempt: int, stream: str) -> Tail | None:
        """What the server itself keeps of a stream."""


class _ReadProgress(NamedTuple):
    """How far a stream was read; not whole: its node went away before it had sent all there was."""

    offset: int
    is_whole: bool = True


class _AttemptBatch(NamedTuple):
    """Attempts that have begun: before the reader came, or since."""

    attempts: list[ReadableAttempt]
    is_new: bool


@dataclass(frozen=True, slots=True)
class Logs:
    engine: Engine
    event_hub: EventHub
    source: LogSource
    tails: TailSource | None = None
    encoded: EncodedChunkCache = field(default_factory=EncodedChunkCache)

    async def copy_chunks(
        self, wanted: LogSelection, write: Callable[[StreamChunk], Awaitable[None]]
    ) -> None:
        """Every chunk: first what there is, in the order it arrived, then as it comes."""

        async def write_piece(begun: ReadableAttempt, stream: str, piece: LogPiece) -> None:
            for chunk in split_into_chunks(begun, stream, piece):
                await write(chunk)

        await self._copy(wanted, write, write_piece)

    async def copy_lines(self, wanted: LogSelection, write: Write) -> None:
        """The same, each chunk a line of JSON."""

        async def write_piece(begun: ReadableAttempt, stream: str, piece: LogPiece) -> None:
            if lines := self.encoded.lines(wanted.job, begun, stream, piece):
                await write(lines)

        await self._copy(wanted, lambda chunk: write(to_json_line(chunk)), write_piece)

    async def copy_text(self, wanted: LogSelection, write: Write) -> None:
        """The bytes of one stream of one task, attempt after attempt; `offset` is of the first."""
        offset, stream = wanted.offset, wanted.streams[0]
        async with aclosing(self._find_attempts(wanted)) as found:
            async for some in found:
                for begun in some.attempts:
                    request = log_request(wanted, begun, stream, offset)
                    async with aclosing(self._read_stream(begun.node, request)) as pieces:
                        async for piece in pieces:
                            if text := to_text(stream, piece):
                                await write(text)
                    offset = 0

    async def _copy(
        self,
        wanted: LogSelection,
        write: Callable[[StreamChunk], Awaitable[None]],
        write_piece: Callable[[ReadableAttempt, str, LogPiece], Awaitable[None]],
    ) -> None:
        writing, slots = asyncio.Lock(), asyncio.Semaphore(OPEN_AT_ONCE)
        before: dict[tuple[int, str], asyncio.Task[None]] = {}

        async def write_alone(begun: ReadableAttempt, stream: str, piece: LogPiece) -> None:
            async with writing:
                await write_piece(begun, stream, piece)

        async def follow(
            begun: ReadableAttempt, stream: str, offset: int | None, earlier: asyncio.Task[None] | None
        ) -> None:
            try:
                if earlier is not None:
                    await asyncio.wait([earlier])
                await self._follow(wanted, (begun, stream), offset, write_alone)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as readers, aclosing(self._find_attempts(wanted)) as found:
            async for some in found:
                known = {} if some.is_new else await self._copy_sorted(wanted, some.attempts, write)
                for begun, stream in _to_follow(wanted, some.attempts, known):
                    await slots.acquire()
                    for key in [key for key, reader in before.items() if reader.done()]:
                        del before[key]
                    earlier = before.get((begun.index, stream))
                    upto = known.get((begun.index, begun.attempt, stream))
                    offset = None if upto is None else upto.offset
                    before[begun.index, stream] = readers.create_task(follow(begun, stream, offset, earlier))

    async def _copy_sorted(
        self,
        wanted: LogSelection,
        begun: list[ReadableAttempt],
        write: Callable[[StreamChunk], Awaitable[None]],
    ) -> dict[StreamKey, _ReadProgress]:
        """What there is of all of them; up to where each was read."""
        known: dict[StreamKey, _ReadProgress] = {}

        def sources() -> Iterator[Source]:
            for one in sorted(begun, key=lambda one: one.started_ms):
                for stream in wanted.streams:
                    yield partial(self._recorded_chunks, wanted, one, stream, known)

        await merge(sources(), OPEN_AT_ONCE, write)
        return known

    async def _recorded_chunks(
        self, wanted: LogSelection, begun: ReadableAttempt, stream: str, known: dict[StreamKey, _ReadProgress]
    ) -> AsyncGenerator[StreamChunk, None]:
        key = (begun.index, begun.attempt, stream)
        request = log_request(wanted, begun, stream, wanted.offset)._replace(follow=False)
        next_offset = request.offset
        # A follower is given what the server itself keeps only when the node does not come back.
        waits = wanted.follow and await self.engine.read(lambda mirror: _may_reconnect(mirror, begun.node))
        read = self._open if waits else self._closing_stream
        try:
            async with read(begun.node, request) as pieces:
                async for piece in pieces:
                    for chunk in split_into_chunks(begun, stream, piece):
                        yield chunk
                    next_offset = piece.offset + len(piece.data)
        except Unavailable as error:
            if waits:
                if next_offset > request.offset:  # not once more what was read before
                    known[key] = _ReadProgress(next_offset, is_whole=False)
                return
            yield StreamChunk(begun.index, begun.attempt, stream, next_offset, b"", 0, str(error))
        known[key] = _ReadProgress(next_offset)

    async def _follow(
        self,
        wanted: LogSelection,
        attempt_stream: tuple[ReadableAttempt, str],
        offset: int | None,
        write: Callable[[ReadableAttempt, str, LogPiece], Awaitable[None]],
    ) -> None:
        begun, stream = attempt_stream
        request = log_request(wanted, begun, stream, wanted.offset)
        if offset is not None:
            request = LogRequest(*request[:4], offset, follow=True)
        next_offset = request.offset
        try:
            async with aclosing(self._read_stream(begun.node, request)) as pieces:
                async for piece in pieces:
                    await write(begun, stream, piece)
                    next_offset = piece.offset + len(piece.data)
        except Unavailable as error:
            await write(begun, stream, LogPiece(next_offset, b"", rest=str(error)))

    async def _read_stream(self, node: NodeId, request: LogRequest) -> AsyncGenerator[LogPiece, None]:
        """All of a stream; while following, a node that is away for a moment is waited for."""
        clock = asyncio.get_running_loop()
        away_since: float | None = None
        while True:
            try:
                async with self._open(node, request) as pieces:
                    async for piece in pieces:
                        away_since = None
                        yield piece
                        request = LogRequest(*request[:4], piece.offset + len(piece.data), request.follow)
                return
            except Unavailable as error:
                away_since = away_since or clock.time()
                late = not request.follow or clock.time() > away_since + LOST_MS / 1000
                if (
                    late
                    or isinstance(error, Withheld)
                    or not await self.engine.read(lambda mirror: _may_reconnect(mirror, node))
                ):
                    yield await self._read_tail(request, error)
                    return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _read_tail(self, request: LogRequest, error: Unavailable) -> LogPiece:
        """What the server has of a stream that its node does not give; the error if that is nothing."""
        tail: Tail | None = None
        if self.tails is not None:
            asked = (request.job, request.task, request.attempt, request.stream)
            tail = await asyncio.to_thread(self.tails.find, *asked)
        if tail is None:
            raise error
        reason = f"{error}, and the server keeps the last {TAIL_BYTES >> 10} KiB"
        missing = max(0, tail.offset - request.offset)
        rest = None if tail.is_final else f"{reason} that it was told of"
        return behind(
            _tail_start(request, tail), LogPiece(tail.offset, tail.data, missing, reason, rest=rest)
        )

    def _closing_stream(self, node: NodeId, request: LogRequest) -> aclosing[AsyncGenerator[LogPiece, None]]:
        return aclosing(self._read_stream(node, request))

    @asynccontextmanager
    async def _open(self, node: NodeId, request: LogRequest) -> AsyncIterator[AsyncIterator[LogPiece]]:
        pieces = self.source.open(node, request)
        try:
            yield pieces
        finally:
            # The node is to stop sending now, not when memory is tidied.
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    async def _find_attempts(self, wanted: LogSelection) -> AsyncGenerator[_AttemptBatch, None]:
        """Attempts to read, each once: those there are, then, while following, those that begin."""
        search, is_news = AttemptSearch(wanted), False
        with self.event_hub.follow_job(wanted.job) as news:
            while True:
                ended = await self.engine.read(search.has_ended)  # looked at first: nothing begins after it
                found: list[ReadableAttempt] = []
                for block in await self.engine.read(search.changed_blocks):
                    found += await self._scan_block(search, block)
                    if len(found) >= SORTED_AT_ONCE:
                        yield _AttemptBatch(found, is_news)
                        found = []
                if found:
                    yield _AttemptBatch(found, is_news)
                if ended or not wanted.follow:
                    return
                is_news = True
                await _wait_for_change(news)

    async def _scan_block(self, search: AttemptSearch, block: int) -> list[ReadableAttempt]:
        return await self.engine.read(lambda mirror: search.scan_block(mirror, block))


def _to_follow(
    wanted: LogSelection, some: list[ReadableAttempt], known: dict[StreamKey, _ReadProgress]
) -> Iterator[tuple[ReadableAttempt, str]]:
    """All that may say more: not what has ended and was read."""
    for begun in some if wanted.follow else ():
        for stream in wanted.streams:
            upto = known.get((begun.index, begun.attempt, stream))
            if not begun.has_ended or upto is None or not upto.is_whole:
                yield begun, stream


def _may_reconnect(mirror: Mirror, node: NodeId) -> bool:
    entry = mirror.nodes.get(node)
    status = entry.status if entry else None
    return status is not None and status.state in (NodeState.READY, NodeState.SUSPECT)


def _tail_start(request: LogRequest, tail: Tail) -> int:
    """Of the last lines only those that are kept can be found; when they arrived is not known here."""
    lines = request.window.tail_lines
    if lines is None:
        return request.offset
    at = len(tail.data)
    for _ in range(lines + tail.data.endswith(b"\n") if lines else 0):
        at = tail.data.rfind(b"\n", 0, at)
        if at < 0:
            return request.offset
    return max(request.offset, tail.offset + (at + 1 if lines else at))


async def _wait_for_change(news: JobChangeSignal) -> None:
    while not await news.wait():
        pass
