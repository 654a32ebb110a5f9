"""Where a reader of events stands + what was committed -> what it is told next, or that it is gone."""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rota.apiserver.admission import acknowledge
from rota.model.errors import BadField, Rejected
from rota.model.limits import EVENTS_IN_MEMORY
from rota.model.plan import Event, Plan
from rota.model.subscriber import Subscriber

ROWS_AT_ONCE = 500  # of a page
BEHIND_ALL = 2**31  # as an index: no commit has so many events


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

    def unpacked(self) -> Iterator[Happened]:
        for index, event in enumerate(self.events):
            yield Happened(Position(self.revision, index), self.wall_ms, event)


class Feed:
    """The recent events of one server; older ones are in its store."""

    def __init__(self, events_most: int = EVENTS_IN_MEMORY) -> None:
        self.rows: list[Row] = []
        self.floor: int | None = None  # every event of a revision above it is among the rows
        self._heard = 0
        self._held = 0  # events of all rows: of one there may be thousands
        self._events_most = events_most

    def hear(self, row: Row) -> None:
        """A commit, perhaps without any event."""
        if self.floor is None or row.revision != self._heard + 1:
            self.miss(row.revision - 1)
        self._heard = row.revision
        if row.events:
            self.rows.append(row)
            self._held += len(row.events)
        if self._held > 2 * self._events_most:
            self._drop_old()

    def miss(self, revision: int) -> None:
        """All was read again: up to that revision something may have been written that was never heard of."""
        if self.floor is None or revision != self._heard:
            self.rows.clear()
            self._held = 0
            self.floor = self._heard = revision

    def _drop_old(self) -> None:
        count = 0
        while self._held > self._events_most and count < len(self.rows):
            self._held -= len(self.rows[count].events)
            count += 1
        self.floor = self.rows[count - 1].revision
        del self.rows[:count]

    def after(self, position: Position, most: int) -> list[Happened] | None:
        """Some events right behind that position; []: there is nothing newer; None: the store has to tell."""
        if self.floor is None or position.revision <= self.floor:
            return None
        first = bisect.bisect_left(self.rows, position.revision, key=lambda row: row.revision)
        return _behind(position, self.rows[first : first + most])

    def now(self, revision: int) -> Position:
        """Behind everything that was told up to that revision: where the last event is, if that is known."""
        if not self.rows:
            return Position(revision, BEHIND_ALL)
        return Position(self.rows[-1].revision, len(self.rows[-1].events) - 1)


def stored_after(position: Position) -> int:
    """The revision above which the store's rows are needed: that of the position itself is the first."""
    return max(0, position.revision - 1)


def resume(position: Position, stored: Sequence[Row]) -> list[Happened]:
    """The same from the store's rows.

    A position that was given out is that of a row: where that is gone, so may be others behind it.
    """
    kept = bool(stored) and stored[0].revision == position.revision
    if not kept and position != BEGINNING and position.index != BEHIND_ALL:
        raise Gone("what followed that sequence number is no longer kept", hint="list again")
    return _behind(position, stored)


def standing(known: Mapping[str, Subscriber], name: str, now: Position, owner: str = "") -> Plan:
    """Where a subscriber goes on: behind what it acknowledged; from now on the first time it is heard of.

    Who no longer leads may know an older place only, and must not answer.
    """
    before = known.get(name)
    if before is not None and before.belongs_to(owner):
        return Plan(answer=before, fenced=True)
    return acknowledge(known, name, now.revision, now.index, owner)


def check(position: Position, revision: int) -> None:
    """Whether a server that has come as far as this revision can have given it out."""
    if position.revision > revision:
        raise Gone("that sequence number is yet to come", hint="list again, without since")


def _behind(position: Position, rows: Sequence[Row]) -> list[Happened]:
    return [happened for row in rows for happened in row.unpacked() if happened.at > position]
