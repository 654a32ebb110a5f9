"""Readings of logs and outputs: asked for over the control stream, answered on calls of their own. [I/O]

A reading belongs to the node that was asked. Its id is a secret between that node and this server, and a call
that answers it counts only if the certificate of its connection names that node: every node may open such
calls, and without both checks one could write into what another node is being read for.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Protocol

from rota.model.columns import column
from rota.model.errors import Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.limits import BLOCK_TASKS, TAIL_BYTES
from rota.model.messages import TailPiece
from rota.model.view import View
from rota.watcher.session import NodeSession
from rota.wire.generated import agent_pb2 as pb

STREAMS = ("stdout", "stderr")
_AHEAD_BYTES = 256 << 10  # that wait for a reader, and one chunk more
_AHEAD_CHUNKS = 64  # the same: of small ones
_ANSWER_SECONDS = 20.0  # for the node to open the call
_ID_BITS = 62  # of a reading: as many as bounds.COUNTER_MAX lets through


class TailSink(Protocol):
    def store(self, pieces: Iterable[TailPiece]) -> None: ...
    def forget(self, job: JobId) -> None: ...


def is_own(view: View, node: NodeId, piece: TailPiece) -> bool:
    """Whether the attempt was placed on the node that tells of it, and what it tells is well formed."""
    job = view.jobs.get(piece.job)
    block, position = divmod(piece.task, BLOCK_TASKS)
    placed = job.attempts.get(block) if job is not None else None
    if placed is None or piece.stream not in STREAMS or len(piece.data) > TAIL_BYTES:
        return False
    numbers = column(placed, "number")
    if position < len(numbers) and int(numbers[position]) == piece.attempt:
        return placed.nodes[int(column(placed, "node")[position])] == node
    return any(
        (old.position, old.number, old.node) == (position, piece.attempt, node) for old in placed.older
    )


class LogReading:
    """One log on its way to one reader; one that stalls holds back its own call only."""

    def __init__(self, asked: NodeSession) -> None:
        self.asked = asked  # the connection over which it was asked for
        self._ahead: deque[pb.LogChunk | None] = deque()
        self._ahead_bytes = 0
        self._arrived = asyncio.Event()
        self._has_space = asyncio.Event()
        self._has_space.set()
        self.answered = asyncio.Event()
        self.closed = False

    async def mark_answered(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self.answered.wait()
        except TimeoutError:
            raise Unavailable(f"the node did not send the log within {_ANSWER_SECONDS:g} s") from None

    async def put(self, chunk: pb.LogChunk | None) -> None:
        """None is the end."""
        await self._has_space.wait()
        if self.closed:
            return
        self._ahead.append(chunk)
        self._ahead_bytes += len(chunk.data) if chunk else 0
        if self._ahead_bytes >= _AHEAD_BYTES or len(self._ahead) >= _AHEAD_CHUNKS:
            self._has_space.clear()
        self._arrived.set()

    async def receive(self) -> list[pb.LogChunk]:
        """All that has come, at least one; nothing: this was the end."""
        while not self._ahead:
            self._arrived.clear()
            await self._arrived.wait()
        found: list[pb.LogChunk] = []
        while self._ahead and (chunk := self._ahead[0]) is not None:
            found.append(chunk)
            self._ahead.popleft()
        self._ahead_bytes = 0
        self._has_space.set()
        return found

    def abandon(self, why: str) -> None:
        """Nobody is there any more to begin it; if it has begun, the end of its call is heard."""
        if not self.answered.is_set():
            self._ahead.append(pb.LogChunk(error=why))
            self._arrived.set()
            self.answered.set()

    def close(self) -> None:
        self.closed = True
        self._ahead.clear()
        self._has_space.set()  # frees the call that waits to put one more


class PushLimits:
    """The calls with which nodes answer readings, so that those of one node can be ended."""

    def __init__(self) -> None:
        self._by_node: dict[NodeId, dict[asyncio.Timeout, None]] = {}

    @contextlib.contextmanager
    def limit_for(self, node: NodeId) -> Iterator[asyncio.Timeout]:
        """A limit for one call of this node, which expires when its calls are ended."""
        limit = asyncio.timeout(None)
        self._by_node.setdefault(node, {})[limit] = None
        try:
            yield limit
        finally:
            del self._by_node[node][limit]
            if not self._by_node[node]:
                del self._by_node[node]

    def end(self, node: NodeId) -> None:
        for limit in self._by_node.get(node, ()):
            limit.reschedule(asyncio.get_running_loop().time())


class LogReadings:
    """The readings that are open, by their ids."""

    def __init__(self) -> None:
        self._open: dict[int, LogReading] = {}

    def open(self, asked: NodeSession) -> tuple[int, LogReading]:
        reading_id = 1 + secrets.randbits(_ID_BITS)
        reading = self._open[reading_id] = LogReading(asked)
        return reading_id, reading

    def abandon_all(self, asked: NodeSession, why: str) -> None:
        """All that were asked for over a connection which has ended."""
        for reading in self._open.values():
            if reading.asked is asked:
                reading.abandon(why)

    def close(self, reading_id: int) -> None:
        reading = self._open.pop(reading_id, None)
        if reading is not None:
            reading.close()

    async def relay(self, node: NodeId, chunks: AsyncIterator[pb.LogChunk]) -> None:
        """Pass one call's chunks on to its reader, at the reader's pace."""
        reading: LogReading | None = None
        try:
            async for chunk in chunks:
                if reading is None:
                    reading = self._match(node, chunk.id)
                    if reading is None:
                        return
                if reading.closed:
                    return
                await reading.put(chunk)
        finally:
            if reading is not None and not reading.closed:
                await reading.put(None)

    def _match(self, node: NodeId, reading_id: int) -> LogReading | None:
        """The reading that this call answers: one that was asked of this node, and that no call answers yet.

        The answer to a foreign id is the same as to one that never was: it tells the caller nothing.
        """
        reading = self._open.get(reading_id)
        if reading is None or reading.asked.node != node or reading.answered.is_set():
            return None
        reading.answered.set()
        return reading
