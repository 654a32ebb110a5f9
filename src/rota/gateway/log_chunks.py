"""What a job on a worker writes -> chunks of a log, as a node sends them. [I/O]"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from rota.gateway.worker import Worker, WorkerRefused, WorkerUnreachable
from rota.wire.agent import BEGUN, DONE, WITHHELD
from rota.wire.generated import agent_pb2 as pb

_FIRST_SECONDS = 5.0  # a busy worker's before its first word
_QUIET_SECONDS = 1.0  # after which there is no more for now: the contract has no word for that
_READ_SECONDS = 10.0  # the same of what is read without being followed, however much comes
_PIECE_BYTES = 64 << 10


@dataclass(frozen=True)
class WorkerLogSource:
    worker: Worker
    handle: Callable[[], Awaitable[str]]  # what the worker calls the job; empty: it has no name there
    tasks: asyncio.TaskGroup  # in which is waited for what comes
    is_live: Callable[[], bool]


async def chunks_of(source: WorkerLogSource, asked: pb.OpenLog) -> AsyncIterator[pb.LogChunk]:
    """Both streams are one there: it is told as stdout."""
    yield pb.LogChunk(id=asked.id, offset=asked.offset, code=BEGUN)
    if asked.stream != "stdout" or not (handle := await source.handle()):
        yield pb.LogChunk(id=asked.id, offset=asked.offset, code=DONE)
        return
    at = 0
    async for data in _read(source, handle, follow=asked.follow):
        if isinstance(data, Exception):
            code = WITHHELD if isinstance(data, WorkerRefused) else ""
            error = f"the worker does not send the output: {data}"
            yield pb.LogChunk(id=asked.id, offset=at, error=error, code=code)
            return
        fresh = data[max(0, asked.offset - at) :]
        at += len(data)
        for start in range(0, len(fresh), _PIECE_BYTES):
            piece = fresh[start : start + _PIECE_BYTES]
            yield pb.LogChunk(id=asked.id, offset=at - len(fresh) + start, data=piece)
    yield pb.LogChunk(id=asked.id, offset=max(at, asked.offset), code=DONE)


async def error_chunk(reading: int, why: str) -> AsyncIterator[pb.LogChunk]:
    yield pb.LogChunk(id=reading, error=why, code="not_found")


async def _read(
    source: WorkerLogSource, handle: str, *, follow: bool
) -> AsyncIterator[bytes | WorkerUnreachable | WorkerRefused]:
    """To its end; or, if it ended or is not followed, until nothing comes for a while."""
    clock = asyncio.get_running_loop()
    until = clock.time() + _READ_SECONDS
    patience = _FIRST_SECONDS
    pieces = aiter(source.worker.stream(handle))
    reading: asyncio.Task[bytes | WorkerUnreachable | WorkerRefused | None] | None = None
    try:
        while True:
            reading = reading or source.tasks.create_task(_next(pieces))
            done, _ = await asyncio.wait([reading], timeout=patience)
            patience = _QUIET_SECONDS
            if not done and follow and source.is_live():
                continue
            if not done or (not follow and clock.time() > until):
                return
            piece, reading = reading.result(), None
            if piece is None:
                return
            yield piece
    finally:
        if reading is not None:
            reading.cancel()


async def _next(pieces: AsyncIterator[bytes]) -> bytes | WorkerUnreachable | WorkerRefused | None:
    """None: that was all."""
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        return None
    except (WorkerUnreachable, WorkerRefused) as error:
        return error
