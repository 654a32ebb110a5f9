"""Output segments: pairs of files that attempts append to directly, and the index of whose bytes are where.

Layout, below the keeper's directory:

    logs/JOB/index         which attempt wrote which bytes; append-only text (`index.py`)
    logs/JOB/N.out, N.err  segment N: stdout and stderr of consecutive attempts of the job
    logs/JOB/N.out.times   when bytes of N.out had arrived, and the same for N.err (`time_index.py`)

An attempt's stdout and stderr are opened by the attempt itself, in append mode. No byte passes through the
keeper, so a killed keeper or agent loses none, and a slow reader never blocks a task. Creating two files per
attempt is expensive on some file systems, so a segment is reused by the next attempt of the job, as long as
it is short (REUSE_BYTES_MAX) and provably no process writes to it any more.

Protocol. The keeper is the only writer of the index; agents read it while it grows.

    T 1763472000000             wall clock, in ms, of the lines that follow
    S INDEX ATTEMPT N OUT ERR   the attempt has segment N from these byte offsets on
    E INDEX ATTEMPT OUT ERR     the attempt ended at these offsets

* `S` is written before the process is started. Output without an owner cannot exist, also after a crash.
* `E` is written before the next `S` of the same segment (`_write` appends pending lines in order). A reader
  that finds no `E` may therefore read to the end of the file: no other attempt has written there.
* A line that a crash has torn is closed by `?` when the index is opened again, and ignored by readers.

When an attempt ends, `measure` asks the kernel for a read lease on each file (F_SETLEASE). The kernel grants
it only if no process has the file open for writing: that is the proof that the extent is final. Where the
proof fails (a daemon that outlived its attempt, a file system without leases, a link to the file), the
segment is retired: its bytes stay readable and no attempt gets it again.

Crash points. A keeper that dies between `S` and `E` leaves an open extent. The next keeper kills what is left
of the attempt and writes `E` at the current file sizes (`record_lost_ends`). It never reuses segments of an
earlier keeper, because processes may still have them open, and numbers its own above all in the index.

Deletion. The trimmer deletes whole segments (`claim_for_deletion`), never parts of the index. Within a live
attempt it punches holes, so that offsets stay valid: a reader reports a hole as bytes missing.

All of SegmentStore runs under `Supervisor.lock`, except `preallocate` (the sweeper alone calls it) and reads
of `retention` and `shortage` (one reference each). An OSError of `allocate` refuses the start: no attempt
runs whose output cannot be indexed.
"""

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

REUSE_BYTES_MAX = 64 << 20  # a longer segment is not reused by later attempts
OPEN_FILES = 256  # descriptors kept open; other files are opened again when needed
# A link or a pipe that a task puts in a file's place does no harm.
OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
INDEX = OPEN_FLAGS | os.O_RDWR | os.O_CREAT | os.O_APPEND
OUTPUT = OPEN_FLAGS | os.O_RDONLY
TORN = b"?\n"  # ends a line that a crash has cut short: readers ignore it


@dataclass(slots=True)
class Segment:
    number: int
    path: bytes  # without .out and .err
    at: Extent  # where the output of the attempt that holds it starts


@dataclass(frozen=True, slots=True)
class MeasuredExtent:
    """The sizes of a segment's files, and whether they are final: no process can write to them any more."""

    at: Extent
    is_final: bool


@dataclass(slots=True)
class JobSegments:
    """The segments of a job."""

    path: str
    index: bytes  # path of the index file
    next_number: int
    free: list[Segment] = field(default_factory=list)
    unwritten: list[bytes] = field(default_factory=list)  # index lines not on disk yet, in their order


class SegmentStore:
    """Allocates segments to attempts. Invariant: an end is indexed before the next start of that segment."""

    retention = OutputRetention()
    shortage: str | None = None  # why nothing new may be started, as when the disk is full

    def __init__(self, root: str) -> None:
        self._root = root
        self._by_job: dict[str, JobSegments] = {}
        self._files = OpenFiles()
        self._directory_pool = DirectoryPool(f"{root}/spare/logs", f"{root}/logs", _make_job_directory)
        self._late: set[str] = set()  # jobs with unwritten index lines
        self._in_use: set[bytes] = set()  # paths of segments that live attempts hold
        self.allocated = threading.Event()  # wakes the trimmer, which clears it

    def allocate(self, keys: Sequence[AttemptKey]) -> list[Segment]:
        """Allocate a segment to each attempt, indexed on return; OSError: none is allocated."""
        allocated: list[Segment] = []
        if self.shortage and keys:
            raise OSError(errno.ENOSPC, self.shortage)
        try:
            allocated.extend(map(self._allocate, keys))
            for job in dict.fromkeys(key[0] for key in keys):
                self._write(job)
            if not self.allocated.is_set():
                self.allocated.set()
        except OSError:
            # Released as never written to, so that the next attempts can have them.
            for key, segment in zip(keys, allocated, strict=False):
                self.release(key, segment, MeasuredExtent(segment.at, is_final=True))
            raise
        return allocated

    def preallocate(self) -> None:
        """Make ahead what the next jobs will need."""
        with contextlib.suppress(OSError):  # then their first starts take longer
            self._directory_pool.refill()

    def measure(self, segment: Segment) -> MeasuredExtent:
        out_bytes, out_is_final = self._length(segment.path + b".out")
        err_bytes, err_is_final = self._length(segment.path + b".err")
        return MeasuredExtent(Extent(out_bytes, err_bytes), out_is_final and err_is_final)

    def final_measure(self, segment: Segment, is_exiting: Callable[[], bool]) -> MeasuredExtent | None:
        """Measure a segment whose attempt has ended; None: a process of it is exiting, measure again soon.

        Race: an exiting process loses its environment, by which it is found, before it closes its files.
        """
        found = self.measure(segment)
        if found.is_final:
            return found
        return None if is_exiting() else self.measure(segment)  # the last writer may have ended since

    def release(self, key: AttemptKey, segment: Segment, measure: MeasuredExtent) -> None:
        """Index the end of an attempt; reuse its segment unless that is long or may still be written to."""
        job, index, attempt = key
        job_segments = self._by_job[job]
        self._in_use.discard(segment.path)
        before, segment.at = segment.at, measure.at
        # Queued, not written: it is enough that the end reaches
        # the index before the next start of this segment.
        job_segments.unwritten.append(end_line(index, attempt, measure.at))
        self._late.add(job)
        is_whole = measure.at.out_bytes >= before.out_bytes and measure.at.err_bytes >= before.err_bytes
        is_short = max(measure.at.out_bytes, measure.at.err_bytes) <= REUSE_BYTES_MAX
        # A file that shrank was truncated by the task: later offsets would not be reliable.
        if measure.is_final and is_whole and is_short:
            job_segments.free.append(segment)
        else:
            self._retire(segment)

    def claim_for_deletion(self, job: str, number: int) -> bool:
        """Retire a segment whose files are about to be deleted; False: a live attempt holds it."""
        if os.fsencode(f"{self._root}/logs/{job}/{number}") in self._in_use:
            return False
        if job_segments := self._by_job.get(job):
            # Out of the free list under the lock, so that no
            # attempt can be given files that are being deleted.
            for segment in [free for free in job_segments.free if free.number == number]:
                job_segments.free.remove(segment)
                self._retire(segment)
        return True

    def flush(self) -> None:
        """Write pending index lines if the disk takes them; otherwise the next write or flush tries again."""
        for job in list(self._late):
            with contextlib.suppress(OSError):
                self._write(job)

    def record_lost_ends(self, keys: Iterable[AttemptKey]) -> None:
        """Index an end for attempts of an earlier keeper, at the current sizes of their files."""
        by_job: dict[str, list[AttemptKey]] = defaultdict(list)
        for key in keys:
            by_job[key[0]].append(key)
        for job, lost in by_job.items():
            with contextlib.suppress(OSError):  # no index: no attempt of this job ever started
                self._record_lost_ends(job, lost)
        self.flush()

    def recreate_directory(self, job: str) -> None:
        """Create the job's directory again if it was removed from outside; its free segments are dropped."""
        job_segments = self._by_job[job]
        if not os.path.isdir(job_segments.path):
            self._clear(job_segments)
            with contextlib.suppress(OSError):  # then the next start is refused, too
                os.makedirs(job_segments.path, mode=0o700)

    def forget(self, job: str) -> None:
        self._late.discard(job)
        if job_segments := self._by_job.pop(job, None):
            self._clear(job_segments)

    def _allocate(self, key: AttemptKey) -> Segment:
        job, index, attempt = key
        job_segments = self._by_job.get(job) or self._open_job(job)
        if job_segments.free:
            segment = job_segments.free.pop()
        else:
            segment = _segment(job_segments, job_segments.next_number, Extent(0, 0))
            job_segments.next_number += 1
        job_segments.unwritten.append(start_line(index, attempt, segment.number, segment.at))
        self._in_use.add(segment.path)
        self._late.add(job)
        return segment

    def _open_job(self, job: str) -> JobSegments:
        """Open a job's directory. Segments of an earlier keeper are left alone: they may still be open."""
        path = f"{self._root}/logs/{job}"
        next_number = 0
        if not self._directory_pool.allocate(job):
            os.makedirs(path, mode=0o700, exist_ok=True)
            next_number = _unused_number(path)
        job_segments = JobSegments(path, os.fsencode(f"{path}/index"), next_number)
        self._by_job[job] = job_segments
        return job_segments

    def _write(self, job: str) -> None:
        job_segments = self._by_job[job]
        # Each write starts with its time, by which readers know when the attempts in it started or ended.
        text = b"".join((time_line(time.time_ns() // 1_000_000), *job_segments.unwritten))
        fd = self._files.get(job_segments.index) or self._open_index(job_segments.index)
        written = fast_syscalls.write(fd, text)
        if written < len(text):  # a partial line would corrupt the next one
            os.ftruncate(fd, os.fstat(fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        job_segments.unwritten.clear()
        self._late.discard(job)

    def _open_index(self, path: bytes) -> int:
        fd = self._files.open(path, INDEX)
        size = os.fstat(fd).st_size
        # A crash tore the last line. It is ended here, so that the next line starts on its own.
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, TORN)
        return fd

    def _length(self, path: bytes) -> tuple[int, bool]:
        """The size of a file, and whether that is final.

        The kernel grants a read lease only if no process has the file open for writing, and none can open it
        so while the lease is held. On file systems without leases (network, overlay) no size is ever final.
        """
        try:
            fd = self._files.get(path) or self._files.open(path, OUTPUT)
        except OSError:
            return _size(path), False
        # Ordering: the size is read while the lease is held, so that no write can come in between.
        is_final = fast_syscalls.take_read_lease(fd)
        found = fast_syscalls.stat(fd)
        if is_final:
            fast_syscalls.release_lease(fd)
        # With a second link a task could open the file for writing again.
        return found.size, is_final and found.links == 1

    def _clear(self, job_segments: JobSegments) -> None:
        self._files.close(job_segments.index)
        for segment in job_segments.free:
            self._retire(segment)
        job_segments.free.clear()

    def _retire(self, segment: Segment) -> None:
        self._files.close(segment.path + b".out")
        self._files.close(segment.path + b".err")

    def _record_lost_ends(self, job: str, lost: list[AttemptKey]) -> None:
        with open(f"{self._root}/logs/{job}/index", "rb") as file:
            lines = file.read()
        job_segments = self._open_job(job)
        for _, index, attempt in lost:
            start = find_start(lines, index, attempt)
            if start and not find_end(lines, index, attempt):
                segment = _segment(job_segments, start.segment, start.at)
                job_segments.unwritten.append(end_line(index, attempt, self.measure(segment).at))
                self._retire(segment)
                self._late.add(job)


class OpenFiles:
    """Open descriptors by path; beyond OPEN_FILES the one opened first is closed."""

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
    """A segment number above all that exist or are named in the index, deleted ones included."""
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
