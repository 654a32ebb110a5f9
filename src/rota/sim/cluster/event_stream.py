"""Drives the production event cursors in virtual time: one server's streams to its subscribers."""

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
from rota.model.subscriber import Subscriber
from rota.sim.cluster.messages import EventPageMessage, WatchEnded, WatchRequest, WatchStarted
from rota.sim.world.network import SimStream
from rota.sim.world.store import Answer, SimStore
from rota.sim.world.virtual_time import SimProcess
from rota.store import codec

EVENTS_IN_MEMORY = 16  # few, so that older events are read from the store
ROWS_AT_ONCE = 5
PACE_MS = 3  # between two pages to one subscriber
Ask = Callable[[str, Command[object], Callable[[Any], None], Callable[[RotaError], None]], None]


class _Reader:
    def __init__(self, stream: SimStream, position: EventCursor, subscriber: str | None) -> None:
        self.stream = stream
        self.subscriber = subscriber
        self.position = position
        self.busy = False  # a page is being sent, or read from the store


class SimEventStream:
    """All event streams of one server: pages from memory, older ones from the store."""

    def __init__(self, server: SimProcess, store: SimStore, ask: Ask, revision: Callable[[], int]) -> None:
        self._revision = revision
        self._server = server
        self._store = store
        self._ask = ask
        self._feed = RecentEvents(EVENTS_IN_MEMORY)
        self._readers: dict[int, _Reader] = {}
        self.on_subscribed: Callable[[str], None] = lambda _: None
        self.on_unsubscribed: Callable[[str], None] = lambda _: None

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
        """Remember the events of a commit and serve every subscriber."""
        self._feed.on_commit(CommitEvents(self.revision, decided.now.wall_ms, decided.events))
        self._serve_readers()

    def on_reload(self) -> None:
        """Drop what is in memory after a reload: a commit may have gone unseen."""
        self._feed.on_reload(self.revision)
        self._serve_readers()

    def open(self, stream: SimStream, request: WatchRequest) -> None:
        stream.up.on_break = lambda _: self._forget(stream)
        # Before the command that stores it: an event committed in between is after this cursor, and is sent.
        now = self._feed.latest_cursor(self.revision)
        if request.after is not None or request.name is None:
            self._open(stream, request.after or now, request.subscriber)
            return
        name = request.name

        def command(view: Any, _: Instant) -> Plan[Subscriber]:
            return subscribe(view.subscribers, name, now)

        def found(stored: Any) -> None:
            self._open(stream, EventCursor(stored.revision, stored.index), request.subscriber)

        self._ask("apiserver", command, found, lambda error: stream.close(stream.up, str(error)))

    def _open(self, stream: SimStream, position: EventCursor, subscriber: str | None) -> None:
        try:
            event_cursor.check_cursor(position, self.revision)
        except CursorExpired:
            self._expire(stream, position)
            return
        reader = self._readers[stream.number] = _Reader(stream, position, subscriber)
        if subscriber is not None:
            self.on_subscribed(subscriber)
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
            self._send_page(reader, found)
        elif found is None:
            # One page at a time per reader: the pace of a slow reader bounds what is in flight to it.
            reader.busy = True
            # The revision is remembered: a commit during the read may not be in its answer.
            after, asked_at_revision = event_cursor.revision_before(reader.position), self.revision
            self._store.read_events(
                self._server,
                after,
                ROWS_AT_ONCE,
                lambda answer: self._resume(reader, asked_at_revision, answer),
            )

    def _resume(self, reader: _Reader, asked_at_revision: int, answer: Answer) -> None:
        reader.busy = False
        if not isinstance(answer, list):
            self._close(reader, "the store cannot be read")
            return
        rows = [CommitEvents(row.revision, *codec.decode_events(row.row)) for row in answer]
        try:
            found = event_cursor.resume_from_store(reader.position, rows)
        except CursorExpired:
            self._expire(reader.stream, reader.position)
            return
        if found:
            self._send_page(reader, found)
        elif asked_at_revision != self.revision:  # a commit came in between
            self._serve(reader)

    def _send_page(self, reader: _Reader, found: list[SequencedEvent]) -> None:
        reader.position = found[-1].at
        reader.busy = True
        reader.stream.send_to_node(EventPageMessage(found))

        def continue_() -> None:
            reader.busy = False
            self._serve(reader)

        self._server.after(PACE_MS, continue_)

    def _expire(self, stream: SimStream, at: EventCursor) -> None:
        self._forget(stream)
        stream.send_to_node(WatchEnded(at, self.revision))

    def _close(self, reader: _Reader, reason: str) -> None:
        self._forget(reader.stream)
        reader.stream.close(reader.stream.up, reason)

    def _forget(self, stream: SimStream) -> None:
        reader = self._readers.pop(stream.number, None)
        if reader is not None and reader.subscriber is not None:
            self.on_unsubscribed(reader.subscriber)
