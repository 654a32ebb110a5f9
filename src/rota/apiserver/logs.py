"""Output of tasks, over retries and whole arrays: which attempts to read, a bounded number at once. [I/O]"""

import asyncio
from array import array
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rota.apiserver.show import has_ended
from rota.apiserver.show_tasks import Placed, attempts_of
from rota.apiserver.watch import Changes, JobNews
from rota.engine.entries import JobEntry
from rota.engine.mirror import Mirror
from rota.engine.run import Engine
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import column
from rota.model.errors import NotFound, Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptState, NodeState
from rota.model.limits import BLOCK_TASKS, LOST_MS, TAIL_BYTES
from rota.model.phase import FIRST_END
from rota.model.sync import LogPiece, LogRequest, Tail

STREAMS = ("stdout", "stderr")
OPEN_AT_ONCE = 64  # streams one request reads at the same time: each is a call to a node
AGAIN_SECONDS = 0.5  # between two looks for a node that is away: about the time in which an agent restarts


class LogSource(Protocol):
    def open(self, node: NodeId, wanted: LogRequest) -> AsyncIterator[LogPiece]:
        """What was written so far; with `follow` until the attempt has ended. Raises Unavailable."""


class TailSource(Protocol):
    def find(self, job: JobId, index: int, attempt: int, stream: str) -> Tail | None:
        """What the server itself keeps of a stream."""


@dataclass(frozen=True, slots=True)
class Wanted:
    job: JobId
    index: int | None = None  # None: all tasks
    attempt: int | None = None  # None: the newest; while following, also those to come
    from_first: bool = False  # begin with the oldest attempt that is known
    streams: tuple[str, ...] = STREAMS
    offset: int = 0  # of text only
    follow: bool = False
    heard: Mapping[tuple[int, str], "Heard"] = field(default_factory=dict)  # by index and stream

    def begins_at(self, begun: "Begun", stream: str) -> int | None:
        """The first byte of an attempt's stream that is wanted; None: nothing of it."""
        heard = self.heard.get((begun.index, stream))
        if heard is None or heard.attempt < begun.attempt:
            return 0
        return heard.offset if heard.attempt == begun.attempt else None


class Heard(NamedTuple):
    """How far a stream of a task was read before: nothing of earlier attempts is wanted again."""

    attempt: int
    offset: int


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt that has, or may have, something to read."""

    index: int
    attempt: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one stream, or why there is none."""

    index: int
    attempt: int
    stream: str
    offset: int
    data: bytes
    missing: int
    reason: str | None
    at_ms: int = 0  # wall clock: by when its bytes had arrived; 0: before the reader


Write = Callable[[Chunk], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Logs:
    engine: Engine
    changes: Changes
    source: LogSource
    tails: TailSource | None = None

    async def copy(self, wanted: Wanted, write: Write) -> None:
        """Every chunk, the streams of a task each in order, different ones as they come."""
        writing, slots = asyncio.Lock(), asyncio.Semaphore(OPEN_AT_ONCE)
        before: dict[tuple[int, str], asyncio.Task[None]] = {}

        async def write_alone(chunk: Chunk) -> None:
            async with writing:
                await write(chunk)

        async def read(begun: Begun, stream: str, earlier: asyncio.Task[None] | None) -> None:
            try:
                if earlier is not None:
                    await asyncio.wait([earlier])
                await self._copy_stream(wanted, begun, stream, write_alone)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as readers, aclosing(self._begun(wanted)) as found:
            async for begun in found:
                for stream in wanted.streams:
                    if wanted.begins_at(begun, stream) is None:
                        continue
                    await slots.acquire()
                    for key in [key for key, reader in before.items() if reader.done()]:
                        del before[key]
                    earlier = before.get((begun.index, stream))
                    before[begun.index, stream] = readers.create_task(read(begun, stream, earlier))

    async def copy_text(self, wanted: Wanted, write: Callable[[bytes], Awaitable[None]]) -> None:
        """The bytes of one stream of one task, attempt after attempt; `offset` is of the first."""
        offset = wanted.offset
        async with aclosing(self._begun(wanted)) as found:
            async for begun in found:
                request = _request(wanted, begun, wanted.streams[0], offset)
                async with aclosing(self._pieces(begun.node, request)) as pieces:
                    async for piece in pieces:
                        for chunk in _chunks(begun, wanted.streams[0], piece):
                            await write(_text(chunk))
                offset = 0

    async def _copy_stream(self, wanted: Wanted, begun: Begun, stream: str, write: Write) -> None:
        next_offset = wanted.begins_at(begun, stream) or 0
        request = _request(wanted, begun, stream, next_offset)
        try:
            async with aclosing(self._pieces(begun.node, request)) as pieces:
                async for piece in pieces:
                    for chunk in _chunks(begun, stream, piece):
                        await write(chunk)
                    next_offset = piece.offset + len(piece.data)
        except Unavailable as error:
            await write(Chunk(begun.index, begun.attempt, stream, next_offset, b"", 0, str(error)))

    async def _pieces(self, node: NodeId, request: LogRequest) -> AsyncGenerator[LogPiece, None]:
        """All of a stream; while following, a node that is away for a moment is waited for."""
        clock = asyncio.get_running_loop()
        away_since: float | None = None
        while True:
            try:
                async with self._open(node, request) as pieces:
                    async for piece in pieces:
                        away_since = None
                        yield piece
                        request = request._replace(offset=piece.offset + len(piece.data))
                return
            except Unavailable as error:
                away_since = away_since or clock.time()
                late = not request.follow or clock.time() > away_since + LOST_MS / 1000
                if late or not await self.engine.read(lambda mirror: _may_come_back(mirror, node)):
                    yield await self._last_piece(request, error)
                    return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _last_piece(self, request: LogRequest, error: Unavailable) -> LogPiece:
        """What the server has of a stream that its node does not give; the error if that is nothing."""
        tail: Tail | None = None
        if self.tails is not None:
            asked = (request.job, request.task, request.attempt, request.stream)
            tail = await asyncio.to_thread(self.tails.find, *asked)
        if tail is None:
            raise error
        missing = max(0, tail.offset - request.offset)
        data = tail.data[max(0, request.offset - tail.offset) :]
        reason = f"{error}, and the server keeps the last {TAIL_BYTES >> 10} KiB"
        return LogPiece(request.offset + missing, data, missing, reason, is_last_known=not tail.is_final)

    @asynccontextmanager
    async def _open(self, node: NodeId, request: LogRequest) -> AsyncIterator[AsyncIterator[LogPiece]]:
        pieces = self.source.open(node, request)
        try:
            yield pieces
        finally:
            # The node is to stop sending now, not when memory is tidied.
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    async def _begun(self, wanted: Wanted) -> AsyncGenerator[Begun, None]:
        """Attempts to read, each once: those there are, then, while following, those that begin."""
        search = _Search(wanted)
        with self.changes.following(wanted.job) as news:
            while True:
                ended = await self.engine.read(search.has_ended)  # looked at first: nothing begins after it
                for block in await self.engine.read(search.changed_blocks):
                    for begun in await self._look(search, block):
                        yield begun
                if ended or not wanted.follow:
                    return
                await _some_news(news)

    async def _look(self, search: "_Search", block: int) -> list[Begun]:
        return await self.engine.read(lambda mirror: search.look(mirror, block))


def _request(wanted: Wanted, begun: Begun, stream: str, offset: int) -> LogRequest:
    return LogRequest(wanted.job, begun.index, begun.attempt, stream, offset, wanted.follow)


def _may_come_back(mirror: Mirror, node: NodeId) -> bool:
    entry = mirror.nodes.get(node)
    status = entry.status if entry else None
    return status is not None and status.state in (NodeState.READY, NodeState.SUSPECT)


def _chunks(begun: Begun, stream: str, piece: LogPiece) -> Iterator[Chunk]:
    if piece.missing:
        lost_from = piece.offset - piece.missing
        yield Chunk(begun.index, begun.attempt, stream, lost_from, b"", piece.missing, piece.reason)
    if piece.data:
        yield Chunk(begun.index, begun.attempt, stream, piece.offset, piece.data, 0, None, piece.at_ms)
    if piece.is_last_known:
        end = piece.offset + len(piece.data)
        yield Chunk(begun.index, begun.attempt, stream, end, b"", 0, f"{piece.reason} that it was told of")


def _text(chunk: Chunk) -> bytes:
    """Its bytes; a gap is a line of our own."""
    if chunk.reason is None:
        return chunk.data
    what = f"{chunk.missing} bytes of" if chunk.missing else "the rest of"
    return f"\n[{what} {chunk.stream} missing: {chunk.reason}]\n".encode()


async def _some_news(news: JobNews) -> None:
    while not await news.wait():
        pass


class _Search:
    """Which attempts of a job have begun since the last look. Only blocks that changed are looked at."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._looked_at: dict[int, tuple[AttemptBlock | None, StatusBlock | None]] = {}
        self._found: defaultdict[int, array[int]] = defaultdict(lambda: array("I", [0] * BLOCK_TASKS))

    def has_ended(self, mirror: Mirror) -> bool:
        entry = mirror.jobs.get(self._wanted.job)
        if entry is None or has_ended(entry):
            return True
        if self._wanted.index is None:
            return False
        block, position = divmod(self._wanted.index, BLOCK_TASKS)
        return block in entry.phases and entry.phases[block][position] >= FIRST_END

    def changed_blocks(self, mirror: Mirror) -> list[int]:
        entry = mirror.jobs.get(self._wanted.job)
        if entry is None:
            return []
        blocks = sorted(entry.attempts)
        if self._wanted.index is not None:
            own = self._wanted.index // BLOCK_TASKS
            blocks = [own] if own in entry.attempts else []
        return [block for block in blocks if self._looked_at.get(block) != _records(entry, block)]

    def look(self, mirror: Mirror, block: int) -> list[Begun]:
        entry = mirror.jobs.get(self._wanted.job)
        if entry is None or block not in entry.attempts:
            return []
        self._looked_at[block] = _records(entry, block)
        found: list[Begun] = []
        for position in self._positions(entry, block):
            found += self._news_of(entry, block, position)
        return found

    def _positions(self, entry: JobEntry, block: int) -> list[int]:
        """Of tasks that have a newer attempt than those found."""
        numbers = column(entry.attempts[block], "number").tolist()
        if self._wanted.index is not None:
            position = self._wanted.index % BLOCK_TASKS
            return [position] if numbers[position] > self._found[block][position] else []
        known = self._found[block]
        return [position for position, number in enumerate(numbers) if number > known[position]]

    def _news_of(self, entry: JobEntry, block: int, position: int) -> list[Begun]:
        index, known = block * BLOCK_TASKS + position, self._found[block]
        news = [
            placed
            for placed in attempts_of(entry, index)
            if placed.number > known[position] and _is_begun(placed)
        ]
        if not news:
            return []
        first_look = known[position] == 0
        known[position] = news[-1].number
        if self._wanted.attempt is not None:
            news = [placed for placed in news if placed.number == self._wanted.attempt]
        elif first_look and not self._wanted.from_first:
            news = news[-1:]
        return [Begun(index, placed.number, placed.node) for placed in news]


def check_attempt(entry: JobEntry, index: int, attempt: int) -> None:
    known = [placed.number for placed in attempts_of(entry, index)]
    if attempt not in known:
        hint = f"it has: {', '.join(map(str, known))}" if known else "it has none yet"
        raise NotFound(f"task {entry.spec.id}.{index} has no attempt {attempt}", field="attempt", hint=hint)


def _records(entry: JobEntry, block: int) -> tuple[AttemptBlock | None, StatusBlock | None]:
    return entry.attempts.get(block), entry.statuses.get(block)


def _is_begun(placed: Placed) -> bool:
    """Or about to begin; what was refused or withdrawn never did."""
    return AttemptState.ACCEPTED <= placed.state < AttemptState.REFUSED
