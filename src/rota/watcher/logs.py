"""Logs and outputs read from nodes: requested on the session, answered on calls of their own. [I/O]

A reading is one such request. It belongs to the node that was asked. Its id is a secret between that node and
this server, and a call that answers it counts only if the certificate of its connection names that node:
every node may open such calls, and without both checks one node could forge the output of another.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import Protocol

from rota.engine.run import Engine
from rota.model.columns import column
from rota.model.errors import Conflict, NotFound, RotaError, Unavailable, Withheld
from rota.model.ids import JobId, NodeId
from rota.model.limits import BLOCK_TASKS, TAIL_BYTES
from rota.model.messages import LogPiece, LogRequest, OutputsRequest, TailPiece
from rota.model.view import View
from rota.rules.log_pieces import joined
from rota.watcher.node_messages import display_name
from rota.watcher.session import NodeSession
from rota.wire import agent as wire
from rota.wire.generated import agent_pb2 as pb

STREAMS = ("stdout", "stderr")
_PIECE_BYTES = 256 << 10  # of a log, yielded at a time
_AHEAD_BYTES = 256 << 10  # buffered for one reader, and one chunk more
_AHEAD_CHUNKS = 64  # the same bound for small chunks
_ANSWER_SECONDS = 20.0  # for the node to open its call
_ID_BITS = 62  # of a reading's id: the most that bounds.COUNTER_MAX admits
_ERRORS: dict[str, type[RotaError]] = {"not_found": NotFound, "conflict": Conflict}


class TailSink(Protocol):
    """Stores the last bytes of output on the server, for when a node is disconnected."""

    def store(self, pieces: Iterable[TailPiece]) -> None: ...
    def forget(self, job: JobId) -> None: ...


def is_own(view: View, node: NodeId, piece: TailPiece) -> bool:
    """Whether the attempt was placed on the node that sent this piece, and the piece is well formed."""
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


class NodeLogs:
    """Logs and outputs of connected nodes: the LogSource and the OutputSource of the API."""

    def __init__(
        self, engine: Engine, session_of: Callable[[NodeId], NodeSession | None], readings: "LogReadings"
    ) -> None:
        self._engine = engine
        self._session_of = session_of
        self._readings = readings

    async def open(self, node: NodeId, request: LogRequest) -> AsyncIterator[LogPiece]:
        session = self._session(node)
        # Registered before the request is sent: the answer of the node must find the reading.
        reading_id, reading = self._readings.open(session)
        open_log = wire.log_request_to_wire(reading_id, request)
        session.send(pb.ToNode(epoch=self._engine.epoch, open_log=open_log))
        try:
            await reading.wait_answered()
            is_complete = False
            while chunks := await reading.receive():
                for chunk in chunks:
                    if chunk.error:
                        raise (Withheld if chunk.code == wire.WITHHELD else Unavailable)(chunk.error)
                    is_complete = chunk.code == wire.DONE
                pieces = (wire.log_piece_from_wire(chunk) for chunk in chunks if chunk.code != wire.DONE)
                for piece in joined(pieces, _PIECE_BYTES):
                    yield piece
            if not is_complete:
                raise Unavailable(f"node {self._name(node)} disconnected while it sent the log")
        # Also if the reader was cancelled: the node would go on sending into a full buffer.
        finally:
            self._close(session, reading_id)

    async def outputs(self, node: NodeId, request: OutputsRequest) -> AsyncGenerator[bytes, None]:
        session = self._session(node)
        reading_id, reading = self._readings.open(session)
        open_outputs = wire.outputs_request_to_wire(reading_id, request)
        session.send(pb.ToNode(epoch=self._engine.epoch, open_outputs=open_outputs))
        try:
            await reading.wait_answered()
            while chunks := await reading.receive():
                for chunk in chunks:
                    if chunk.error:
                        raise _ERRORS.get(chunk.code, Unavailable)(chunk.error)
                    if chunk.code == wire.DONE:
                        return
                    if chunk.data:
                        yield chunk.data
            raise Unavailable(f"node {self._name(node)} disconnected while it sent the outputs")
        finally:
            self._close(session, reading_id)

    def _session(self, node: NodeId) -> NodeSession:
        session = self._session_of(node)
        if session is None:
            raise Unavailable(f"node {self._name(node)} is not connected")
        return session

    def _close(self, session: NodeSession, reading_id: int) -> None:
        self._readings.close(reading_id)
        session.send(pb.ToNode(epoch=self._engine.epoch, close_log=pb.CloseLog(id=reading_id)))

    def _name(self, node: NodeId) -> str:
        return display_name(self._engine.mirror, node)


class LogReading:
    """The buffer between a node's call and one reader. Backpressure: a slow reader blocks that call only."""

    def __init__(self, asked: NodeSession) -> None:
        self.asked = asked  # the session on which it was requested
        self._ahead: deque[pb.LogChunk | None] = deque()
        self._ahead_bytes = 0
        self._arrived = asyncio.Event()
        self._has_space = asyncio.Event()
        self._has_space.set()
        self.answered = asyncio.Event()
        self.closed = False

    async def wait_answered(self) -> None:
        """Wait until the node has opened its call. Raises Unavailable."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self.answered.wait()
        except TimeoutError:
            raise Unavailable(f"the node did not send the log within {_ANSWER_SECONDS:g} s") from None

    async def put(self, chunk: pb.LogChunk | None) -> None:
        """Append a chunk, once there is space; None marks the end."""
        await self._has_space.wait()
        if self.closed:
            return
        self._ahead.append(chunk)
        self._ahead_bytes += len(chunk.data) if chunk else 0
        # Backpressure: the next put() waits, so gRPC's flow control reaches the node.
        if self._ahead_bytes >= _AHEAD_BYTES or len(self._ahead) >= _AHEAD_CHUNKS:
            self._has_space.clear()
        self._arrived.set()

    async def receive(self) -> list[pb.LogChunk]:
        """All chunks that have arrived, at least one; empty at the end."""
        while not self._ahead:
            self._arrived.clear()
            await self._arrived.wait()
        found: list[pb.LogChunk] = []
        # The end marker stays in the buffer, so that every later call returns empty, too.
        while self._ahead and (chunk := self._ahead[0]) is not None:
            found.append(chunk)
            self._ahead.popleft()
        self._ahead_bytes = 0
        self._has_space.set()
        return found

    def abandon(self, why: str) -> None:
        """The node has disconnected: fail the reading, unless its call is open and will end by itself."""
        if not self.answered.is_set():
            self._ahead.append(pb.LogChunk(error=why))
            self._arrived.set()
            self.answered.set()

    def close(self) -> None:
        self.closed = True
        self._ahead.clear()
        self._has_space.set()  # or the call that waits in put() would be blocked forever


class PushLimits:
    """Deadlines of the `PushLog` calls in progress, by node, so that those of one node can be ended."""

    def __init__(self) -> None:
        self._by_node: dict[NodeId, dict[asyncio.Timeout, None]] = {}

    @contextlib.contextmanager
    def limit_for(self, node: NodeId) -> Iterator[asyncio.Timeout]:
        """A deadline for one call of this node, which expires when `end` is called."""
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
    """The open readings, by id."""

    def __init__(self) -> None:
        self._open: dict[int, LogReading] = {}

    def open(self, asked: NodeSession) -> tuple[int, LogReading]:
        reading_id = 1 + secrets.randbits(_ID_BITS)
        reading = self._open[reading_id] = LogReading(asked)
        return reading_id, reading

    def abandon_all(self, asked: NodeSession, why: str) -> None:
        """Abandon the readings that were requested on a session which has ended."""
        for reading in self._open.values():
            if reading.asked is asked:
                reading.abandon(why)

    def close(self, reading_id: int) -> None:
        reading = self._open.pop(reading_id, None)
        if reading is not None:
            reading.close()

    async def relay(self, node: NodeId, chunks: AsyncIterator[pb.LogChunk]) -> None:
        """Pass the chunks of one call to its reader, as fast as the reader takes them."""
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
            # Also when the call fails or is cancelled: the reader would wait forever.
            if reading is not None and not reading.closed:
                await reading.put(None)

    def _match(self, node: NodeId, reading_id: int) -> LogReading | None:
        """The reading with this id, if this node was asked for it and no other call answers it.

        The id of another node's reading gets the same answer as an unknown one, which reveals nothing.
        """
        reading = self._open.get(reading_id)
        if reading is None or reading.asked.node != node or reading.answered.is_set():
            return None
        # Set at once: a second call with the same id must not feed the same reader.
        reading.answered.set()
        return reading
