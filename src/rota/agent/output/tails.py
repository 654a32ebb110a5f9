"""What attempts wrote last, read from their files while they live and once they have ended. [I/O]"""

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

BATCH_BYTES = 1 << 20  # of one message
LIVE_BYTES = 64 << 10  # of live attempts at one time: all nodes together must not flood the server
LIVE_SCANS = 1000  # attempts at one time
UNSENT = 100_000  # ends that wait for the server; of more the oldest are not told
INDEX_BYTES = 1 << 20
LIVE_SECONDS = 2.0  # between two looks at live attempts
COALESCE_SECONDS = 0.1  # that one who ended waits for others
FILES = (("stdout", "out", "out_bytes"), ("stderr", "err", "err_bytes"))

Name = tuple[JobId, int, int]


@dataclass
class _OutputIndex:
    """The index of a job, as far as it was read, and the live attempts it tells of."""

    old_bytes: int = 0  # what it held when this agent started: an earlier one told of most of that
    position: int = 0
    live: dict[tuple[int, int], AttemptStart] = field(default_factory=dict)


class _EndedOutput(NamedTuple):
    name: Name
    begun: AttemptStart
    end: Extent


class TailReader:
    """`is_known` says of an attempt whether its end has not been told yet."""

    def __init__(self, root: Path, is_known: Callable[[Name], bool]) -> None:
        self._logs = root / "logs"
        self._is_known = is_known
        self._indexes: dict[JobId, _OutputIndex] = {}
        self._old_bytes = _sizes(self._logs)
        self._ended: deque[_EndedOutput] = deque(maxlen=UNSENT)
        self._sent: dict[tuple[Name, str], int] = {}  # how far, of live attempts
        self._next_live: deque[Name] = deque()
        self._sending: list[_EndedOutput] = []
        self._touched: dict[JobId, None] = {}
        self._changed = asyncio.Event()

    def touch(self, jobs: Iterable[JobId]) -> None:
        """Something of them has started or ended."""
        self._touched.update(dict.fromkeys(jobs))
        self._changed.set()

    def reset(self) -> None:
        """Another server, or one that has forgotten: live attempts are told anew, and what it did not get."""
        self._sent.clear()
        self._ended.extendleft(reversed(self._sending))
        self._sending = []

    async def next(self) -> list[TailPiece]:
        """What there is to tell, soon after something has ended, and now and then of what lives."""
        if not self._ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LIVE_SECONDS):
                    await self._changed.wait()
                await asyncio.sleep(COALESCE_SECONDS)
        self._changed.clear()
        touched, self._touched = self._touched, {}
        await self._scan(touched)
        self._sending = []
        return self._ended_tails() or self._live_tails()

    async def _scan(self, jobs: Iterable[JobId]) -> None:
        """Read on in their indices."""
        for job in jobs:
            book = self._indexes.setdefault(job, _OutputIndex(self._old_bytes.pop(job, 0)))
            with contextlib.suppress(OSError):  # nothing of it has started, or all of it is deleted
                await self._read_index(job, book)
            if book.position and not book.live and not (self._logs / job).is_dir():
                del self._indexes[job]

    def _ended_tails(self) -> list[TailPiece]:
        """Of those that have ended, some; none when all were told."""
        pieces: list[TailPiece] = []
        with _Files(self._logs) as files:
            while self._ended and sum(len(piece.data) for piece in pieces) < BATCH_BYTES:
                one = self._ended.popleft()
                self._sending.append(one)
                pieces += files.pieces(one.name, one.begun, one.end, {})
        return pieces

    def _live_tails(self) -> list[TailPiece]:
        """What some of the live ones wrote since they were told of last; others have their turn next time."""
        if not self._next_live:
            self._next_live.extend((job, *at) for job, book in self._indexes.items() for at in book.live)
        pieces: list[TailPiece] = []
        left = LIVE_BYTES
        with _Files(self._logs) as files:
            for _ in range(min(LIVE_SCANS, len(self._next_live))):
                job, index, attempt = name = self._next_live.popleft()
                begun = self._indexes[job].live.get((index, attempt)) if job in self._indexes else None
                if begun is not None and left > 0:
                    news = list(files.pieces(name, begun, None, self._sent))
                    left -= sum(len(piece.data) for piece in news)
                    pieces += news
        for piece in pieces:
            self._sent[(piece.job, piece.task, piece.attempt), piece.stream] = piece.offset + len(piece.data)
        return pieces

    async def _read_index(self, job: JobId, book: _OutputIndex) -> None:
        with (self._logs / job / "index").open("rb") as file:
            file.seek(book.position)
            while lines := _whole(file.read(INDEX_BYTES)):
                self._enter(job, book, lines)
                book.position += len(lines)
                file.seek(book.position)
                await asyncio.sleep(0)

    def _enter(self, job: JobId, book: _OutputIndex, lines: bytes) -> None:
        for index, attempt, said in read_all(lines):
            name = (job, index, attempt)
            if book.position < book.old_bytes and not self._is_known(name):
                continue
            if isinstance(said, AttemptStart):
                book.live[index, attempt] = said
            elif (begun := book.live.pop((index, attempt), None)) is not None:
                for stream, _, _ in FILES:
                    self._sent.pop((name, stream), None)
                if begun.at != said:
                    self._ended.append(_EndedOutput(name, begun, said))


class _Files:
    """Segments, each opened once: attempts that ran one after the other share them."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._open: dict[str, int] = {}

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)

    def pieces(
        self, name: Name, begun: AttemptStart, end: Extent | None, told: dict[tuple[Name, str], int]
    ) -> Iterator[TailPiece]:
        for stream, ending, which in FILES:
            start: int = getattr(begun.at, which)
            try:
                fd = self._file(f"{name[0]}/{begun.segment}.{ending}")
                until = os.fstat(fd).st_size if end is None else getattr(end, which)
                since = max(start + told.get((name, stream), 0), until - TAIL_BYTES)
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
    """Of all indices there are."""
    found: dict[JobId, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(logs) as jobs:
        for job in jobs:
            with contextlib.suppress(OSError):
                found[JobId(job.name)] = os.stat(f"{job.path}/index").st_size
    return found


def _whole(some: bytes) -> bytes:
    return some[: some.rfind(b"\n") + 1]
