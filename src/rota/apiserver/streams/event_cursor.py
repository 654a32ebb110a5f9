"""Where a reader of events stands + what was committed -> what it is told next, or that it is gone."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rota.model.errors import BadField, Rejected
from rota.model.limits import EVENTS_IN_MEMORY
from rota.model.plan import EventRecord

ROWS_AT_ONCE = 500  # of a page
AFTER_LAST_EVENT = 2**31  # as an index: no commit has so many events


class CursorExpired(Rejected):
    """Too far behind: the events asked for are no longer, or not yet, there."""

    code = "gone"


@dataclass(frozen=True, slots=True, order=True)
class EventCursor:
    """Of an event: the commit it was part of, and its place therein."""

    revision: int
    index: int

    def __str__(self) -> str:
        return f"{self.revision}.{self.index}"

    @classmethod
    def parse(cls, field: str, text: str) -> "EventCursor":
        revision, _, index = text.partition(".")
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (revision, index or "0")):
            raise BadField(field, f"'{text[:40]}' is not a sequence number", "write one as it came: 123.4")
        return cls(int(revision), int(index or "0"))


BEGINNING = EventCursor(0, 0)


class SequencedEvent(NamedTuple):
    at: EventCursor
    wall_ms: int
    event: EventRecord


class CommitEvents(NamedTuple):
    """All events of one commit."""

    revision: int
    wall_ms: int
    events: Sequence[EventRecord]

    def sequenced(self) -> Iterator[SequencedEvent]:
        for index, event in enumerate(self.events):
            yield SequencedEvent(EventCursor(self.revision, index), self.wall_ms, event)


class RecentEvents:
    """The recent events of one server; older ones are in its store."""

    def __init__(self, events_most: int = EVENTS_IN_MEMORY) -> None:
        self.rows: list[CommitEvents] = []
        self.floor: int | None = None  # every event of a revision above it is among the rows
        self._last_revision = 0
        self._held = 0  # events of all rows: of one there may be thousands
        self._events_most = events_most

    def on_commit(self, row: CommitEvents) -> None:
        """A commit, perhaps without any event."""
        if self.floor is None or row.revision != self._last_revision + 1:
            self.on_reload(row.revision - 1)
        self._last_revision = row.revision
        if row.events:
            self.rows.append(row)
            self._held += len(row.events)
        if self._held > 2 * self._events_most:
            self._drop_old()

    def on_reload(self, revision: int) -> None:
        """All was read again: up to that revision something may have been written that was never heard of."""
        if self.floor is None or revision != self._last_revision:
            self.rows.clear()
            self._held = 0
            self.floor = self._last_revision = revision

    def _drop_old(self) -> None:
        count = 0
        while self._held > self._events_most and count < len(self.rows):
            self._held -= len(self.rows[count].events)
            count += 1
        self.floor = self.rows[count - 1].revision
        del self.rows[:count]

    def page_after(self, position: EventCursor, most: int) -> list[SequencedEvent] | None:
        """Some events right behind that position; []: there is nothing newer; None: the store has to tell."""
        if self.floor is None or position.revision <= self.floor:
            return None
        first = bisect.bisect_left(self.rows, position.revision, key=lambda row: row.revision)
        return _events_after(position, self.rows[first : first + most])

    def latest_cursor(self, revision: int) -> EventCursor:
        """Behind everything that was told up to that revision: where the last event is, if that is known."""
        if not self.rows:
            return EventCursor(revision, AFTER_LAST_EVENT)
        return EventCursor(self.rows[-1].revision, len(self.rows[-1].events) - 1)


def revision_before(position: EventCursor) -> int:
    """The revision above which the store's rows are needed: that of the position itself is the first."""
    return max(0, position.revision - 1)


def resume_from_store(position: EventCursor, stored: Sequence[CommitEvents]) -> list[SequencedEvent]:
    """The same from the store's rows.

    A position that was given out is that of a row: where that is gone, so may be others behind it.
    """
    kept = bool(stored) and stored[0].revision == position.revision
    if not kept and position != BEGINNING and position.index != AFTER_LAST_EVENT:
        raise CursorExpired("what followed that sequence number is no longer kept", hint="list again")
    return _events_after(position, stored)


def check_cursor(position: EventCursor, revision: int) -> None:
    """Whether a server that has come as far as this revision can have given it out."""
    if position.revision > revision:
        raise CursorExpired("that sequence number is yet to come", hint="list again, without since")


def _events_after(position: EventCursor, rows: Sequence[CommitEvents]) -> list[SequencedEvent]:
    return [happened for row in rows for happened in row.sequenced() if happened.at > position]
