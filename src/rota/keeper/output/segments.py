"""Where output goes: segments, each two files that consecutive attempts of one job append to in turn."""

import contextlib
import errno
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rota.keeper.directory_pool import DirectoryPool
from rota.keeper.output.index import Extent, end_line, find_end, find_start, segments, start_line, time_line
from rota.keeper.process import fast_syscalls
from rota.keeper.protocol.wire import OutputRetention
from rota.keeper.resources.reservations import AttemptKey

REUSE_BYTES_MAX = 64 << 20  # what is longer is not shared with later attempts
OPEN_FILES = 256  # kept open; others are opened again when it is their turn
OPEN_FLAGS = (
    os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)  # a link or a pipe put in a file's place does no harm
INDEX = OPEN_FLAGS | os.O_RDWR | os.O_CREAT | os.O_APPEND
OUTPUT = OPEN_FLAGS | os.O_RDONLY
TORN = b"?\n"  # makes half a line, left by a crash, a line that says nothing


@dataclass(slots=True)
class Segment:
    number: int
    path: bytes  # without .out and .err
    at: Extent  # where the attempt that holds it began


@dataclass(frozen=True, slots=True)
class MeasuredExtent:
    """How far the files of a segment reach, and whether that is final: nobody can write to them any more."""

    at: Extent
    is_final: bool


@dataclass(slots=True)
class JobSegments:
    """The segments of a job."""

    path: str
    index: bytes  # its path
    next_number: int
    free: list[Segment] = field(default_factory=list)
    unwritten: list[bytes] = field(default_factory=list)  # lines of the index


class SegmentStore:
    """Hands segments out and takes them back; the index tells of an end before it tells of the next start."""

    retention = OutputRetention()
    shortage: str | None = None  # why the disk takes nothing new

    def __init__(self, root: str) -> None:
        self._root = root
        self._by_job: dict[str, JobSegments] = {}
        self._files = OpenFiles()
        self._directory_pool = DirectoryPool(f"{root}/spare/logs", f"{root}/logs", _make_job_directory)
        self._late: set[str] = set()  # jobs with unwritten lines
        self._in_use: set[bytes] = set()  # segments of live attempts, by path
        self.allocated = threading.Event()  # since somebody last cleared it

    def allocate(self, keys: Sequence[AttemptKey]) -> list[Segment]:
        """A segment for each attempt, on record; OSError if they cannot be recorded, and none is taken."""
        taken: list[Segment] = []
        if self.shortage and keys:
            raise OSError(errno.ENOSPC, self.shortage)
        try:
            taken.extend(map(self._allocate, keys))
            for job in dict.fromkeys(key[0] for key in keys):
                self._write(job)
            if not self.allocated.is_set():
                self.allocated.set()
        except OSError:
            for key, segment in zip(keys, taken, strict=False):
                self.release(key, segment, MeasuredExtent(segment.at, is_final=True))
            raise
        return taken

    def preallocate(self) -> None:
        """Make ahead what the next jobs will need."""
        with contextlib.suppress(OSError):  # then their first starts take longer
            self._directory_pool.refill()

    def measure(self, segment: Segment) -> MeasuredExtent:
        out_bytes, out_is_final = self._length(segment.path + b".out")
        err_bytes, err_is_final = self._length(segment.path + b".err")
        return MeasuredExtent(Extent(out_bytes, err_bytes), out_is_final and err_is_final)

    def final_measure(self, segment: Segment, is_exiting: Callable[[], bool]) -> MeasuredExtent | None:
        """How far they reach when whoever wrote is gone; None: it is dying, and lets go of them in a moment.

        A dying process is no longer known as one of ours before it closes its files.
        """
        found = self.measure(segment)
        if found.is_final:
            return found
        return None if is_exiting() else self.measure(segment)  # who still wrote then may be gone by now

    def release(self, key: AttemptKey, segment: Segment, measure: MeasuredExtent) -> None:
        """The attempt has ended. What is long, or may still be written to, nobody gets again."""
        job, index, attempt = key
        shelf = self._by_job[job]
        self._in_use.discard(segment.path)
        before, segment.at = segment.at, measure.at
        shelf.unwritten.append(end_line(index, attempt, measure.at))
        self._late.add(job)
        is_whole = measure.at.out_bytes >= before.out_bytes and measure.at.err_bytes >= before.err_bytes
        is_short = max(measure.at.out_bytes, measure.at.err_bytes) <= REUSE_BYTES_MAX
        if measure.is_final and is_whole and is_short:
            shelf.free.append(segment)
        else:
            self._retire(segment)

    def claim_for_deletion(self, job: str, number: int) -> bool:
        """Nobody gets this segment again, its files are about to go; False: a live attempt holds it."""
        if os.fsencode(f"{self._root}/logs/{job}/{number}") in self._in_use:
            return False
        if shelf := self._by_job.get(job):
            for segment in [free for free in shelf.free if free.number == number]:
                shelf.free.remove(segment)
                self._retire(segment)
        return True

    def flush(self) -> None:
        """Write what is unwritten if the disk takes it; the next write or flush tries again otherwise."""
        for job in list(self._late):
            with contextlib.suppress(OSError):
                self._write(job)

    def record_lost_ends(self, keys: Iterable[AttemptKey]) -> None:
        """Record an end for attempts of an earlier keeper: where their files end now."""
        by_job: dict[str, list[AttemptKey]] = defaultdict(list)
        for key in keys:
            by_job[key[0]].append(key)
        for job, lost in by_job.items():
            with contextlib.suppress(OSError):  # no index: nothing of it ever started
                self._record_lost_ends(job, lost)
        self.flush()

    def recreate_directory(self, job: str) -> None:
        """Make the directory anew if somebody removed it; what is held is lost, what is free goes with it."""
        shelf = self._by_job[job]
        if not os.path.isdir(shelf.path):
            self._clear(shelf)
            with contextlib.suppress(OSError):  # then the next start is refused, too
                os.makedirs(shelf.path, mode=0o700)

    def forget(self, job: str) -> None:
        self._late.discard(job)
        if shelf := self._by_job.pop(job, None):
            self._clear(shelf)

    def _allocate(self, key: AttemptKey) -> Segment:
        job, index, attempt = key
        shelf = self._by_job.get(job) or self._open_job(job)
        if shelf.free:
            segment = shelf.free.pop()
        else:
            segment = _segment(shelf, shelf.next_number, Extent(0, 0))
            shelf.next_number += 1
        shelf.unwritten.append(start_line(index, attempt, segment.number, segment.at))
        self._in_use.add(segment.path)
        self._late.add(job)
        return segment

    def _open_job(self, job: str) -> JobSegments:
        """Segments of an earlier keeper are left alone: who writes to them is not known."""
        path = f"{self._root}/logs/{job}"
        next_number = 0
        if not self._directory_pool.allocate(job):
            os.makedirs(path, mode=0o700, exist_ok=True)
            next_number = _unused_number(path)
        shelf = self._by_job[job] = JobSegments(path, os.fsencode(f"{path}/index"), next_number)
        return shelf

    def _write(self, job: str) -> None:
        shelf = self._by_job[job]
        text = b"".join((time_line(time.time_ns() // 1_000_000), *shelf.unwritten))
        fd = self._files.get(shelf.index) or self._open_index(shelf.index)
        written = fast_syscalls.write(fd, text)
        if written < len(text):  # half a line in the middle would garble the next one
            os.ftruncate(fd, os.fstat(fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        shelf.unwritten.clear()
        self._late.discard(job)

    def _open_index(self, path: bytes) -> int:
        fd = self._files.open(path, INDEX)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, TORN)
        return fd

    def _length(self, path: bytes) -> tuple[int, bool]:
        """The size of a file, and whether it can grow no more.

        The kernel grants a lease to a reader only if nobody has the file open for writing, and while it is
        held nobody can. Where there are no leases (network and overlay file systems) nothing is ever final.
        """
        try:
            fd = self._files.get(path) or self._files.open(path, OUTPUT)
        except OSError:
            return _size(path), False
        is_final = fast_syscalls.take_read_lease(fd)
        found = fast_syscalls.stat(fd)
        if is_final:
            fast_syscalls.release_lease(fd)
        return found.size, is_final and found.links == 1

    def _clear(self, shelf: JobSegments) -> None:
        self._files.close(shelf.index)
        for segment in shelf.free:
            self._retire(segment)
        shelf.free.clear()

    def _retire(self, segment: Segment) -> None:
        self._files.close(segment.path + b".out")
        self._files.close(segment.path + b".err")

    def _record_lost_ends(self, job: str, lost: list[AttemptKey]) -> None:
        with open(f"{self._root}/logs/{job}/index", "rb") as file:
            lines = file.read()
        shelf = self._open_job(job)
        for _, index, attempt in lost:
            begun = find_start(lines, index, attempt)
            if begun and not find_end(lines, index, attempt):
                segment = _segment(shelf, begun.segment, begun.at)
                shelf.unwritten.append(end_line(index, attempt, self.measure(segment).at))
                self._retire(segment)
                self._late.add(job)


class OpenFiles:
    """Descriptors by path; of too many the one opened first is closed."""

    def __init__(self) -> None:
        self._open: dict[bytes, int] = {}

    def get(self, path: bytes) -> int | None:
        return self._open.get(path)

    def open(self, path: bytes, flags: int) -> int:
        while len(self._open) >= OPEN_FILES:
            self.close(next(iter(self._open)))
        fd = self._open[path] = os.open(path, flags, 0o600)
        return fd

    def close(self, path: bytes) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)


def _make_job_directory(path: str) -> None:
    """With the files of its first segment, still empty."""
    os.mkdir(path, mode=0o700)
    for name in ("index", "0.out", "0.err"):
        os.close(os.open(f"{path}/{name}", INDEX, 0o600))


def _unused_number(path: str) -> int:
    """Higher than that of any segment there is, or was: the index still tells of those."""
    stems = [name.partition(".")[0] for name in os.listdir(path)]
    numbers = [int(stem) for stem in stems if stem.isdecimal()]
    with contextlib.suppress(FileNotFoundError), open(f"{path}/index", "rb") as lines:
        numbers += segments(lines.read())
    return max(numbers, default=-1) + 1


def _segment(job_segments: JobSegments, number: int, at: Extent) -> Segment:
    return Segment(number, os.fsencode(f"{job_segments.path}/{number}"), at)


def _size(path: bytes) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
