"""Where the output of one attempt is on this node: its files, its beginning, its end, its times. [I/O]"""

import asyncio
import errno
import os
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from rota.keeper.output import index, time_index
from rota.keeper.output.index import AttemptStart, Extent
from rota.keeper.output.time_index import TimeIndex
from rota.wire.generated import agent_pb2 as pb

_CHUNK_BYTES = 256 * 1024
_INDEX_BYTES = 1 << 20
_FAR_BYTES = 1 << 62  # no file is longer, and the kernel takes no larger offset than twice this
_ENDINGS = {"stdout": "out", "stderr": "err"}
_NOT_OURS = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}  # a link or a socket where the keeper made a file


class IndexSearch:
    """Looks for one attempt in its job's index; each look goes on where the last one ended."""

    def __init__(self, root: Path, request: pb.OpenLog, descriptors: ExitStack) -> None:
        self._root = root
        self._request = request
        self._descriptors = descriptors
        self._directory: _Directory | None = None
        self._lines: _IndexLines | None = None
        self._begun: AttemptStart | None = None
        self._ended: _EndMark | None = None

    async def scan(self) -> "AttemptOutput | None":
        """FileNotFoundError: there is nothing of this job."""
        if self._directory is None:
            self._directory = self._open_directory()
        try:
            if self._lines is None:
                self._lines = _IndexLines(self._directory.open("index"))
            if self._begun is None:
                await self._find(self._lines)
        except FileNotFoundError:
            return None
        if self._begun is None:
            return None
        return AttemptOutput(self._directory, self._request, self._lines, self._begun, self._ended)

    async def _find(self, lines: "_IndexLines") -> None:
        wanted = self._request
        while self._begun is None and (some := lines.next()):
            self._begun = index.find_start(some, wanted.index, wanted.attempt)
            self._ended = _find_end(some, wanted, lines)
            await asyncio.sleep(0)  # an index can be long, and others want to go on

    def _open_directory(self) -> "_Directory":
        job = self._request.job
        if not job.isdecimal() or self._request.stream not in _ENDINGS:
            raise FileNotFoundError(job)
        handle = _open(self._root / "logs" / job, os.O_PATH | os.O_DIRECTORY)
        self._descriptors.callback(os.close, handle)
        return _Directory(handle, self._descriptors)


class OutputPiece(NamedTuple):
    """Bytes, or how many there is a hole instead of."""

    missing: int
    data: bytes


NO_OUTPUT = OutputPiece(0, b"")


class _EndMark(NamedTuple):
    at: Extent
    at_ms: int


class AttemptOutput:
    """What one attempt wrote, within segments that others may write to before and after it."""

    def __init__(
        self,
        directory: "_Directory",
        request: pb.OpenLog,
        lines: "_IndexLines",
        begun: AttemptStart,
        ended: _EndMark | None,
    ) -> None:
        self._directory = directory
        self._request = request
        self._lines = lines
        self._begun = begun
        self._ended = ended
        self._streams: dict[str, SegmentStream] = {}

    @property
    def has_ended(self) -> bool:
        return self._ended is not None

    def arrived_by(self, stream: str, at_ms: int) -> int:
        """How much of it had arrived by then, as far as is known; of one who has ended surely all."""
        end = self.end(stream)
        if self._ended is not None and end is not None and self._ended.at_ms <= at_ms:
            return end
        return min(self.stream(stream).arrived_by(at_ms), _FAR_BYTES if end is None else end)

    def end(self, stream: str) -> int | None:
        """How many bytes it wrote there, once it has ended."""
        if self._ended is None:
            return None
        return _of(self._ended.at, stream) - _of(self._begun.at, stream)

    def stream(self, name: str) -> "SegmentStream":
        """Looked for again while it has no file: that is made after its beginning is on record."""
        if name not in self._streams or not self._streams[name].has_file:
            self._streams[name] = SegmentStream(
                self._directory, f"{self._begun.segment}.{_ENDINGS[name]}", _of(self._begun.at, name)
            )
        return self._streams[name]

    async def read(self, offset: int) -> OutputPiece:
        """Some bytes, then a look for its end, which is written before anyone else gets the segment."""
        name = self._request.stream
        piece = self.stream(name).read(offset)
        end = self.end(name)
        if end is None:
            await self._find_end_mark()
            end = self.end(name)
            if end is None:
                return piece
            piece = self.stream(name).read(offset)  # it may have written on, up to its end
        left = max(0, end - offset)
        if piece == NO_OUTPUT:
            return OutputPiece(left, b"")  # it was cut, or deleted
        return OutputPiece(min(piece.missing, left), piece.data[:left])

    def marks(self, offset: int, length: int) -> list[tuple[int, int]]:
        """By when the bytes from `offset` on had arrived: so many of them, and the time; []: nobody knows."""
        stream = self.stream(self._request.stream)
        found = [(at - offset, at_ms) for at, at_ms in stream.times_between(offset, offset + length)]
        if not found or found[-1][0] < length:
            last_ms = time.time_ns() // 1_000_000 if self._ended is None else self._ended.at_ms
            found.append((length, max(last_ms, found[-1][1]) if found else last_ms))
        return found

    async def _find_end_mark(self) -> None:
        while self._ended is None and (some := self._lines.next()):
            self._ended = _find_end(some, self._request, self._lines)
            await asyncio.sleep(0)


class SegmentStream:
    """One of the two files of a segment, from where the attempt began on."""

    def __init__(self, directory: "_Directory", name: str, start: int) -> None:
        self._directory = directory
        self._name = name
        self._start = start
        self._file = -1
        with suppress(FileNotFoundError):  # not made yet, or deleted
            self._file = directory.open(name)
        self._times = TimeIndex()
        self._times_file: tuple[int, int] | None = None  # which one was read, and how much of it

    @property
    def has_file(self) -> bool:
        return self._file >= 0

    def read(self, offset: int) -> OutputPiece:
        """What can be read there, or what cannot: the file system knows what was given back to it.

        Asked after reading: what is no hole then was none before.
        """
        position = min(self._start + offset, _FAR_BYTES)
        data = self.bytes_at(offset, _CHUNK_BYTES)
        if not data:
            return NO_OUTPUT
        try:
            ends = os.lseek(self._file, position, os.SEEK_HOLE)
            begins = os.lseek(self._file, position, os.SEEK_DATA)  # last: if it begins here, so it did before
        except OSError:  # a hole up to the end
            return OutputPiece(len(data), b"")
        return (
            OutputPiece(begins - position, b"")
            if begins > position
            else OutputPiece(0, data[: ends - position])
        )

    def bytes_at(self, offset: int, most: int) -> bytes:
        """As they are read: zeros where there is a hole."""
        return os.pread(self._file, most, min(self._start + offset, _FAR_BYTES)) if self.has_file else b""

    def size(self) -> int:
        """Of what is there now, by whoever it was written."""
        return max(0, os.fstat(self._file).st_size - self._start) if self.has_file else 0

    def kept_from(self, offset: int) -> int:
        """Where there are bytes again, if there are none."""
        try:
            return os.lseek(self._file, self._start + offset, os.SEEK_DATA) - self._start
        except OSError:
            return max(offset, self.size())

    def times(self) -> TimeIndex:
        with suppress(OSError):
            self._read_times()
        return self._times

    def arrived_by(self, at_ms: int) -> int:
        """How much is known to have arrived by then."""
        return max(0, self.times().position_at(at_ms) - self._start)

    def times_between(self, offset: int, end: int) -> list[tuple[int, int]]:
        found = self.times().marks_between(self._start + offset, self._start + end)
        return [(position - self._start, at_ms) for position, at_ms in found]

    def _read_times(self) -> None:
        handle = self._directory.open_briefly(self._name + time_index.SUFFIX.decode())
        try:
            found = os.fstat(handle)
            if self._times_file != (found.st_ino, found.st_size):
                self._times = time_index.parse_marks(os.pread(handle, found.st_size, 0))
                self._times_file = (found.st_ino, found.st_size)
        finally:
            os.close(handle)


class _Directory:
    """The keeper's files of one job; what is opened stays so until the reader is done."""

    def __init__(self, handle: int, descriptors: ExitStack) -> None:
        self._handle = handle
        self._descriptors = descriptors

    def open(self, name: str) -> int:
        descriptor = self.open_briefly(name)
        self._descriptors.callback(os.close, descriptor)
        return descriptor

    def open_briefly(self, name: str) -> int:
        """Beneath the directory's handle; a pipe must not keep its reader waiting."""
        descriptor = _open(name, os.O_RDONLY | os.O_NONBLOCK, self._handle)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(name)
        return descriptor


def _open(path: str | Path, flags: int, directory: int | None = None) -> int:
    """Never through a link."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise FileNotFoundError(path) from error
        raise


class _IndexLines:
    """Whole lines of a file that grows, each once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0
        self._last = b""
        self.before_ms = 0  # the last time line before the latest chunk

    def next(self) -> bytes:
        self.before_ms = index.last_ms(self._last) or self.before_ms
        some = os.pread(self._descriptor, _INDEX_BYTES, self._position)
        self._last = some[: some.rfind(b"\n") + 1]
        self._position += len(self._last)
        return self._last


def _find_end(some: bytes, wanted: pb.OpenLog, lines: _IndexLines) -> _EndMark | None:
    end = index.find_end(some, wanted.index, wanted.attempt)
    if end is None:
        return None
    return _EndMark(end, index.end_ms(some, wanted.index, wanted.attempt) or lines.before_ms)


def _of(extent: Extent, stream: str) -> int:
    return extent.out_bytes if stream == "stdout" else extent.err_bytes
