"""The last output of attempts, sent to the server while they run and once they have ended. [I/O]

The server keeps these tails so that they can be shown when the node is lost. They are best effort: the whole
output stays on the node. The keeper's index names the attempts (see `rota.keeper.output.segments`).
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rota.keeper.output.index import AttemptStart, Extent, read_all
from rota.model.ids import JobId
from rota.model.limits import TAIL_BYTES
from rota.model.messages import TailPiece

BATCH_BYTES = 1 << 20  # per message
LIVE_BYTES = 64 << 10  # of live attempts per message: all nodes together must not flood the server
LIVE_SCANS = 1000  # live attempts scanned per message
UNSENT = 100_000  # ended attempts that wait for the server; beyond that the oldest are dropped
INDEX_BYTES = 1 << 20
LIVE_SECONDS = 2.0  # between two scans of live attempts
COALESCE_SECONDS = 0.1  # how long an ended attempt waits for others to join its message
FILES = (("stdout", "out", "out_bytes"), ("stderr", "err", "err_bytes"))

Name = tuple[JobId, int, int]


@dataclass
class _OutputIndex:
    """A job's index as far as it was read, and the live attempts in it."""

    old_bytes: int = 0  # its size when this agent started: an earlier agent has sent most of that
    position: int = 0
    live: dict[tuple[int, int], AttemptStart] = field(default_factory=dict)


class _EndedOutput(NamedTuple):
    name: Name
    begun: AttemptStart
    end: Extent


class TailReader:
    """Follows the indexes of jobs. `is_known`: whether an attempt is live, or its end not acknowledged."""

    def __init__(self, root: Path, is_known: Callable[[Name], bool]) -> None:
        self._logs = root / "logs"
        self._is_known = is_known
        self._indexes: dict[JobId, _OutputIndex] = {}
        self._old_bytes = _sizes(self._logs)
        self._ended: deque[_EndedOutput] = deque(maxlen=UNSENT)
        self._sent: dict[tuple[Name, str], int] = {}  # bytes of live attempts sent so far, per stream
        self._next_live: deque[Name] = deque()
        self._sending: list[_EndedOutput] = []
        self._touched: dict[JobId, None] = {}
        self._changed = asyncio.Event()

    def touch(self, jobs: Iterable[JobId]) -> None:
        """Mark jobs whose attempts have started or ended: their indexes are read again."""
        self._touched.update(dict.fromkeys(jobs))
        self._changed.set()

    def reset(self) -> None:
        """Start over with a new connection: resend tails of live attempts, and what may not have arrived."""
        self._sent.clear()
        # At the front, so that the order in which the attempts ended is kept.
        self._ended.extendleft(reversed(self._sending))
        self._sending = []

    async def next(self) -> list[TailPiece]:
        """Wait for tails to send: soon after an attempt has ended, and every LIVE_SECONDS of live ones."""
        if not self._ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIVE_SECONDS):
                    await self._changed.wait()
                await asyncio.sleep(COALESCE_SECONDS)
        # Cleared before the scan: a job that is touched during it is scanned next time.
        self._changed.clear()
        touched, self._touched = self._touched, {}
        await self._scan(touched)
        # The previous message was answered; otherwise `reset` has taken these back.
        self._sending = []
        return self._ended_tails() or self._live_tails()

    async def _scan(self, jobs: Iterable[JobId]) -> None:
        """Read on in the indexes of these jobs."""
        for job in jobs:
            index = self._indexes.setdefault(job, _OutputIndex(self._old_bytes.pop(job, 0)))
            with contextlib.suppress(OSError):  # no attempt has started, or the job's logs are deleted
                await self._read_index(job, index)
            if index.position and not index.live and not (self._logs / job).is_dir():
                del self._indexes[job]

    def _ended_tails(self) -> list[TailPiece]:
        """Tails of ended attempts, up to BATCH_BYTES; empty when all were sent."""
        pieces: list[TailPiece] = []
        with _Files(self._logs) as files:
            while self._ended and sum(len(piece.data) for piece in pieces) < BATCH_BYTES:
                ended = self._ended.popleft()
                self._sending.append(ended)
                pieces += files.pieces(ended.name, ended.begun, ended.end, {})
        return pieces

    def _live_tails(self) -> list[TailPiece]:
        """New output of some live attempts, round robin within LIVE_BYTES and LIVE_SCANS."""
        if not self._next_live:
            self._next_live.extend((job, *at) for job, index in self._indexes.items() for at in index.live)
        pieces: list[TailPiece] = []
        left = LIVE_BYTES
        with _Files(self._logs) as files:
            for _ in range(min(LIVE_SCANS, len(self._next_live))):
                job, index, attempt = name = self._next_live.popleft()
                begun = self._indexes[job].live.get((index, attempt)) if job in self._indexes else None
                if begun is not None and left > 0:
                    new = list(files.pieces(name, begun, None, self._sent))
                    left -= sum(len(piece.data) for piece in new)
                    pieces += new
        for piece in pieces:
            self._sent[(piece.job, piece.task, piece.attempt), piece.stream] = piece.offset + len(piece.data)
        return pieces

    async def _read_index(self, job: JobId, index: _OutputIndex) -> None:
        with (self._logs / job / "index").open("rb") as file:
            file.seek(index.position)
            while lines := _complete_lines(file.read(INDEX_BYTES)):
                self._apply_lines(job, index, lines)
                index.position += len(lines)
                file.seek(index.position)
                # Long indexes are read in parts: heartbeats must not wait for them.
                await asyncio.sleep(0)

    def _apply_lines(self, job: JobId, index: _OutputIndex, lines: bytes) -> None:
        for task, attempt, entry in read_all(lines):
            name = (job, task, attempt)
            if index.position < index.old_bytes and not self._is_known(name):
                continue
            if isinstance(entry, AttemptStart):
                index.live[task, attempt] = entry
            elif (begun := index.live.pop((task, attempt), None)) is not None:
                for stream, _, _ in FILES:
                    self._sent.pop((name, stream), None)
                if begun.at != entry:
                    self._ended.append(_EndedOutput(name, begun, entry))


class _Files:
    """Segment files, each opened once per message: consecutive attempts share them."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._open: dict[str, int] = {}

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)

    def pieces(
        self, name: Name, begun: AttemptStart, end: Extent | None, sent: dict[tuple[Name, str], int]
    ) -> Iterator[TailPiece]:
        """The last TAIL_BYTES of each stream that are not in `sent`; `end` None: of a live attempt."""
        for stream, ending, which in FILES:
            start: int = getattr(begun.at, which)
            try:
                fd = self._file(f"{name[0]}/{begun.segment}.{ending}")
                until = os.fstat(fd).st_size if end is None else getattr(end, which)
                since = max(start + sent.get((name, stream), 0), until - TAIL_BYTES)
                data = os.pread(fd, until - since, since) if until > since else b""
            except OSError:  # deleted
                continue
            if data:
                yield TailPiece(*name, stream, since - start, data, end is not None)

    def _file(self, path: str) -> int:
        if path not in self._open:
            while len(self._open) >= 64:
                os.close(self._open.pop(next(islice(self._open, 1))))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._open[path] = os.open(self._logs / path, flags)
        return self._open[path]


def _sizes(logs: Path) -> dict[JobId, int]:
    """The sizes of all jobs' indexes."""
    found: dict[JobId, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(logs) as jobs:
        for job in jobs:
            with contextlib.suppress(OSError):
                found[JobId(job.name)] = os.stat(f"{job.path}/index").st_size
    return found


def _complete_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]
