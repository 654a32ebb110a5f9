"""Who watches events: calls a server, hears pages, resumes by the last sequence or by its name."""

from typing import Any

from rota.apiserver.admission.recovery import acknowledge_events
from rota.apiserver.streams.event_cursor import EventCursor, SequencedEvent
from rota.model.plan import Instant, Plan
from rota.sim.broken import InvariantBroken
from rota.sim.events import EventChecks
from rota.sim.medium import NAME, SimStore, StoreTrouble
from rota.sim.network import SimNetwork, SimStream
from rota.sim.server import SimServer
from rota.sim.words import EventPageMessage, WatchEnded, WatchRequest, WatchStarted
from rota.sim.world import SimClock, SimProcess

PATIENCE_MS = 5_000  # for a server to begin
PAUSE_MS = (200, 1_500)  # before it calls again
PAGES = 5  # after which it acknowledges


class SimSubscriber(SimProcess):
    """Remembers the last sequence; with a name it forgets that when it dies, and the server remembers it."""

    def __init__(
        self, network: SimNetwork, medium: SimStore, servers: list[SimServer], events: EventChecks, name: str
    ) -> None:
        super().__init__(network.world, f"subscriber {name}", SimClock(network.world))
        self.known_as: str | None = None
        self.loss = 0.0  # how often the rest of a page is lost, and the stream with it
        self.repeats = 0.0  # how often a page comes twice
        self._events = events
        self.network = network
        self._medium = medium
        self.servers = servers
        self.luck = network.world.luck(self.name)
        self._last: EventCursor | None = None
        self._is_behind = False  # it was told so, and asks for what comes from now on
        self._stream: SimStream | None = None
        self._is_told = False
        self._well_since_ms: int | None = None
        self._calls = 0
        self._pages = 0

    def start(self) -> None:
        self.start_life()
        self._stream = None
        if self.known_as is not None:
            self._last = None
        self._call()

    def kill(self) -> None:
        stream = self._stream
        self.end()
        if stream is not None:
            stream.die(self, politely=True)

    def check(self) -> None:
        """Once a second: what it could have been told it was."""
        now_ms = self.world.now_ms
        if not self._is_well():
            self._well_since_ms = None
        elif self._well_since_ms is None:
            self._well_since_ms = now_ms
        else:
            self._events.check(self.name, now_ms - self._well_since_ms)

    def _is_well(self) -> bool:
        stream = self._stream
        if stream is None or not self._is_told or not self.runs or self.loss:
            return False
        server = stream.server.name
        ways = ((self.name, server), (server, self.name), (server, NAME), (NAME, server))
        reaches = all(self.network.passes(*way) for way in ways)
        return stream.server.runs and stream.up.there and reaches and self._medium.trouble == StoreTrouble()

    # ---- calling

    def _call(self) -> None:
        self._calls += 1
        server = self.servers[self._calls % len(self.servers)]
        self._is_told = False
        self._stream = stream = self.network.open(self, server)
        stream.down.hear = lambda word: self._on_message(stream, word)
        stream.down.broke = lambda _: self._lose(stream)
        by_name = None if self._last or self._is_behind else self.known_as
        wanted = WatchRequest(self._last, by_name, self.known_as)
        self.world.after(self.network.delay_ms(), lambda: self._dial(stream, server, wanted))
        self.after(PATIENCE_MS, lambda: None if self._is_told else self._disconnect(stream))

    def _dial(self, stream: SimStream, server: SimServer, wanted: WatchRequest) -> None:
        if stream.up.there and self.network.passes(self.name, server.name):
            server.do(stream.up.life, lambda: server.watch(stream, wanted))
        else:
            stream.close(stream.up, "nobody answers")
            stream.check()

    def _disconnect(self, stream: SimStream) -> None:
        if stream is self._stream:
            stream.close(stream.down, "it hangs up")
            self._lose(stream)

    def _lose(self, stream: SimStream) -> None:
        if stream is self._stream:
            self._stream = None
            self.after(self.luck.uniform(*PAUSE_MS), lambda: None if self._stream else self._call())

    # ---- hearing

    def _on_message(self, stream: SimStream, word: Any) -> None:
        if stream is not self._stream or not isinstance(word, WatchStarted | WatchEnded | EventPageMessage):
            return
        match word:
            case WatchStarted():
                self._begin(word.at)
            case WatchEnded():
                self._start_over(stream, word)
            case EventPageMessage() if self.luck.random() < self.loss:
                self.world.count("subscriber: lost the rest of a page")
                self._on_page(EventPageMessage(word.events[: self.luck.randrange(len(word.events))]))
                self._disconnect(stream)
            case EventPageMessage():
                self._on_page(word)
                if self.luck.random() < self.repeats:
                    self.world.count("subscriber: heard a page twice")
                    self._on_page(word, is_repeated=True)
                self._acknowledge_now_and_then(stream)

    def _begin(self, at: EventCursor) -> None:
        if not self._is_behind:
            self._events.resumed(self.name, at, self._last)
        rows = self._medium.events
        self._events.begun(self.name, at, rows[0][1].revision if rows else self._medium.revision + 1)
        self._is_told, self._is_behind = True, False
        self._well_since_ms = None

    def _on_page(self, page: EventPageMessage, *, is_repeated: bool = False) -> None:
        for happened in page.events:
            if self._last is None or happened.at > self._last:
                self._events.told(self.name, happened)
                self._last = happened.at
                self.act(happened)
            elif not is_repeated:
                raise InvariantBroken(f"{self.name} was told {happened.at} after {self._last}")

    def _start_over(self, stream: SimStream, word: WatchEnded) -> None:
        """What it has missed it is never told; it looks at everything, and goes on from there."""
        self.world.count("subscriber: was too far behind")
        at = word.at
        is_row = any(row.revision == at.revision for _, row in self._medium.events)
        if is_row and at.revision <= word.revision:
            raise InvariantBroken(f"{self.name} is told that {at} is gone, which is still there")
        self._last, self._is_behind = None, True
        self._disconnect(stream)

    def act(self, happened: SequencedEvent) -> None:
        """Whoever merely watches does nothing."""

    # ---- acknowledging

    def _acknowledge_now_and_then(self, stream: SimStream) -> None:
        self._pages += 1
        if self.known_as is None or self._last is None or self._pages % PAGES:
            return
        at, name, server = self._last, self.known_as, stream.server
        assert isinstance(server, SimServer)

        def command(view: Any, _: Instant) -> Plan:
            return acknowledge_events(view.subscribers, name, at.revision, at.index)

        def answered(_: Any) -> None:
            self._events.acknowledged(self.name, at)

        self.network.call(
            self.name, server, lambda: server.ask("apiserver", command, answered, lambda _: None)
        )
