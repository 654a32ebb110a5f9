"""The network: delays, cuts in one direction or both, requests that get lost or doubled, streams that break.

A stream between a node and a server is TCP: what is said arrives in order and once, however late, until the
stream breaks; then what was under way is lost, and each end finds out in its own time. A user's request is a
call of its own: it, or its answer, can be lost, doubled and overtaken.
"""

from collections.abc import Callable
from typing import Any

from rota.sim.world.virtual_time import Act, SimProcess, World

PING_MS = (10_000, 20_000)  # when an end notices that the other does not answer its pings


class SimNetwork:
    def __init__(self, world: World) -> None:
        self.world = world
        self.slowness = 1.0
        self.loss = 0.0
        self.doubling = 0.0
        self._luck = world.luck("network")
        self._cuts: dict[tuple[str, str], int] = {}
        self._streams: dict[int, SimStream] = {}
        self._opened = 0

    # ---- what can go wrong

    def cut(self, origin: str, target: str) -> None:
        self._cuts[origin, target] = self._cuts.get((origin, target), 0) + 1
        self.check_streams(origin, target)

    def heal(self, origin: str, target: str) -> None:
        self._cuts[origin, target] -= 1
        self.check_streams(origin, target)

    def passes(self, origin: str, target: str) -> bool:
        return not self._cuts.get((origin, target))

    def check_streams(self, *names: str) -> None:
        """Something about these has changed: their streams see whether they can still be heard."""
        for stream in list(self._streams.values()):
            if stream.node.name in names or stream.server.name in names:
                stream.check()

    # ---- what is sent

    def delay_ms(self) -> float:
        return self._luck.uniform(0.2, 4.0) * self.slowness

    def call(self, origin: str, target: SimProcess, act: Act) -> None:
        """One message of a call: perhaps late, lost or doubled."""
        times = 1
        if self._luck.random() < self.loss:
            self.world.count("network: a message lost")
            times = 0
        elif self._luck.random() < self.doubling:
            self.world.count("network: a message doubled")
            times = 2
        for _ in range(times):
            delay_ms = self.delay_ms() * self._luck.choice((1, 1, 1, 10))  # so that some are overtaken
            self.world.after(delay_ms, self._arrive(origin, target, act))

    def _arrive(self, origin: str, target: SimProcess, act: Act) -> Act:
        def arrive() -> None:
            if self.passes(origin, target.name):
                target.do(target.life, act)

        return arrive

    def open(self, node: SimProcess, server: SimProcess) -> "SimStream":
        self._opened += 1
        stream = SimStream(self, self._opened, node, server)
        self._streams[self._opened] = stream
        server.at_its_end.append(lambda: stream.die(server, politely=True))  # though it never answered
        return stream

    def forget(self, stream: "SimStream") -> None:
        self._streams.pop(stream.number, None)


class StreamEnd:
    """One end of a stream."""

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.life = process.life
        self.open = True
        self.hear: Callable[[Any], None] = lambda _: None
        self.broke: Callable[[str], None] = lambda _: None
        self.incoming: list[Any] = []  # what the network holds back
        self.last_at_ms = 0.0

    @property
    def there(self) -> bool:
        return self.open and self.process.alive and self.process.life == self.life


class SimStream:
    def __init__(self, network: SimNetwork, number: int, node: SimProcess, server: SimProcess) -> None:
        self.number = number
        self.node = node
        self.server = server
        self.up = StreamEnd(server)  # what the node says arrives here
        self.down = StreamEnd(node)
        self.heard = True  # whether the server hears this node's beats
        self.heeds: Callable[[bool], None] = lambda _: None  # told when that changes
        self._network = network
        self._ill_since_ms: int | None = None

    def send_to_server(self, word: Any) -> None:
        self._send(self.up, self.node.name, word)

    def send_to_node(self, word: Any) -> None:
        self._send(self.down, self.server.name, word)

    def close(self, end: StreamEnd, reason: str) -> None:
        """One end hangs up; the other hears it if it can."""
        if not end.open:
            return
        end.open = False
        other = self.up if end is self.down else self.down
        origin = end.process.name

        def hang_up() -> None:
            if not self._network.passes(origin, other.process.name):
                self.check()  # it will find out by its own pings
            elif other.there:
                other.process.do(other.life, lambda: self._break(other, reason))

        self._network.world.after(self._network.delay_ms(), hang_up)
        if not self.up.open and not self.down.open:
            self._network.forget(self)

    def die(self, process: SimProcess, *, politely: bool) -> None:
        """A process of one end is gone. Its kernel says so, unless the whole machine is gone."""
        end = self.up if process is self.server else self.down
        if politely:
            self.close(end, "the other end hung up")
        else:
            end.open = False
            self.check()

    def check(self) -> None:
        """Whether the node's words still get through, and whether pings are answered."""
        passes = self._network.passes
        upward = passes(self.node.name, self.server.name)
        downward = passes(self.server.name, self.node.name)
        heard = upward and self.node.runs and self.down.there
        if heard != self.heard:
            self.heard = heard
            if self.up.there:
                self.up.process.do(self.up.life, lambda: self.heeds(heard))
        if upward:
            self._release(self.up)
        if downward:
            self._release(self.down)
        both = self.node.runs and self.server.runs and self.down.there and self.up.there
        if upward and downward and both:
            self._ill_since_ms = None
        elif self._ill_since_ms is None:
            self._ill_since_ms = self._network.world.now_ms
            for end in (self.up, self.down):
                self._ping(end, self._ill_since_ms)

    def _ping(self, end: StreamEnd, since_ms: int) -> None:
        def unanswered() -> None:
            if self._ill_since_ms == since_ms and end.there:
                self._network.world.count("network: pings without an answer")
                end.process.do(end.life, lambda: self._break(end, "no answer to pings"))

        self._network.world.after(self._network._luck.uniform(*PING_MS), unanswered)

    def _break(self, end: StreamEnd, reason: str) -> None:
        if end.open:
            self.close(end, reason)
            end.broke(reason)

    def _send(self, end: StreamEnd, origin: str, word: Any) -> None:
        world = self._network.world
        at_ms = max(end.last_at_ms, world.now_ms + self._network.delay_ms())
        end.last_at_ms = at_ms
        end.incoming.append(word)

        def arrive() -> None:
            if self._network.passes(origin, end.process.name):
                self._release(end, 1)

        world.after(at_ms - world.now_ms, arrive)

    def _release(self, end: StreamEnd, most: int | None = None) -> None:
        """Hand over what has come, in order."""
        words, end.incoming = end.incoming[:most], end.incoming[len(end.incoming) if most is None else most :]
        for word in words:
            if end.there:
                end.process.do(end.life, lambda word=word: end.hear(word) if end.open else None)  # type: ignore[misc]
