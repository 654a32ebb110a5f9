"""Subscribers to the event stream: they dial a server, receive pages, and resume by cursor or by name."""

from typing import Any, Protocol

from rota.apiserver.admission.recovery import acknowledge_events
from rota.apiserver.streams.event_cursor import EventCursor, SequencedEvent
from rota.model.plan import Instant, Plan
from rota.sim.cluster.messages import EventPageMessage, WatchEnded, WatchRequest, WatchStarted
from rota.sim.cluster.server import SimServer
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.network import SimNetwork, SimStream
from rota.sim.world.store import NAME, SimStore, StoreTrouble
from rota.sim.world.virtual_time import SimClock, SimProcess

TIMEOUT_MS = 5_000  # for the first answer
BACKOFF_MS = (200, 1_500)  # before it dials again
PAGES = 5  # between two acknowledgements


class EventObserver(Protocol):
    """Checks what each subscriber is sent against what was committed."""

    def started(self, subscriber: str, at: EventCursor, oldest: int) -> None: ...

    def resumed(self, subscriber: str, at: EventCursor, last: EventCursor | None) -> None: ...

    def received(self, subscriber: str, happened: SequencedEvent) -> None: ...

    def acknowledged(self, subscriber: str, at: EventCursor) -> None: ...

    def check(self, subscriber: str, well_ms: int) -> None: ...


class SimSubscriber(SimProcess):
    """A subscriber that keeps its cursor; one with a name loses it on death and resumes by name."""

    def __init__(
        self,
        network: SimNetwork,
        store: SimStore,
        servers: list[SimServer],
        events: EventObserver,
        name: str,
    ) -> None:
        super().__init__(network.world, f"subscriber {name}", SimClock(network.world))
        self.subscriber_name: str | None = None
        self.loss = 0.0  # probability that the end of a page is lost with the stream
        self.repeats = 0.0  # probability that a page arrives twice
        self._events = events
        self.network = network
        self._store = store
        self.servers = servers
        self.rng = network.world.rng(self.name)
        self._last: EventCursor | None = None
        self._is_behind = False  # its cursor has expired: it asks for events from now on
        self._stream: SimStream | None = None
        self._is_started = False
        self._healthy_since_ms: int | None = None
        self._calls = 0
        self._pages = 0

    def start(self) -> None:
        self.start_life()
        self._stream = None
        # A named subscriber keeps its position on the server: after its death it resumes by name alone.
        if self.subscriber_name is not None:
            self._last = None
        self._call()

    def kill(self) -> None:
        stream = self._stream
        self.end()
        if stream is not None:
            stream.die(self, politely=True)

    def check(self) -> None:
        """Check that it has received what it could have; called once a second."""
        now_ms = self.world.now_ms
        if not self._is_healthy():
            self._healthy_since_ms = None
        elif self._healthy_since_ms is None:
            self._healthy_since_ms = now_ms
        else:
            self._events.check(self.name, now_ms - self._healthy_since_ms)

    def _is_healthy(self) -> bool:
        stream = self._stream
        if stream is None or not self._is_started or not self.runs or self.loss:
            return False
        server = stream.server.name
        ways = ((self.name, server), (server, self.name), (server, NAME), (NAME, server))
        reaches = all(self.network.passes(*way) for way in ways)
        return (
            stream.server.runs and stream.up.connected and reaches and self._store.trouble == StoreTrouble()
        )

    # ---- dialling

    def _call(self) -> None:
        self._calls += 1
        server = self.servers[self._calls % len(self.servers)]
        self._is_started = False
        self._stream = stream = self.network.open(self, server)
        stream.down.on_message = lambda message: self._on_message(stream, message)
        stream.down.on_break = lambda _: self._lose(stream)
        # An expired position must not be resumed from again: it would expire again at every call.
        by_name = None if self._last or self._is_behind else self.subscriber_name
        request = WatchRequest(self._last, by_name, self.subscriber_name)
        self.world.after(self.network.delay_ms(), lambda: self._dial(stream, server, request))
        self.after(TIMEOUT_MS, lambda: None if self._is_started else self._disconnect(stream))

    def _dial(self, stream: SimStream, server: SimServer, request: WatchRequest) -> None:
        if stream.up.connected and self.network.passes(self.name, server.name):
            server.do(stream.up.life, lambda: server.watch(stream, request))
        else:
            stream.close(stream.up, "no answer")
            stream.check()

    def _disconnect(self, stream: SimStream) -> None:
        if stream is self._stream:
            stream.close(stream.down, "the subscriber disconnects")
            self._lose(stream)

    def _lose(self, stream: SimStream) -> None:
        if stream is self._stream:
            self._stream = None
            self.after(self.rng.uniform(*BACKOFF_MS), lambda: None if self._stream else self._call())

    # ---- receiving

    def _on_message(self, stream: SimStream, message: Any) -> None:
        if stream is not self._stream or not isinstance(
            message, WatchStarted | WatchEnded | EventPageMessage
        ):
            return
        match message:
            case WatchStarted():
                self._on_started(message.at)
            case WatchEnded():
                self._start_over(stream, message)
            case EventPageMessage() if self.rng.random() < self.loss:
                self.world.count("subscriber: lost the end of a page")
                self._on_page(EventPageMessage(message.events[: self.rng.randrange(len(message.events))]))
                self._disconnect(stream)
            case EventPageMessage():
                self._on_page(message)
                if self.rng.random() < self.repeats:
                    self.world.count("subscriber: received a page twice")
                    self._on_page(message, is_repeated=True)
                self._acknowledge_sometimes(stream)

    def _on_started(self, at: EventCursor) -> None:
        if not self._is_behind:
            self._events.resumed(self.name, at, self._last)
        rows = self._store.events
        self._events.started(self.name, at, rows[0][1].revision if rows else self._store.revision + 1)
        self._is_started, self._is_behind = True, False
        self._healthy_since_ms = None

    def _on_page(self, page: EventPageMessage, *, is_repeated: bool = False) -> None:
        for happened in page.events:
            if self._last is None or happened.at > self._last:
                self._events.received(self.name, happened)
                self._last = happened.at
                self.act(happened)
            elif not is_repeated:
                raise InvariantBroken(f"{self.name} was sent {happened.at} after {self._last}")

    def _start_over(self, stream: SimStream, message: WatchEnded) -> None:
        """Its cursor has expired: missed events never arrive, so it resumes from now."""
        self.world.count("subscriber: was too far behind")
        at = message.at
        is_row = any(row.revision == at.revision for _, row in self._store.events)
        if is_row and at.revision <= message.revision:
            raise InvariantBroken(f"{self.name} is told that {at} has expired, which is still stored")
        self._last, self._is_behind = None, True
        self._disconnect(stream)

    def act(self, happened: SequencedEvent) -> None:
        """React to an event; a plain subscriber does nothing."""

    # ---- acknowledging

    def _acknowledge_sometimes(self, stream: SimStream) -> None:
        self._pages += 1
        if self.subscriber_name is None or self._last is None or self._pages % PAGES:
            return
        at, name, server = self._last, self.subscriber_name, stream.server
        assert isinstance(server, SimServer)

        def command(view: Any, _: Instant) -> Plan[object]:
            return acknowledge_events(view.subscribers, name, at.revision, at.index)

        def answered(_: Any) -> None:
            self._events.acknowledged(self.name, at)

        self.network.call(
            self.name, server, lambda: server.ask("apiserver", command, answered, lambda _: None)
        )
