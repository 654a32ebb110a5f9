"""Logs of an attempt as chunks, all or a range, while it runs or after. [I/O]"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

from rota.agent.output.log_files import AttemptOutput, IndexSearch
from rota.agent.output.log_range import LogRange, log_range
from rota.wire.agent import BEGUN, DONE
from rota.wire.generated import agent_pb2 as pb

_POLL_SECONDS = 0.025  # between two polls of a file that may grow; each costs two reads


async def read(root: Path, request: pb.OpenLog, is_live: Callable[[], bool]) -> AsyncIterator[pb.LogChunk]:
    """Yield the log in chunks, from BEGUN to DONE, or one chunk with an error.

    BEGUN tells the reader that the log was opened, before there may be any bytes. A stream that ends without
    DONE was cut off: a broken call must not look like the end of the log.
    """
    with ExitStack() as descriptors:
        try:
            output = await _opened(IndexSearch(root, request, descriptors), request, is_live)
        except FileNotFoundError:
            yield pb.LogChunk(id=request.id, error="the log is no longer on the node")
            return
        if output is None:
            yield pb.LogChunk(id=request.id, code=BEGUN)
            yield pb.LogChunk(id=request.id, code=DONE)
            return
        async for chunk in _chunks(output, request, await log_range(output, request, _now_ms()), is_live):
            yield chunk


async def _opened(
    search: IndexSearch, request: pb.OpenLog, is_live: Callable[[], bool]
) -> AttemptOutput | None:
    """Find the attempt's output; None: it has none. With `follow`, wait until the attempt has started."""
    while True:
        # Read before the scan: an attempt that ends in between is still found by the next scan.
        live = is_live()
        try:
            output = await search.scan()
            if output is not None and (
                output.stream(request.stream).has_file or not (live and request.follow)
            ):
                return output
        except FileNotFoundError:
            if not live:
                raise
        if not (live and request.follow):
            return None
        await asyncio.sleep(_POLL_SECONDS)


async def _chunks(
    output: AttemptOutput, request: pb.OpenLog, bounds: LogRange, is_live: Callable[[], bool]
) -> AsyncIterator[pb.LogChunk]:
    offset = bounds.start
    caught_up = False  # bytes that are read from here on have just arrived
    yield pb.LogChunk(id=request.id, offset=offset, code=BEGUN)
    while bounds.end is None or offset < bounds.end:
        # Race: the attempt may end at any time. Asked before the read, so that a dead attempt's last bytes
        # are in what is read after it.
        live = is_live()
        piece = await output.read(offset)
        if piece.missing or piece.data:
            offset += piece.missing
            data = piece.data if bounds.end is None else piece.data[: max(0, bounds.end - offset)]
            marks = [(len(data), _now_ms())] if caught_up else output.marks(offset, len(data))
            yield _chunk(request, offset, data, piece.missing, marks)
            offset += len(data)
        elif output.has_ended or not (request.follow and live):
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
