"""The output files of one attempt on this node: its segment, extent and arrival times. [I/O]

The reading side of `rota.keeper.output.segments`: the keeper writes, this process reads the same files while
they grow, without any lock. What makes that safe is the order of the keeper's writes, described there.
"""

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
_FAR_BYTES = 1 << 62  # no file is longer; the kernel accepts offsets below 2^63
_ENDINGS = {"stdout": "out", "stderr": "err"}
_NOT_OURS = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}  # a link or a socket in place of the keeper's file


class IndexSearch:
    """Searches a job's index for one attempt; each scan continues where the last one ended."""

    def __init__(self, root: Path, request: pb.OpenLog, descriptors: ExitStack) -> None:
        self._root = root
        self._request = request
        self._descriptors = descriptors
        self._directory: _Directory | None = None
        self._lines: _IndexLines | None = None
        self._begun: AttemptStart | None = None
        self._ended: _EndMark | None = None

    async def scan(self) -> "AttemptOutput | None":
        """Read on in the index; None: the attempt is not in it yet. FileNotFoundError: there are no logs."""
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
        request = self._request
        while self._begun is None and (some := lines.next()):
            self._begun = index.find_start(some, request.index, request.attempt)
            self._ended = _find_end(some, request, lines)
            await asyncio.sleep(0)  # an index can be long: let other tasks of the agent run

    def _open_directory(self) -> "_Directory":
        job = self._request.job
        if not job.isdecimal() or self._request.stream not in _ENDINGS:
            raise FileNotFoundError(job)
        handle = _open(self._root / "logs" / job, os.O_PATH | os.O_DIRECTORY)
        self._descriptors.callback(os.close, handle)
        return _Directory(handle, self._descriptors)


class OutputPiece(NamedTuple):
    """Some bytes, after `missing` bytes that were punched out or deleted."""

    missing: int
    data: bytes


NO_OUTPUT = OutputPiece(0, b"")


class _EndMark(NamedTuple):
    at: Extent
    at_ms: int


class AttemptOutput:
    """The output of one attempt, within a segment that it shares with earlier and later attempts."""

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
        """How many bytes are known to have arrived by `at_ms`; all of them after the attempt's end."""
        end = self.end(stream)
        if self._ended is not None and end is not None and self._ended.at_ms <= at_ms:
            return end
        return min(self.stream(stream).arrived_by(at_ms), _FAR_BYTES if end is None else end)

    def end(self, stream: str) -> int | None:
        """How many bytes the attempt wrote to this stream; None: it has not ended."""
        if self._ended is None:
            return None
        return _of(self._ended.at, stream) - _of(self._begun.at, stream)

    def stream(self, name: str) -> "SegmentStream":
        """The stream's file, opened again while it does not exist: the start is indexed before the file."""
        if name not in self._streams or not self._streams[name].has_file:
            self._streams[name] = SegmentStream(
                self._directory, f"{self._begun.segment}.{_ENDINGS[name]}", _of(self._begun.at, name)
            )
        return self._streams[name]

    async def read(self, offset: int) -> OutputPiece:
        """Read some bytes from `offset`.

        Race: the attempt may end and the next one write to the same segment. The end is indexed before that,
        so it is looked up after the read: bytes beyond it are another attempt's and are cut off.
        """
        name = self._request.stream
        piece = self.stream(name).read(offset)
        end = self.end(name)
        if end is None:
            await self._find_end_mark()
            end = self.end(name)
            if end is None:
                return piece
            piece = self.stream(name).read(offset)  # it may have written more before its end
        left = max(0, end - offset)
        if piece == NO_OUTPUT:
            return OutputPiece(left, b"")  # the file was truncated or deleted
        return OutputPiece(min(piece.missing, left), piece.data[:left])

    def marks(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Arrival times of the bytes from `offset` on, as (number of bytes, time) pairs."""
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
    """One of the two files of a segment, from the start of the attempt's output on."""

    def __init__(self, directory: "_Directory", name: str, start: int) -> None:
        self._directory = directory
        self._name = name
        self._start = start
        self._file = -1
        with suppress(FileNotFoundError):  # not made yet, or deleted
            self._file = directory.open(name)
        self._times = TimeIndex()
        self._times_file: tuple[int, int] | None = None  # inode and size of the time index last read

    @property
    def has_file(self) -> bool:
        return self._file >= 0

    def read(self, offset: int) -> OutputPiece:
        """Bytes at `offset`, or the length of the hole there.

        Race: the trimmer may punch a hole at any time, which reads as zeros. Holes are looked up after the
        read: what is no hole then was none during the read.
        """
        position = min(self._start + offset, _FAR_BYTES)
        data = self.bytes_at(offset, _CHUNK_BYTES)
        if not data:
            return NO_OUTPUT
        try:
            ends = os.lseek(self._file, position, os.SEEK_HOLE)
            begins = os.lseek(self._file, position, os.SEEK_DATA)  # last, by the same argument
        except OSError:  # a hole up to the end
            return OutputPiece(len(data), b"")
        return (
            OutputPiece(begins - position, b"")
            if begins > position
            else OutputPiece(0, data[: ends - position])
        )

    def bytes_at(self, offset: int, most: int) -> bytes:
        """Up to `most` bytes, with zeros where there is a hole."""
        return os.pread(self._file, most, min(self._start + offset, _FAR_BYTES)) if self.has_file else b""

    def size(self) -> int:
        """Bytes in the file from the attempt's start on; later attempts may have written some of them."""
        return max(0, os.fstat(self._file).st_size - self._start) if self.has_file else 0

    def kept_from(self, offset: int) -> int:
        """The first offset from `offset` on that is not in a hole."""
        try:
            return os.lseek(self._file, self._start + offset, os.SEEK_DATA) - self._start
        except OSError:
            return max(offset, self.size())

    def times(self) -> TimeIndex:
        with suppress(OSError):
            self._read_times()
        return self._times

    def arrived_by(self, at_ms: int) -> int:
        """How many bytes are known to have arrived by `at_ms`."""
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
    """The log directory of one job; files opened with `open` stay open until the reader is done."""

    def __init__(self, handle: int, descriptors: ExitStack) -> None:
        self._handle = handle
        self._descriptors = descriptors

    def open(self, name: str) -> int:
        descriptor = self.open_briefly(name)
        self._descriptors.callback(os.close, descriptor)
        return descriptor

    def open_briefly(self, name: str) -> int:
        """Open a regular file below the directory; O_NONBLOCK, because a pipe must not block the agent."""
        descriptor = _open(name, os.O_RDONLY | os.O_NONBLOCK, self._handle)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(name)
        return descriptor


def _open(path: str | Path, flags: int, directory: int | None = None) -> int:
    """Open without following links: tasks may have put them there."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise FileNotFoundError(path) from error
        raise


class _IndexLines:
    """Reads complete lines of a growing file, each once."""

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


def _find_end(some: bytes, request: pb.OpenLog, lines: _IndexLines) -> _EndMark | None:
    end = index.find_end(some, request.index, request.attempt)
    if end is None:
        return None
    return _EndMark(end, index.end_ms(some, request.index, request.attempt) or lines.before_ms)


def _of(extent: Extent, stream: str) -> int:
    return extent.out_bytes if stream == "stdout" else extent.err_bytes
