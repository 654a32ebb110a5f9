"""The bytes an attempt wrote, all or a part of them, while it lives or after. [I/O]"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

from rota.agent.output.log_files import AttemptOutput, IndexSearch
from rota.agent.output.log_range import LogRange, log_range
from rota.wire.agent import BEGUN, DONE
from rota.wire.generated import agent_pb2 as pb

_POLL_SECONDS = 0.025  # files say nothing when they grow; a new look this often costs two reads


async def read(root: Path, request: pb.OpenLog, is_live: Callable[[], bool]) -> AsyncIterator[pb.LogChunk]:
    """Chunks of the log; the first one always comes, so that the reader knows it was opened.

    And so does the last, unless nothing can be read: a call that broke must not look like the log's end.
    """
    with ExitStack() as descriptors:
        try:
            written = await _opened(IndexSearch(root, request, descriptors), request, is_live)
        except FileNotFoundError:
            yield pb.LogChunk(id=request.id, error="the log is no longer on the node")
            return
        if written is None:
            yield pb.LogChunk(id=request.id, code=BEGUN)
            yield pb.LogChunk(id=request.id, code=DONE)
            return
        async for chunk in _chunks(written, request, await log_range(written, request, _now_ms()), is_live):
            yield chunk


async def _opened(
    search: IndexSearch, request: pb.OpenLog, is_live: Callable[[], bool]
) -> AttemptOutput | None:
    """None: the attempt has written nothing. Whoever follows waits until it has begun."""
    while True:
        live = is_live()
        try:
            written = await search.scan()
            if written is not None and (
                written.stream(request.stream).has_file or not (live and request.follow)
            ):
                return written
        except FileNotFoundError:
            if not live:
                raise
        if not (live and request.follow):
            return None
        await asyncio.sleep(_POLL_SECONDS)


async def _chunks(
    written: AttemptOutput, request: pb.OpenLog, wanted: LogRange, is_live: Callable[[], bool]
) -> AsyncIterator[pb.LogChunk]:
    offset = wanted.start
    caught_up = False  # what is read from here on has just arrived
    yield pb.LogChunk(id=request.id, offset=offset, code=BEGUN)
    while wanted.end is None or offset < wanted.end:
        live = is_live()  # asked before reading: what it wrote until its end is then surely seen
        piece = await written.read(offset)
        if piece.missing or piece.data:
            offset += piece.missing
            data = piece.data if wanted.end is None else piece.data[: max(0, wanted.end - offset)]
            marks = [(len(data), _now_ms())] if caught_up else written.marks(offset, len(data))
            yield _chunk(request, offset, data, piece.missing, marks)
            offset += len(data)
        elif written.has_ended or not (request.follow and live):
            break
        else:
            caught_up = True
            await asyncio.sleep(_POLL_SECONDS)
    yield pb.LogChunk(id=request.id, offset=offset, code=DONE)


def _chunk(
    request: pb.OpenLog, offset: int, data: bytes, missing: int, marks: list[tuple[int, int]]
) -> pb.LogChunk:
    return pb.LogChunk(
        id=request.id,
        offset=offset,
        data=data,
        missing=missing,
        at_ms=marks[-1][1] if marks and data else 0,
        mark_bytes=[length for length, _ in marks[:-1]],
        mark_ms=[at_ms for _, at_ms in marks[:-1]],
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
