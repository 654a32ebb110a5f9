"""Tails: the last bytes of each attempt's output, for when its node is lost; the oldest are deleted. [I/O]"""

import contextlib
import os
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from rota.model.ids import JobId
from rota.model.limits import TAIL_BYTES, TAILS_BYTES_MAX
from rota.model.messages import Tail, TailPiece

TailKey = tuple[int, int, str]  # index, attempt, stream
STREAMS = ("stdout", "stderr")
HEAD = struct.Struct("<IIBQI")  # index, attempt, stream, offset, length
# Delay until tails of live attempts are on disk: a crash loses only what the node still has.
LIVE_SECONDS = 5.0
JOB_SHARE = 4  # no job may use more than this fraction (1/4) of the space


class TailStore:
    """The file `JOB` has tails of ended attempts, appended; `JOB.live` those of live ones, rewritten."""

    def __init__(self, directory: Path, most_bytes: int = TAILS_BYTES_MAX) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._live: dict[JobId, dict[TailKey, Tail]] = {}
        self._unwritten: dict[JobId, None] = {}
        self._timer: threading.Timer | None = None
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by file, the one written longest ago first
        self._total_bytes = 0
        # Files known to end with a complete record; a crash may have torn others.
        self._complete: set[JobId] = set()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = sorted((entry.stat().st_mtime_ns, entry.name) for entry in os.scandir(directory))
        for _, name in found:
            self._record_size(name)

    def store(self, pieces: Iterable[TailPiece]) -> None:
        with self._lock:
            # The timer writes from a thread of its own.
            ended: dict[JobId, list[bytes]] = {}
            for piece in pieces:
                live = self._live_of(piece.job)
                key = (piece.task, piece.attempt, piece.stream)
                tail = extend_tail(live.get(key), piece)
                if piece.is_final:
                    # Removed from the live file later than appended to the ended one: a crash in between
                    # leaves both, and `find` prefers the ended one.
                    if live.pop(key, None) is not None:
                        self._write_later(piece.job)
                    ended.setdefault(piece.job, []).append(_record(key, tail))
                else:
                    live[key] = tail
                    self._write_later(piece.job)
            for job, records in ended.items():
                self._append(job, b"".join(records))
            # After the appends, so that the newest tails are the last to be dropped.
            self._make_room()

    def find(self, job: JobId, index: int, attempt: int, stream: str) -> Tail | None:
        key = (index, attempt, stream)
        with self._lock:
            found = None
            # The file is append-only, so the last record of a key counts.
            for other, tail in _records(self._directory / job):
                if other == key:
                    found = tail
            return found._replace(is_final=True) if found else self._live_of(job).get(key)

    def forget(self, job: JobId) -> None:
        with self._lock:
            self._live.pop(job, None)
            self._unwritten.pop(job, None)
            self._complete.discard(job)
            self._drop(job)
            self._drop(f"{job}.live")

    def close(self) -> None:
        with self._lock:
            # Under the lock, so that a timer that fires now waits and finds nothing left to write.
            if self._timer is not None:
                self._timer.cancel()
            self._write_live()

    def _write_later(self, job: JobId) -> None:
        self._unwritten[job] = None
        # One timer for all jobs: the first change starts it,
        # later ones ride along, so a busy job cannot delay it.
        if self._timer is None:
            self._timer = threading.Timer(LIVE_SECONDS, self._write_in_time)
            self._timer.daemon = True
            self._timer.start()

    def _write_in_time(self) -> None:
        with self._lock:
            # Cleared first: a failed write must not stop later ones from starting a timer.
            self._timer = None
            with contextlib.suppress(OSError):  # a full disk: the nodes still have the output
                self._write_live()
                self._make_room()

    def _live_of(self, job: JobId) -> dict[TailKey, Tail]:
        if job not in self._live:
            self._live[job] = dict(_records(self._directory / f"{job}.live"))
        return self._live[job]

    def _append(self, job: JobId, records: bytes) -> None:
        path = self._directory / job
        # After a crash the file may end in a torn record.
        # Appending after it would make all later ones unreadable.
        if job not in self._complete and path.exists():
            os.truncate(path, sum(len(_record(key, tail)) for key, tail in _records(path)))
        self._complete.add(job)
        with path.open("ab") as file:
            file.write(records)
        self._record_size(job)
        # The bound per job keeps one job with much output from evicting the tails of all others.
        if self._sizes[job] > self._most_bytes // JOB_SHARE:
            self._halve(path)

    def _halve(self, path: Path) -> None:
        """Keep the later half of the records of a file."""
        records = deque(_record(key, tail) for key, tail in _records(path))
        surplus = path.stat().st_size // 2
        while records and surplus > 0:
            surplus -= len(records.popleft())
        _replace(path, b"".join(records))
        self._record_size(path.name)

    def _write_live(self) -> None:
        for job in list(self._unwritten):
            del self._unwritten[job]
            live = self._live_of(job)
            name = f"{job}.live"
            if live:
                _replace(self._directory / name, b"".join(_record(key, tail) for key, tail in live.items()))
                self._record_size(name)
            else:
                self._live.pop(job)
                self._drop(name)

    def _make_room(self) -> None:
        while self._total_bytes > self._most_bytes:
            name = next(iter(self._sizes))
            self._live.pop(JobId(name.removesuffix(".live")), None)
            self._drop(name)

    def _record_size(self, name: str) -> None:
        size = (self._directory / name).stat().st_size
        self._total_bytes += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        self._sizes.move_to_end(name)

    def _drop(self, name: str) -> None:
        self._total_bytes -= self._sizes.pop(name, 0)
        with contextlib.suppress(FileNotFoundError):
            (self._directory / name).unlink()


def extend_tail(before: Tail | None, piece: TailPiece) -> Tail:
    """The tail extended by a chunk; overlapping bytes count once, and a gap drops what was before it."""
    if before is None or piece.offset > before.end or piece.offset < before.offset:
        offset, data = piece.offset, piece.data
    else:
        offset, data = before.offset, before.data[: piece.offset - before.offset] + piece.data
    surplus = max(0, len(data) - TAIL_BYTES)
    return Tail(offset + surplus, data[surplus:], piece.is_final)


def _record(key: TailKey, tail: Tail) -> bytes:
    index, attempt, stream = key
    head = HEAD.pack(index, attempt, STREAMS.index(stream), tail.offset, len(tail.data))
    return head + tail.data


def _records(path: Path) -> Iterator[tuple[TailKey, Tail]]:
    """All complete records of a file; a crash may have torn the last one."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    at = 0
    while at + HEAD.size <= len(text):
        index, attempt, stream, offset, length = HEAD.unpack_from(text, at)
        at += HEAD.size + length
        if at > len(text) or stream >= len(STREAMS):
            return
        yield (index, attempt, STREAMS[stream]), Tail(offset, text[at - length : at])


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(data)
    # rename is atomic: a crash leaves the old file or the new one. No fsync: the node still has the output.
    beside.replace(path)
