"""The bytes an attempt wrote, from an offset on, while it lives or after. [I/O]"""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

from rota.keeper.index import Begun, Extent, find_end, find_start
from rota.wire.generated import agent_pb2 as pb

_CHUNK_BYTES = 256 * 1024
_INDEX_BYTES = 1 << 20
_FAR_BYTES = 1 << 62  # no file is longer, and the kernel takes no larger offset than twice this
_LOOK_SECONDS = 0.025  # files say nothing when they grow; a new look this often costs two reads
_ENDINGS = {"stdout": "out", "stderr": "err"}
_NOT_OURS = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}  # a link or a socket where the keeper made a file


async def read(root: Path, request: pb.OpenLog, is_live: Callable[[], bool]) -> AsyncIterator[pb.LogChunk]:
    """Chunks of the log; the first one always comes, so that the reader knows it was opened."""
    with ExitStack() as descriptors:
        try:
            log = await _opened(_Search(root, request, descriptors), request, is_live)
        except FileNotFoundError:
            yield pb.LogChunk(id=request.id, error="the log is no longer on the node")
            return
        if log is None:
            yield pb.LogChunk(id=request.id)
            return
        async for chunk in _chunks(log, request, is_live):
            yield chunk


async def _opened(search: "_Search", request: pb.OpenLog, is_live: Callable[[], bool]) -> "_Log | None":
    """None: the attempt has written nothing. Whoever follows waits until it has begun."""
    while True:
        live = is_live()
        try:
            if log := await search.look():
                return log
        except FileNotFoundError:
            if not live:
                raise
        if not (live and request.follow):
            return None
        await asyncio.sleep(_LOOK_SECONDS)


async def _chunks(
    log: "_Log", request: pb.OpenLog, is_live: Callable[[], bool]
) -> AsyncIterator[pb.LogChunk]:
    offset = request.offset
    yield pb.LogChunk(id=request.id, offset=offset)
    while True:
        live = is_live()  # asked before reading: what it wrote until its end is then surely seen
        data = await log.read(offset)
        if data:
            yield pb.LogChunk(id=request.id, offset=offset, data=data)
            offset += len(data)
        elif log.has_ended or not (request.follow and live):
            return
        else:
            await asyncio.sleep(_LOOK_SECONDS)


class _Search:
    """Looks for one attempt in its job's index; each look goes on where the last one ended."""

    def __init__(self, root: Path, request: pb.OpenLog, descriptors: ExitStack) -> None:
        self._root = root
        self._request = request
        self._descriptors = descriptors
        self._directory = -1
        self._lines: _Lines | None = None
        self._begun: Begun | None = None
        self._end: Extent | None = None

    async def look(self) -> "_Log | None":
        """FileNotFoundError: there is nothing of this job."""
        if self._directory < 0:
            self._directory = self._open_directory()
        try:
            if self._lines is None:
                self._lines = _Lines(self._open("index"))
            if self._begun is None:
                await self._find(self._lines)
            if self._begun is None:
                return None
            ending = _ENDINGS[self._request.stream]
            segment = self._open(f"{self._begun.segment}.{ending}")
        except FileNotFoundError:
            return None
        return _Log(segment, self._request, self._begun.at, self._lines, self._end)

    async def _find(self, lines: "_Lines") -> None:
        wanted = self._request
        while self._begun is None and (some := lines.next()):
            self._begun = find_start(some, wanted.index, wanted.attempt)
            self._end = find_end(some, wanted.index, wanted.attempt)
            await asyncio.sleep(0)  # an index can be long, and others want to go on

    def _open_directory(self) -> int:
        job = self._request.job
        if not job.isdecimal() or self._request.stream not in _ENDINGS:
            raise FileNotFoundError(job)
        return self._keep(_open(self._root / "logs" / job, os.O_PATH | os.O_DIRECTORY))

    def _open(self, name: str) -> int:
        """Beneath the directory's handle; a pipe must not keep its reader waiting."""
        descriptor = _open(name, os.O_RDONLY | os.O_NONBLOCK, self._directory)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(name)
        return self._keep(descriptor)

    def _keep(self, descriptor: int) -> int:
        self._descriptors.callback(os.close, descriptor)
        return descriptor


def _open(path: str | Path, flags: int, directory: int | None = None) -> int:
    """Never through a link."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise FileNotFoundError(path) from error
        raise


class _Lines:
    """Whole lines of a file that grows, each once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0

    def next(self) -> bytes:
        some = os.pread(self._descriptor, _INDEX_BYTES, self._position)
        whole = some[: some.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole


class _Log:
    """One stream of one attempt, within a segment that others may write to before and after it."""

    def __init__(
        self, segment: int, request: pb.OpenLog, start: Extent, index: _Lines, end: Extent | None
    ) -> None:
        self._segment = segment
        self._request = request
        self._start = self._of_stream(start)
        self._index = index
        self._end = None if end is None else self._of_stream(end)

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    async def read(self, offset: int) -> bytes:
        """Some bytes, then a look for its end, which is written before anyone else gets the segment."""
        data = os.pread(self._segment, _CHUNK_BYTES, min(self._start + offset, _FAR_BYTES))
        while self._end is None and (some := self._index.next()):
            end = find_end(some, self._request.index, self._request.attempt)
            self._end = None if end is None else self._of_stream(end)
            await asyncio.sleep(0)
        return data if self._end is None else data[: max(0, self._end - self._start - offset)]

    def _of_stream(self, extent: Extent) -> int:
        return extent.out_bytes if self._request.stream == "stdout" else extent.err_bytes
