"""The output of a job on a worker -> log chunks, as a node sends them. [I/O]"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from rota.gateway.worker import Worker, WorkerRefused, WorkerUnreachable
from rota.wire.agent import BEGUN, DONE, WITHHELD
from rota.wire.generated import agent_pb2 as pb

_FIRST_SECONDS = 5.0  # for the first bytes of a busy worker
_QUIET_SECONDS = 1.0  # without bytes: counts as the end, for which the contract has no message
_READ_SECONDS = 10.0  # for a read that does not follow, even if bytes keep coming
_CHUNK_BYTES = 64 << 10


@dataclass(frozen=True)
class WorkerLogSource:
    """Where the output of one attempt is read."""

    worker: Worker
    handle: Callable[[], Awaitable[str]]  # the worker's id of the job; empty if it has none
    tasks: asyncio.TaskGroup  # runs the reads
    is_live: Callable[[], bool]


async def chunks_of(source: WorkerLogSource, request: pb.OpenLog) -> AsyncIterator[pb.LogChunk]:
    """The chunks that answer a request. A worker has one stream for both, which is sent as stdout."""
    yield pb.LogChunk(id=request.id, offset=request.offset, code=BEGUN)
    if request.stream != "stdout" or not (handle := await source.handle()):
        yield pb.LogChunk(id=request.id, offset=request.offset, code=DONE)
        return
    at = 0
    async for data in _read(source, handle, follow=request.follow):
        if isinstance(data, Exception):
            code = WITHHELD if isinstance(data, WorkerRefused) else ""
            error = f"the worker does not send the output: {data}"
            yield pb.LogChunk(id=request.id, offset=at, error=error, code=code)
            return
        fresh = data[max(0, request.offset - at) :]  # a worker always sends from the start
        at += len(data)
        for start in range(0, len(fresh), _CHUNK_BYTES):
            chunk = fresh[start : start + _CHUNK_BYTES]
            yield pb.LogChunk(id=request.id, offset=at - len(fresh) + start, data=chunk)
    yield pb.LogChunk(id=request.id, offset=max(at, request.offset), code=DONE)


async def error_chunk(request_id: int, why: str) -> AsyncIterator[pb.LogChunk]:
    yield pb.LogChunk(id=request_id, error=why, code="not_found")


async def _read(
    source: WorkerLogSource, handle: str, *, follow: bool
) -> AsyncIterator[bytes | WorkerUnreachable | WorkerRefused]:
    """The output up to its end; if the job has ended or is not followed, until no bytes come for a while."""
    clock = asyncio.get_running_loop()
    until = clock.time() + _READ_SECONDS
    timeout = _FIRST_SECONDS
    chunks = aiter(source.worker.stream(handle))
    reading: asyncio.Task[bytes | WorkerUnreachable | WorkerRefused | None] | None = None
    try:
        while True:
            reading = reading or source.tasks.create_task(_next(chunks))
            # `wait` does not cancel the read at its timeout: that would end the stream of the worker.
            done, _ = await asyncio.wait([reading], timeout=timeout)
            timeout = _QUIET_SECONDS
            if not done and follow and source.is_live():
                continue
            if not done or (not follow and clock.time() > until):
                return
            chunk, reading = reading.result(), None
            if chunk is None:
                return
            yield chunk
    finally:
        if reading is not None:
            reading.cancel()


async def _next(chunks: AsyncIterator[bytes]) -> bytes | WorkerUnreachable | WorkerRefused | None:
    """The next bytes, None at the end; an error is returned, since raising it would end the task group."""
    try:
        return await anext(chunks)
    except StopAsyncIteration:
        return None
    except (WorkerUnreachable, WorkerRefused) as error:
        return error
