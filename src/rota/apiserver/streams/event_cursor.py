"""A reader's cursor + the committed events -> the events after it, or that the cursor has expired.

Events have no numbers of their own: a cursor is the revision of a commit and an index among its events, so
that it stays valid over restarts and on every server.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rota.model.errors import BadField, Rejected
from rota.model.limits import EVENTS_IN_MEMORY
from rota.model.plan import EventRecord

ROWS_AT_ONCE = 500  # commits in a page
AFTER_LAST_EVENT = 2**31  # an index behind all events of a commit


class CursorExpired(Rejected):
    """The events after a cursor are no longer stored, or the cursor is from the future."""

    code = "gone"


@dataclass(frozen=True, slots=True, order=True)
class EventCursor:
    """The position of an event: the revision of its commit, and its index among the commit's events."""

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
    """An event with its cursor and the wall-clock time of its commit."""

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
    """The recent events of one server, in memory; older ones are in its store.

    Invariant: every event of a revision above `floor` is among the rows, so that the store has to be read
    only for cursors at or below it.
    """

    def __init__(self, events_max: int = EVENTS_IN_MEMORY) -> None:
        self.rows: list[CommitEvents] = []
        self.floor: int | None = None
        self._last_revision = 0
        self._count = 0  # events of all rows: one row may have thousands
        self._events_max = events_max

    def on_commit(self, row: CommitEvents) -> None:
        """Add a commit, which may have no events."""
        # A gap: commits were missed. Dropping the rows keeps the invariant; the store has the missed events.
        if self.floor is None or row.revision != self._last_revision + 1:
            self.on_reload(row.revision - 1)
        self._last_revision = row.revision
        if row.events:
            self.rows.append(row)
            self._count += len(row.events)
        # In bulk, at twice the bound: the cost of dropping, spread over all commits, is constant.
        if self._count > 2 * self._events_max:
            self._drop_old()

    def on_reload(self, revision: int) -> None:
        """Start again after a full reload at a revision: commits before it may have been missed."""
        if self.floor is None or revision != self._last_revision:
            self.rows.clear()
            self._count = 0
            self.floor = self._last_revision = revision

    def _drop_old(self) -> None:
        dropped = 0
        while self._count > self._events_max and dropped < len(self.rows):
            self._count -= len(self.rows[dropped].events)
            dropped += 1
        # The floor is the last dropped revision: a cursor at or below it has to read the
        # store, or it would miss events.
        self.floor = self.rows[dropped - 1].revision
        del self.rows[:dropped]

    def page_after(self, position: EventCursor, most: int) -> list[SequencedEvent] | None:
        """The next events after the cursor; []: there are none yet; None: they are only in the store."""
        if self.floor is None or position.revision <= self.floor:
            return None
        first = bisect.bisect_left(self.rows, position.revision, key=lambda row: row.revision)
        return _events_after(position, self.rows[first : first + most])

    def latest_cursor(self, revision: int) -> EventCursor:
        """A cursor after all events up to that revision: that of the last event, if it is in memory."""
        # No row to point at: an index behind all events of the revision, which
        # `resume_from_store` accepts without a row.
        if not self.rows:
            return EventCursor(revision, AFTER_LAST_EVENT)
        return EventCursor(self.rows[-1].revision, len(self.rows[-1].events) - 1)


def revision_before(position: EventCursor) -> int:
    """The revision after which rows of the store are needed: the cursor's own row has to be the first."""
    return max(0, position.revision - 1)


def resume_from_store(position: EventCursor, stored: Sequence[CommitEvents]) -> list[SequencedEvent]:
    """The events after the cursor, from rows of the store.

    Every cursor that was given out belongs to a row. If retention has removed that row, it may have removed
    rows after it as well: raises CursorExpired instead of leaving out events silently.
    """
    is_stored = bool(stored) and stored[0].revision == position.revision
    if not is_stored and position != BEGINNING and position.index != AFTER_LAST_EVENT:
        raise CursorExpired("the events after that sequence number are no longer stored", hint="list again")
    return _events_after(position, stored)


def check_cursor(position: EventCursor, revision: int) -> None:
    """Raise CursorExpired if a server at this revision cannot have given out the cursor."""
    # From another store, or from before a restore. Waiting for that revision would
    # leave out all events until then.
    if position.revision > revision:
        raise CursorExpired("that sequence number is in the future", hint="list again, without since")


def _events_after(position: EventCursor, rows: Sequence[CommitEvents]) -> list[SequencedEvent]:
    return [happened for row in rows for happened in row.sequenced() if happened.at > position]
