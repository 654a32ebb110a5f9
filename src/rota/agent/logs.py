"""The bytes an attempt wrote, from an offset on, while it lives or after. [I/O]"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

from rota.keeper.index import Begun, find_end, find_start
from rota.wire.generated import agent_pb2 as pb

_CHUNK_BYTES = 256 * 1024
_INDEX_BYTES = 1 << 20
_FAR_BYTES = 1 << 62
_LOOK_SECONDS = 0.025  # files say nothing when they grow; a new look this often costs two reads
_ENDINGS = {"stdout": "out", "stderr": "err"}


async def read(root: Path, request: pb.OpenLog, is_live: Callable[[], bool]) -> AsyncIterator[pb.LogChunk]:
    """Chunks of the log; the first one always comes, so that the reader knows it was opened."""
    with ExitStack() as descriptors:
        try:
            log = await _opened(_Finder(root, request, descriptors), request, is_live)
        except FileNotFoundError:
            yield pb.LogChunk(id=request.id, error="the log is no longer on the node")
            return
        if log is None:
            yield pb.LogChunk(id=request.id)
            return
        async for chunk in _chunks(log, request, is_live):
            yield chunk


async def _chunks(
    log: "_Log", request: pb.OpenLog, is_live: Callable[[], bool]
) -> AsyncIterator[pb.LogChunk]:
    offset = request.offset
    yield pb.LogChunk(id=request.id, offset=offset)
    while True:
        live = is_live()  # asked before reading: what it wrote until its end is then surely seen
        data = log.read(offset)
        if data:
            yield pb.LogChunk(id=request.id, offset=offset, data=data)
            offset += len(data)
        elif log.has_ended or not (request.follow and live):
            return
        else:
            await asyncio.sleep(_LOOK_SECONDS)


async def _opened(finder: "_Finder", request: pb.OpenLog, is_live: Callable[[], bool]) -> "_Log | None":
    """None: the attempt has not started. Whoever follows waits until it has."""
    while True:
        live = is_live()
        try:
            while finder.has_more():
                if log := finder.look():
                    return log
                await asyncio.sleep(0)  # the index of a large job is long
        except FileNotFoundError:
            if not live:
                raise
        if not (live and request.follow):
            return None
        await asyncio.sleep(_LOOK_SECONDS)
