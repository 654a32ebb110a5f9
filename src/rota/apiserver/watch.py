"""Changes to whoever waits: events by sequence number, and a wake-up per job. [I/O]

Readers pull: nothing is queued for them, so a slow one costs nothing and delays nobody.
"""

import asyncio
import bisect
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from rota.engine.run import Committed, Engine
from rota.model.errors import BadField, Rejected
from rota.model.ids import JobId
from rota.model.limits import EVENTS_IN_MEMORY
from rota.model.plan import Event
from rota.store import codec
from rota.store.protocol import EventRow

UPDATES_PER_SECOND = 20  # of one job to one follower
UPDATES_AT_ONCE = 8  # a short job passes through its states without any delay
ROWS_AT_ONCE = 500  # read from the store in one go
STORED_AT_ONCE = 5000  # the same, to find the newest ones
KEEP_ALIVE_SECONDS = 10.0
_BEHIND_ALL = 2**31  # as an index: no commit has so many events
_JOB_RECORDS = ("job", "task", "attempt", "status")


class Gone(Rejected):
    """Too far behind: the events asked for are no longer, or not yet, there."""

    code = "gone"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Of an event: the commit it was part of, and its place therein."""

    revision: int
    index: int

    def __str__(self) -> str:
        return f"{self.revision}.{self.index}"

    @classmethod
    def parse(cls, field: str, text: str) -> "Position":
        revision, _, index = text.partition(".")
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (revision, index or "0")):
            raise BadField(field, f"'{text[:40]}' is not a sequence number", "write one as it came: 123.4")
        return cls(int(revision), int(index or "0"))


BEGINNING = Position(0, 0)


class Happened(NamedTuple):
    at: Position
    wall_ms: int
    event: Event


class Row(NamedTuple):
    """All events of one commit."""

    revision: int
    wall_ms: int
    events: Sequence[Event]


class JobNews:
    """Whether a job has changed since its follower last looked."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self._credit = float(UPDATES_AT_ONCE)
        self._counted_at = asyncio.get_running_loop().time()

    async def wait(self) -> bool:
        """Until there is news, at most so many times a second but for the end; False: none for a while."""
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await self.changed.wait()
        except TimeoutError:
            return False
        await self._pause()
        self.changed.clear()
        return True

    async def _pause(self) -> None:
        now = asyncio.get_running_loop().time()
        self._credit = min(UPDATES_AT_ONCE, self._credit + (now - self._counted_at) * UPDATES_PER_SECOND)
        self._counted_at = now
        self._credit -= 1
        if self._credit < 0:
            try:
                async with asyncio.timeout(-self._credit / UPDATES_PER_SECOND):
                    await self.ended.wait()
            except TimeoutError:
                pass


class Changes:
    """Hears every commit; keeps the recent events in memory, and takes older ones from the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows: list[Row] = []
        self._floor: int | None = None  # every event of a revision above it is in memory
        self._heard = 0
        self._news = asyncio.Event()
        self._followers: dict[JobId, list[JobNews]] = {}
        engine.listen(self._hear)

    async def events_after(self, position: Position) -> AsyncGenerator[list[Happened], None]:
        """What happened since, each once and in order, then as it happens; [] is a mere sign of life."""
        while True:
            news = self._news  # taken before looking, so that nothing can come between
            found = await self.page_after(position)
            if found:
                yield found
                position = found[-1].at
                continue
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await news.wait()
            except TimeoutError:
                yield []

    async def page_after(self, position: Position) -> list[Happened]:
        """Some events right behind that position; none: there is nothing newer."""
        if self._floor is not None and position.revision > self._floor:
            first = bisect.bisect_left(self._rows, position.revision, key=lambda row: row.revision)
            rows = self._rows[first : first + ROWS_AT_ONCE]
        else:
            rows = await self._stored(position)
        return [happened for row in rows for happened in _unpacked(row) if happened.at > position]

    async def newest(self, most: int, fits: Callable[[Happened], bool]) -> list[Happened]:
        """The last that fit among recent events, oldest first."""
        floor = self._engine.revision if self._floor is None else self._floor
        stored: list[Row] = []
        if len(self._rows) < STORED_AT_ONCE:
            older = await self._engine.store.events(max(0, floor - STORED_AT_ONCE), STORED_AT_ONCE)
            stored = [_decoded(row) for row in older if row.revision <= floor]
        found: list[Happened] = []
        for row in (*reversed(self._rows), *reversed(stored)):
            found += filter(fits, reversed(list(_unpacked(row))))
            if len(found) >= most:
                break
        return found[most - 1 :: -1] if len(found) > most else found[::-1]

    def now(self) -> Position:
        """Behind everything that was told so far; never given out."""
        return Position(self._engine.revision, _BEHIND_ALL)

    def check(self, position: Position) -> None:
        if position.revision > self._engine.revision:
            raise Gone("that sequence number is yet to come", hint="list again, without since")

    @contextmanager
    def following(self, job: JobId) -> Iterator[JobNews]:
        news = JobNews()
        self._followers.setdefault(job, []).append(news)
        try:
            yield news
        finally:
            self._followers[job].remove(news)
            if not self._followers[job]:
                del self._followers[job]

    def _hear(self, committed: Committed) -> None:
        self._keep(committed)
        if self._followers:
            self._wake_followers(committed)

    def _keep(self, committed: Committed) -> None:
        if self._floor is None or committed.revision != self._heard + 1:
            # After a commit whose fate was unknown there may be a row that was never heard of.
            self._rows.clear()
            self._floor = committed.revision - 1
        self._heard = committed.revision
        if not committed.events:
            return
        self._rows.append(Row(committed.revision, committed.wall_ms, committed.events))
        if len(self._rows) > 2 * EVENTS_IN_MEMORY:
            self._floor = self._rows[EVENTS_IN_MEMORY - 1].revision
            del self._rows[:EVENTS_IN_MEMORY]
        self._news.set()
        self._news = asyncio.Event()

    def _wake_followers(self, committed: Committed) -> None:
        touched: dict[str, None] = {}
        for key in (*committed.decided.puts, *committed.decided.deletes):
            head, name, *_ = key.split("/", 2)
            if head in _JOB_RECORDS:
                touched[name] = None
        for name in touched:
            job = JobId(name)
            for news in self._followers.get(job, ()):
                entry = self._engine.mirror.jobs.get(job)
                news.changed.set()
                if entry is None or (entry.status is not None and entry.status.ended):
                    news.ended.set()

    async def _stored(self, position: Position) -> list[Row]:
        # A position given out is that of a row: where that is gone, so may be others behind it.
        stored = await self._engine.store.events(max(0, position.revision - 1), ROWS_AT_ONCE)
        kept = bool(stored) and stored[0].revision == position.revision
        if not kept and position != BEGINNING and position.index != _BEHIND_ALL:
            raise Gone("what followed that sequence number is no longer kept", hint="list again")
        return [_decoded(row) for row in stored]


def _decoded(row: EventRow) -> Row:
    wall_ms, events = codec.decode_events(row.row)
    return Row(row.revision, wall_ms, events)


def _unpacked(row: Row) -> Iterator[Happened]:
    for index, event in enumerate(row.events):
        yield Happened(Position(row.revision, index), row.wall_ms, event)
