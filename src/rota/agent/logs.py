"""The bytes an attempt wrote, from an offset on, while it lives or after. [I/O]"""

import asyncio
import errno
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rota.keeper.output.index import Begun, Extent, find_end, find_start
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
            log = await search.look()
            if log is not None and (log.has_file or not (live and request.follow)):
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
    caught_up = False  # what is read from here on has just arrived
    yield pb.LogChunk(id=request.id, offset=offset)
    while True:
        live = is_live()  # asked before reading: what it wrote until its end is then surely seen
        piece = await log.read(offset)
        if piece.missing or piece.data:
            offset += piece.missing
            at_ms = time.time_ns() // 1_000_000 if caught_up else 0
            yield pb.LogChunk(
                id=request.id, offset=offset, data=piece.data, missing=piece.missing, at_ms=at_ms
            )
            offset += len(piece.data)
        elif log.has_ended or not (request.follow and live):
            return
        else:
            caught_up = True
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
        except FileNotFoundError:
            return None
        try:
            segment = self._open(f"{self._begun.segment}.{_ENDINGS[self._request.stream]}")
        except FileNotFoundError:
            segment = -1  # not made yet, or deleted
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


class _Piece(NamedTuple):
    """Bytes, or how many there is a hole instead of."""

    missing: int
    data: bytes


_NOTHING = _Piece(0, b"")


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

    @property
    def has_file(self) -> bool:
        return self._segment >= 0

    async def read(self, offset: int) -> "_Piece":
        """Some bytes, then a look for its end, which is written before anyone else gets the segment."""
        piece = self._read(min(self._start + offset, _FAR_BYTES)) if self.has_file else _NOTHING
        await self._look_for_end()
        if self._end is None:
            return piece
        left = max(0, self._end - self._start - offset)
        if piece == _NOTHING:
            return _Piece(left, b"")  # it was cut, or deleted
        return _Piece(min(piece.missing, left), piece.data[:left])

    def _read(self, position: int) -> "_Piece":
        """What can be read there, or what cannot: the file system knows what was given back to it.

        Asked after reading: what is no hole then was none before.
        """
        data = os.pread(self._segment, _CHUNK_BYTES, position)
        if not data:
            return _NOTHING
        try:
            begins = os.lseek(self._segment, position, os.SEEK_DATA)
            ends = os.lseek(self._segment, position, os.SEEK_HOLE)
        except OSError:  # a hole up to the end
            return _Piece(len(data), b"")
        return _Piece(begins - position, b"") if begins > position else _Piece(0, data[: ends - position])

    async def _look_for_end(self) -> None:
        while self._end is None and (some := self._index.next()):
            end = find_end(some, self._request.index, self._request.attempt)
            self._end = None if end is None else self._of_stream(end)
            await asyncio.sleep(0)

    def _of_stream(self, extent: Extent) -> int:
        return extent.out_bytes if self._request.stream == "stdout" else extent.err_bytes
