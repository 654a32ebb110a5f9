"""Readings of logs on nodes: asked for over the control stream, answered on calls of their own. [I/O]"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from rota.model.columns import column
from rota.model.errors import Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.limits import BLOCK_TASKS, TAIL_BYTES
from rota.model.sync import TailPiece
from rota.model.view import View
from rota.wire.generated import agent_pb2 as pb

STREAMS = ("stdout", "stderr")
_CHUNKS_AHEAD = 8  # a reader that stalls holds back its own call only
_ANSWER_SECONDS = 20.0  # for the node to open the call


class TailStore(Protocol):
    def keep(self, pieces: Iterable[TailPiece]) -> None: ...
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


class Reading:
    """One log on its way to one reader."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[pb.LogChunk | None] = asyncio.Queue(_CHUNKS_AHEAD)
        self.begun = asyncio.Event()
        self.closed = False

    async def begin(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self.begun.wait()
        except TimeoutError:
            raise Unavailable(f"the node did not send the log within {_ANSWER_SECONDS:g} s") from None


class LogReadings:
    def __init__(self) -> None:
        self._open: dict[int, Reading] = {}
        self._last_id = 0

    def open(self) -> tuple[int, Reading]:
        self._last_id += 1
        reading = self._open[self._last_id] = Reading()
        return self._last_id, reading

    def close(self, reading_id: int) -> None:
        reading = self._open.pop(reading_id, None)
        if reading is not None:
            reading.closed = True
            while not reading.chunks.empty():  # frees the call that waits to put one more
                reading.chunks.get_nowait()

    async def take(self, chunks: AsyncIterator[pb.LogChunk]) -> None:
        """Pass one call's chunks on to its reader, at the reader's pace."""
        reading: Reading | None = None
        try:
            async for chunk in chunks:
                if reading is None:
                    reading = self._open.get(chunk.id)
                    if reading is None:
                        return
                    reading.begun.set()
                if reading.closed:
                    return
                await reading.chunks.put(chunk)
        finally:
            if reading is not None and not reading.closed:
                await reading.chunks.put(None)
