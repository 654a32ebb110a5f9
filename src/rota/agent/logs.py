"""The bytes an attempt wrote, from an offset on, while it lives or after. [I/O]"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rota.wire.generated import agent_pb2 as pb

_CHUNK_BYTES = 256 * 1024
_LOOK_SECONDS = 0.025  # files say nothing when they grow; a new look this often costs one stat
_ENDINGS = {"stdout": "out", "stderr": "err"}


async def read(root: Path, request: pb.OpenLog, is_live: Callable[[], bool]) -> AsyncIterator[pb.LogChunk]:
    """Chunks of the log; the first one always comes, so that the reader knows it was opened."""
    try:
        descriptor = await _opened(root, request, is_live)
    except FileNotFoundError:
        yield pb.LogChunk(id=request.id, error="the log is no longer on the node")
        return
    if descriptor is None:
        yield pb.LogChunk(id=request.id)
        return
    try:
        async for chunk in _chunks(descriptor, request, is_live):
            yield chunk
    finally:
        os.close(descriptor)


async def _chunks(
    descriptor: int, request: pb.OpenLog, is_live: Callable[[], bool]
) -> AsyncIterator[pb.LogChunk]:
    offset = request.offset
    yield pb.LogChunk(id=request.id, offset=offset)
    while True:
        live = is_live()  # asked before reading: what it wrote until its end is then surely seen
        data = os.pread(descriptor, _CHUNK_BYTES, offset)
        if data:
            yield pb.LogChunk(id=request.id, offset=offset, data=data)
            offset += len(data)
        elif not (request.follow and live):
            return
        else:
            await asyncio.sleep(_LOOK_SECONDS)


async def _opened(root: Path, request: pb.OpenLog, is_live: Callable[[], bool]) -> int | None:
    """The file; None: the attempt has written none. Whoever follows waits until it has begun."""
    while True:
        live = is_live()
        try:
            return _open(root, request)
        except FileNotFoundError:
            if not live and not (root / "logs" / request.job).is_dir():
                raise
        if not (live and request.follow):
            return None
        await asyncio.sleep(_LOOK_SECONDS)


def _open(root: Path, request: pb.OpenLog) -> int:
    """By attempt and stream only, beneath a directory's handle, never through a link."""
    if not request.job.isdecimal() or request.stream not in _ENDINGS:
        raise FileNotFoundError(request.job)
    directory = os.open(root / "logs" / request.job, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        name = f"{request.index}.{request.attempt}.{_ENDINGS[request.stream]}"
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
