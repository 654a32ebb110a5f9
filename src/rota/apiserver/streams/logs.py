"""Logs: the output of tasks over retries and whole arrays, a bounded number of streams at a time. [I/O]

A reader first gets what is recorded, merged in the order of arrival, then each stream as it grows. Bytes come
from the node that has them. A node that disconnects while it is followed is waited for until it counts as
lost; after that the reader gets the tail that the server keeps, and the reason for the gap.
"""

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

OPEN_AT_ONCE = 64  # streams that one request reads at the same time: each is a call to a node
SORTED_AT_ONCE = 65_536  # attempts merged by time: a larger array is merged in parts of this size
RETRY_SECONDS = 0.5  # between two calls to an unreachable node: about the time an agent takes to restart

Write = Callable[[bytes], Awaitable[None]]


class LogSource(Protocol):
    """Reads output from the nodes that have it."""

    def open(self, node: NodeId, request: LogRequest) -> AsyncIterator[LogPiece]:
        """What was written so far; with `follow`, until the attempt has ended. Raises Unavailable."""


class TailSource(Protocol):
    """Reads the tails of output that the server stores."""

    def find(self, job: JobId, index: int, attempt: int, stream: str) -> Tail | None:
        """The end of a stream, as the server itself stores it."""


class _ReadProgress(NamedTuple):
    """How far a stream was read; not whole if its node disconnected before the end of what is recorded."""

    offset: int
    is_whole: bool = True


class _AttemptBatch(NamedTuple):
    """Attempts that started before the reader came, or since then (`is_new`)."""

    attempts: list[ReadableAttempt]
    is_new: bool


@dataclass(frozen=True, slots=True)
class Logs:
    """Copies the selected output of a job to a writer, until its end or until the caller is cancelled."""

    engine: Engine
    event_hub: EventHub
    source: LogSource
    tails: TailSource | None = None
    encoded: EncodedChunkCache = field(default_factory=EncodedChunkCache)

    async def copy_chunks(
        self, selection: LogSelection, write: Callable[[StreamChunk], Awaitable[None]]
    ) -> None:
        """Every chunk: first the recorded ones in the order of arrival, then new ones as they arrive."""

        async def write_piece(readable: ReadableAttempt, stream: str, piece: LogPiece) -> None:
            for chunk in split_into_chunks(readable, stream, piece):
                await write(chunk)

        await self._copy(selection, write, write_piece)

    async def copy_lines(self, selection: LogSelection, write: Write) -> None:
        """Every chunk as a line of JSON, in the order of `copy_chunks`."""

        async def write_piece(readable: ReadableAttempt, stream: str, piece: LogPiece) -> None:
            if lines := self.encoded.lines(selection.job, readable, stream, piece):
                await write(lines)

        await self._copy(selection, lambda chunk: write(to_json_line(chunk)), write_piece)

    async def copy_text(self, selection: LogSelection, write: Write) -> None:
        """The bytes of one stream of one task, attempt after attempt; `offset` is in the first."""
        offset, stream = selection.offset, selection.streams[0]
        async with aclosing(self._find_attempts(selection)) as batches:
            async for batch in batches:
                for readable in batch.attempts:
                    request = log_request(selection, readable, stream, offset)
                    async with aclosing(self._read_stream(readable.node, request)) as pieces:
                        async for piece in pieces:
                            if text := to_text(stream, piece):
                                await write(text)
                    offset = 0

    async def _copy(
        self,
        selection: LogSelection,
        write: Callable[[StreamChunk], Awaitable[None]],
        write_piece: Callable[[ReadableAttempt, str, LogPiece], Awaitable[None]],
    ) -> None:
        # Each open stream is a call to a node: an array of a million tasks must not open a million of them.
        writing, slots = asyncio.Lock(), asyncio.Semaphore(OPEN_AT_ONCE)
        running: dict[tuple[int, str], asyncio.Task[None]] = {}  # the newest reader of each task and stream

        async def write_alone(readable: ReadableAttempt, stream: str, piece: LogPiece) -> None:
            async with writing:  # readers run at the same time; chunks must not be interleaved
                await write_piece(readable, stream, piece)

        async def follow(
            readable: ReadableAttempt, stream: str, offset: int | None, earlier: asyncio.Task[None] | None
        ) -> None:
            try:
                # Ordering: output of a retry comes after all output of the attempt before it.
                if earlier is not None:
                    await asyncio.wait([earlier])
                await self._follow(selection, (readable, stream), offset, write_alone)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as readers, aclosing(self._find_attempts(selection)) as batches:
            async for batch in batches:
                known = {} if batch.is_new else await self._copy_sorted(selection, batch.attempts, write)
                for readable, stream in _to_follow(selection, batch.attempts, known):
                    # Backpressure: the search waits while too many streams are open. No deadlock, as a reader
                    # waits only for one that started before it, and so has its slot already.
                    await slots.acquire()
                    for key in [key for key, reader in running.items() if reader.done()]:
                        del running[key]
                    earlier = running.get((readable.index, stream))
                    progress = known.get((readable.index, readable.attempt, stream))
                    offset = None if progress is None else progress.offset
                    reader = readers.create_task(follow(readable, stream, offset, earlier))
                    running[readable.index, stream] = reader

    async def _copy_sorted(
        self,
        selection: LogSelection,
        attempts: list[ReadableAttempt],
        write: Callable[[StreamChunk], Awaitable[None]],
    ) -> dict[StreamKey, _ReadProgress]:
        """Copy what is recorded of the attempts, merged by time; how far each stream was read."""
        known: dict[StreamKey, _ReadProgress] = {}

        def sources() -> Iterator[Source]:
            for readable in sorted(attempts, key=lambda readable: readable.started_ms):
                for stream in selection.streams:
                    yield partial(self._recorded_chunks, selection, readable, stream, known)

        await merge(sources(), OPEN_AT_ONCE, write)
        return known

    async def _recorded_chunks(
        self,
        selection: LogSelection,
        readable: ReadableAttempt,
        stream: str,
        known: dict[StreamKey, _ReadProgress],
    ) -> AsyncGenerator[StreamChunk, None]:
        key = (readable.index, readable.attempt, stream)
        request = log_request(selection, readable, stream, selection.offset)._replace(follow=False)
        next_offset = request.offset
        # A follower gets the server's tail only if the node does not reconnect: `_follow` decides that later.
        waits = selection.follow and await self.engine.read(
            lambda mirror: _may_reconnect(mirror, readable.node)
        )
        read = self._open if waits else self._closing_stream
        try:
            async with read(readable.node, request) as pieces:
                async for piece in pieces:
                    for chunk in split_into_chunks(readable, stream, piece):
                        yield chunk
                    next_offset = piece.offset + len(piece.data)
        except Unavailable as error:
            if waits:
                if next_offset > request.offset:  # so that the follower does not send these bytes again
                    known[key] = _ReadProgress(next_offset, is_whole=False)
                return
            yield StreamChunk(readable.index, readable.attempt, stream, next_offset, b"", 0, str(error))
        known[key] = _ReadProgress(next_offset)

    async def _follow(
        self,
        selection: LogSelection,
        attempt_stream: tuple[ReadableAttempt, str],
        offset: int | None,
        write: Callable[[ReadableAttempt, str, LogPiece], Awaitable[None]],
    ) -> None:
        readable, stream = attempt_stream
        request = log_request(selection, readable, stream, selection.offset)
        if offset is not None:
            request = LogRequest(*request[:4], offset, follow=True)
        next_offset = request.offset
        try:
            async with aclosing(self._read_stream(readable.node, request)) as pieces:
                async for piece in pieces:
                    await write(readable, stream, piece)
                    next_offset = piece.offset + len(piece.data)
        except Unavailable as error:
            await write(readable, stream, LogPiece(next_offset, b"", rest=str(error)))

    async def _read_stream(self, node: NodeId, request: LogRequest) -> AsyncGenerator[LogPiece, None]:
        """All of a stream; while following, a node that disconnects is waited for, up to LOST_MS."""
        clock = asyncio.get_running_loop()
        unreachable_since: float | None = None
        while True:
            try:
                async with self._open(node, request) as pieces:
                    async for piece in pieces:
                        unreachable_since = None
                        yield piece
                        # After a disconnect the stream goes on from here: each byte is sent once.
                        request = LogRequest(*request[:4], piece.offset + len(piece.data), request.follow)
                return
            except Unavailable as error:
                unreachable_since = unreachable_since or clock.time()
                # By the same bound the watcher declares the node lost: its output is not expected any more.
                gives_up = not request.follow or clock.time() > unreachable_since + LOST_MS / 1000
                if (
                    gives_up
                    or isinstance(error, Withheld)
                    or not await self.engine.read(lambda mirror: _may_reconnect(mirror, node))
                ):
                    yield await self._read_tail(request, error)
                    return
            await asyncio.sleep(RETRY_SECONDS)

    async def _read_tail(self, request: LogRequest, error: Unavailable) -> LogPiece:
        """The tail that the server stores of a stream; raises the error if it has none."""
        tail: Tail | None = None
        if self.tails is not None:
            name = (request.job, request.task, request.attempt, request.stream)
            # In a thread: it reads a file, and a slow disk must not stop the event loop.
            tail = await asyncio.to_thread(self.tails.find, *name)
        if tail is None:
            raise error
        reason = f"{error}, and the server keeps the last {TAIL_BYTES >> 10} KiB"
        missing = max(0, tail.offset - request.offset)
        rest = None if tail.is_final else f"{reason} that it received"
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
            # Closed now, not by the garbage collector: the node is to stop sending.
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    async def _find_attempts(self, selection: LogSelection) -> AsyncGenerator[_AttemptBatch, None]:
        """Attempts to read, each once: the present ones, then, while following, those that start."""
        search, is_new = AttemptSearch(selection), False
        with self.event_hub.follow_job(selection.job) as changes:
            while True:
                # Read before the blocks: no attempt starts after the end, so that this scan is complete.
                ended = await self.engine.read(search.has_ended)
                found: list[ReadableAttempt] = []
                for block in await self.engine.read(search.changed_blocks):
                    found += await self._scan_block(search, block)
                    if len(found) >= SORTED_AT_ONCE:
                        yield _AttemptBatch(found, is_new)
                        found = []
                if found:
                    yield _AttemptBatch(found, is_new)
                if ended or not selection.follow:
                    return
                # From now on attempts are followed as they start; merging by time applies
                # to what was recorded before.
                is_new = True
                await _wait_for_change(changes)

    async def _scan_block(self, search: AttemptSearch, block: int) -> list[ReadableAttempt]:
        return await self.engine.read(lambda mirror: search.scan_block(mirror, block))


def _to_follow(
    selection: LogSelection, attempts: list[ReadableAttempt], known: dict[StreamKey, _ReadProgress]
) -> Iterator[tuple[ReadableAttempt, str]]:
    """The streams that may still grow: not those that have ended and were read to their end."""
    for readable in attempts if selection.follow else ():
        for stream in selection.streams:
            progress = known.get((readable.index, readable.attempt, stream))
            if not readable.has_ended or progress is None or not progress.is_whole:
                yield readable, stream


def _may_reconnect(mirror: Mirror, node: NodeId) -> bool:
    entry = mirror.nodes.get(node)
    status = entry.status if entry else None
    return status is not None and status.state in (NodeState.READY, NodeState.SUSPECT)


def _tail_start(request: LogRequest, tail: Tail) -> int:
    """The offset to start at within a tail: a limit of lines is applied, one of times cannot be."""
    lines = request.window.tail_lines
    if lines is None:
        return request.offset
    at = len(tail.data)
    for _ in range(lines + tail.data.endswith(b"\n") if lines else 0):
        at = tail.data.rfind(b"\n", 0, at)
        if at < 0:
            return request.offset
    return max(request.offset, tail.offset + (at + 1 if lines else at))


async def _wait_for_change(changes: JobChangeSignal) -> None:
    while not await changes.wait():
        pass
