"""Drives the real feed of a server in virtual time: whoever reads there is told what was committed."""

from collections.abc import Callable
from typing import Any

from rota.apiserver.admission.recovery import subscribe
from rota.apiserver.streams import event_cursor
from rota.apiserver.streams.event_cursor import (
    CommitEvents,
    CursorExpired,
    EventCursor,
    RecentEvents,
    SequencedEvent,
)
from rota.engine.loop import Decided
from rota.engine.reconciler import Command
from rota.model.errors import RotaError
from rota.model.plan import Instant, Plan
from rota.sim.medium import Answer, SimStore
from rota.sim.network import SimStream
from rota.sim.words import EventPageMessage, WatchEnded, WatchRequest, WatchStarted
from rota.sim.world import SimProcess
from rota.store import codec

EVENTS_IN_MEMORY = 16  # few, so that the store is asked, too
ROWS_AT_ONCE = 5
PACE_MS = 3  # between two pages to one reader
Ask = Callable[[str, Command, Callable[[Any], None], Callable[[RotaError], None]], None]


class _Reader:
    def __init__(self, stream: SimStream, position: EventCursor, who: str | None) -> None:
        self.stream = stream
        self.who = who
        self.position = position
        self.busy = False  # it is being told, or the store is being asked for it


class SimEventStream:
    def __init__(self, server: SimProcess, medium: SimStore, ask: Ask, revision: Callable[[], int]) -> None:
        self._revision = revision
        self._server = server
        self._medium = medium
        self._ask = ask
        self._feed = RecentEvents(EVENTS_IN_MEMORY)
        self._readers: dict[int, _Reader] = {}
        self.came: Callable[[str], None] = lambda _: None
        self.went: Callable[[str], None] = lambda _: None

    def start(self) -> None:
        self._feed = RecentEvents(EVENTS_IN_MEMORY)
        self._readers.clear()

    def end(self) -> None:
        for reader in list(self._readers.values()):
            reader.stream.die(self._server, politely=True)
        self._readers.clear()

    @property
    def revision(self) -> int:
        return self._revision()

    def on_commit(self, decided: Decided) -> None:
        """A commit."""
        self._feed.on_commit(CommitEvents(self.revision, decided.now.wall_ms, decided.events))
        self._serve_readers()

    def on_reload(self) -> None:
        """Everything was read again."""
        self._feed.on_reload(self.revision)
        self._serve_readers()

    def open(self, stream: SimStream, wanted: WatchRequest) -> None:
        stream.up.broke = lambda _: self._forget(stream)
        now = self._feed.latest_cursor(self.revision)
        if wanted.after is not None or wanted.name is None:
            self._begin(stream, wanted.after or now, wanted.who)
            return
        name = wanted.name

        def stand(view: Any, _: Instant) -> Plan:
            return subscribe(view.subscribers, name, now)

        def found(kept: Any) -> None:
            self._begin(stream, EventCursor(kept.revision, kept.index), wanted.who)

        self._ask("apiserver", stand, found, lambda error: stream.close(stream.up, str(error)))

    def _begin(self, stream: SimStream, position: EventCursor, who: str | None) -> None:
        try:
            event_cursor.check_cursor(position, self.revision)
        except CursorExpired:
            self._end(stream, position)
            return
        reader = self._readers[stream.number] = _Reader(stream, position, who)
        if who is not None:
            self.came(who)
        stream.send_to_node(WatchStarted(position))
        self._serve(reader)

    def _serve_readers(self) -> None:
        for reader in list(self._readers.values()):
            self._serve(reader)

    def _serve(self, reader: _Reader) -> None:
        if reader.busy or reader.stream.number not in self._readers:
            return
        found = self._feed.page_after(reader.position, ROWS_AT_ONCE)
        if found:
            self._tell(reader, found)
        elif found is None:
            reader.busy = True
            after, asked_at = event_cursor.revision_before(reader.position), self.revision
            self._medium.read_events(
                self._server, after, ROWS_AT_ONCE, lambda answer: self._resume(reader, asked_at, answer)
            )

    def _resume(self, reader: _Reader, asked_at: int, answer: Answer) -> None:
        reader.busy = False
        if not isinstance(answer, list):
            self._close(reader, "the store cannot be read")
            return
        rows = [CommitEvents(one.revision, *codec.decode_events(one.row)) for one in answer]
        try:
            found = event_cursor.resume_from_store(reader.position, rows)
        except CursorExpired:
            self._end(reader.stream, reader.position)
            return
        if found:
            self._tell(reader, found)
        elif asked_at != self.revision:  # something was committed meanwhile
            self._serve(reader)

    def _tell(self, reader: _Reader, found: list[SequencedEvent]) -> None:
        reader.position = found[-1].at
        reader.busy = True
        reader.stream.send_to_node(EventPageMessage(found))

        def go_on() -> None:
            reader.busy = False
            self._serve(reader)

        self._server.after(PACE_MS, go_on)

    def _end(self, stream: SimStream, at: EventCursor) -> None:
        self._forget(stream)
        stream.send_to_node(WatchEnded(at, self.revision))

    def _close(self, reader: _Reader, reason: str) -> None:
        self._forget(reader.stream)
        reader.stream.close(reader.stream.up, reason)

    def _forget(self, stream: SimStream) -> None:
        reader = self._readers.pop(stream.number, None)
        if reader is not None and reader.who is not None:
            self.went(reader.who)
