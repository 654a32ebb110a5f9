"""The trimmer thread: caps and arrival times of growing output, retention, free disk space."""

import contextlib
import heapq
import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from rota.keeper.attempt import RunningAttempt
from rota.keeper.output import time_index
from rota.keeper.output.holes import BLOCK_BYTES, punch
from rota.keeper.output.segments import OUTPUT, SegmentStore
from rota.keeper.supervisor import Supervisor
from rota.keeper.threads.disk_space import DiskSpace

SCAN_SECONDS = 0.1
IDLE_SECONDS = 1.0
SCANS_PER_ROUND = 200  # attempts per scan besides the fast ones: a 50th of a core
FAST_GROWTH_BYTES = 1 << 20  # a stream that grew by more since its last scan is in every scan
RETAIN_SECONDS = 5.0
RETAIN_SHARE = 50  # the retention pass takes at most 1/50 of the time


class Trimmer:
    """The loop of the trimmer thread. Its own thread, because deallocating disk space may take long."""

    def __init__(self, root: str, supervisor: Supervisor, outputs: SegmentStore) -> None:
        self._supervisor = supervisor
        self._outputs = outputs
        self._caps = StreamCaps(supervisor, outputs)
        self._retention = SegmentRetention(root, supervisor, outputs)
        self._disk_space = DiskSpace(root, supervisor, outputs)

    def run(self) -> None:
        retain_at = check_at = 0.0
        while True:
            self._caps.scan()
            if time.monotonic() >= check_at:
                self._disk_space.check()
                check_at = time.monotonic() + IDLE_SECONDS
            if time.monotonic() >= retain_at:
                started = time.monotonic()
                self._retention.delete_expired()
                took = time.monotonic() - started
                # In proportion to what it took: on a slow disk with many segments it must not take a core.
                retain_at = time.monotonic() + max(RETAIN_SECONDS, RETAIN_SHARE * took)
            # A new attempt ends the idle wait, so that its output is scanned soon.
            if self._supervisor.running or self._outputs.allocated.wait(IDLE_SECONDS):
                self._outputs.allocated.clear()
                time.sleep(SCAN_SECONDS)


class StreamCaps:
    """Caps the output of live attempts: each stream keeps its last bytes, the rest is punched out.

    Invariant: no hole reaches into the output of an earlier attempt in the same segment.
    """

    def __init__(self, supervisor: Supervisor, outputs: SegmentStore) -> None:
        self._supervisor = supervisor
        self._outputs = outputs
        self._to_scan: list[RunningAttempt] = []  # left of this round
        self._sizes: dict[bytes, int] = {}  # of live attempts, at the last scan
        self._fast: dict[bytes, RunningAttempt] = {}
        self._holes: dict[bytes, int] = {}  # where the hole in each file ends
        self._marked: dict[bytes, tuple[int, int]] = {}  # the last time mark of each file: size and time

    def scan(self) -> None:
        for path, attempt in list(self._fast.items()):
            self._scan_stream(path, attempt)
        some, self._to_scan = self._to_scan[:SCANS_PER_ROUND], self._to_scan[SCANS_PER_ROUND:]
        for attempt in some:
            for ending in (b".out", b".err"):
                path = attempt.segment.path + ending
                if path not in self._fast:
                    self._scan_stream(path, attempt)
        if not self._to_scan:
            self._start_round()

    def _start_round(self) -> None:
        # A copy without the lock: list() of a dictionary is atomic under the GIL.
        attempts = list(self._supervisor.running.values())
        self._to_scan = attempts
        if len(self._sizes) > 4 * len(attempts):
            live = {attempt.segment.path + ending for attempt in attempts for ending in (b".out", b".err")}
            self._sizes = {path: size for path, size in self._sizes.items() if path in live}
            self._holes = {path: end for path, end in self._holes.items() if path in live}
            self._marked = {path: mark for path, mark in self._marked.items() if path in live}

    def _scan_stream(self, path: bytes, attempt: RunningAttempt) -> None:
        try:
            size = os.lstat(path).st_size
        except OSError:  # not created yet, or removed from outside
            size = 0
        if size - self._sizes.get(path, size) > FAST_GROWTH_BYTES and attempt.key in self._supervisor.running:
            self._fast[path] = attempt
        else:
            self._fast.pop(path, None)
        self._sizes[path] = size
        self._record_time(path, attempt, size)
        most = self._cap_bytes(attempt)
        if size - self._retained_from(path, attempt) > most + cap_slack(most):
            with contextlib.suppress(OSError):  # a file system without holes: then all is kept
                self._trim(path, attempt)

    def _record_time(self, path: bytes, attempt: RunningAttempt, size: int) -> None:
        """Mark the time when the stream has grown. Times never decrease, also if the clock is set back."""
        before, before_ms = self._marked.get(path, (0, 0))
        if size > max(before, _start(path, attempt)):
            mark = self._marked[path] = (size, max(before_ms, time.time_ns() // 1_000_000))
            with contextlib.suppress(OSError):  # a full disk: the next mark stands for these bytes, too
                time_index.append_mark(path + time_index.SUFFIX, *mark)

    def _trim(self, path: bytes, attempt: RunningAttempt) -> None:
        fd = os.open(path, OUTPUT & ~os.O_RDONLY | os.O_RDWR)
        try:
            # Race: the attempt may end and the segment pass to the next one. Under the lock the size is
            # measured while this attempt still holds the segment.
            with self._supervisor.lock:
                # The attempt has ended: the segment may belong to another one by now.
                if self._supervisor.running.get(attempt.key) is not attempt:
                    return
                start = self._retained_from(path, attempt)
                end = os.fstat(fd).st_size - self._cap_bytes(attempt)
            self._holes[path] = punch(fd, start, end)
        finally:
            os.close(fd)

    def _retained_from(self, path: bytes, attempt: RunningAttempt) -> int:
        return max(_start(path, attempt), self._holes.get(path, 0))

    def _cap_bytes(self, attempt: RunningAttempt) -> int:
        own, node = attempt.spec.log_bytes, self._outputs.retention.stream_bytes
        return node if own is None else min(own, node)


def _start(path: bytes, attempt: RunningAttempt) -> int:
    at = attempt.segment.at
    return at.out_bytes if path.endswith(b".out") else at.err_bytes


def cap_slack(cap_bytes: int) -> int:
    """By how much a stream may exceed its cap before a hole is punched, which takes some time."""
    return max(BLOCK_BYTES, cap_bytes // 8)


class SegmentFiles(NamedTuple):
    """The two files of a segment, for retention."""

    written_ns: int  # last modification
    size_bytes: int  # allocated on disk
    job: str
    number: int


class SegmentRetention:
    """Deletes whole segments by age and total size; the index still names what was there.

    Above the total size, the oldest segment of the largest job goes first: a job that writes without end
    loses its own output before that of others.
    """

    def __init__(self, root: str, supervisor: Supervisor, outputs: SegmentStore) -> None:
        self._logs = f"{root}/logs"
        self._supervisor = supervisor
        self._outputs = outputs

    def delete_expired(self) -> None:
        retention = self._outputs.retention
        oldest_ns = time.time_ns() - retention.age_ms * 1_000_000
        segments = [
            segment
            for segment in sorted(self._segments())
            if segment.written_ns >= oldest_ns or not self._drop(segment)
        ]
        left_bytes = sum(segment.size_bytes for segment in segments)
        for segment in deletion_order(segments):
            if left_bytes <= retention.node_bytes:
                return
            if self._drop(segment):
                left_bytes -= segment.size_bytes

    def _drop(self, segment: SegmentFiles) -> bool:
        """Delete a segment; False: a live attempt holds it."""
        with self._supervisor.lock:
            is_free = self._outputs.claim_for_deletion(segment.job, segment.number)
        # Without the lock, because deleting takes long. Safe: a claimed segment is never allocated again.
        if is_free:
            self._delete(segment)
        return is_free

    def _segments(self) -> Iterator[SegmentFiles]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._logs) as jobs:
            for job in jobs:
                yield from _segments(job)

    def _delete(self, segment: SegmentFiles) -> None:
        for ending in ("out", "err", "out.times", "err.times"):
            try:
                os.unlink(f"{self._logs}/{segment.job}/{segment.number}.{ending}")
            except FileNotFoundError:
                pass
            except OSError as error:
                print(f"output: segment not deleted: {error}", file=sys.stderr)


def deletion_order(segments: list[SegmentFiles]) -> Iterator[SegmentFiles]:
    """All segments, each time the oldest of the job that has most bytes left."""
    by_job: dict[str, list[SegmentFiles]] = {}
    for segment in sorted(segments, reverse=True):
        by_job.setdefault(segment.job, []).append(segment)
    largest = [(-sum(file.size_bytes for file in files), files[-1], files) for files in by_job.values()]
    heapq.heapify(largest)
    while largest:
        negative_bytes, oldest, files = heapq.heappop(largest)
        files.pop()
        yield oldest
        if files:
            heapq.heappush(largest, (negative_bytes + oldest.size_bytes, files[-1], files))


def _segments(job: os.DirEntry[str]) -> list[SegmentFiles]:
    """The non-empty segments of a job's directory; files that vanish meanwhile are skipped."""
    found: dict[int, SegmentFiles] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(job.path) as files:
        for file in files:
            stem, _, ending = file.name.partition(".")
            if ending not in ("out", "err") or not stem.isdecimal():
                continue
            status = file.stat(follow_symlinks=False)
            if status.st_size:
                other = found.get(int(stem), SegmentFiles(0, 0, job.name, int(stem)))
                written_ns = max(other.written_ns, status.st_mtime_ns)
                size_bytes = other.size_bytes + status.st_blocks * 512
                found[int(stem)] = other._replace(written_ns=written_ns, size_bytes=size_bytes)
    return list(found.values())
