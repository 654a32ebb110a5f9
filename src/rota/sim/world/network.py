"""The network: delays, one-way and two-way cuts, lost and duplicated calls, and streams that break.

A stream between a node and a server behaves like TCP: messages arrive in order and once, however late, until
the stream breaks. Messages in flight are lost then, and each end notices in its own time. A user's request is
a call of its own: the request or its answer can be lost, duplicated or reordered.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from rota.sim.world.virtual_time import Act, SimProcess, World

PING_MS = (10_000, 20_000)  # range of the keepalive timeout, after which an end closes its stream


class SimNetwork:
    """Links between named processes; a cut counts per direction, so that overlapping cuts heal separately."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.slowness = 1.0
        self.loss = 0.0
        self.duplication = 0.0
        self._rng = world.rng("network")
        self._cuts: dict[tuple[str, str], int] = {}
        self._streams: dict[int, SimStream] = {}
        self._opened = 0

    # ---- faults

    def cut(self, origin: str, target: str) -> None:
        self._cuts[origin, target] = self._cuts.get((origin, target), 0) + 1
        self.check_streams(origin, target)

    def heal(self, origin: str, target: str) -> None:
        self._cuts[origin, target] -= 1
        self.check_streams(origin, target)

    def passes(self, origin: str, target: str) -> bool:
        return not self._cuts.get((origin, target))

    def check_streams(self, *names: str) -> None:
        """Re-evaluate the streams of these processes after a cut, a freeze or an end."""
        for stream in list(self._streams.values()):
            if stream.node.name in names or stream.server.name in names:
                stream.check()

    # ---- messages

    def delay_ms(self) -> float:
        return self._rng.uniform(0.2, 4.0) * self.slowness

    def call(self, origin: str, target: SimProcess, act: Act) -> None:
        """Deliver one message of a call; it may be late, lost or duplicated."""
        times = 1
        if self._rng.random() < self.loss:
            self.world.count("network: a message lost")
            times = 0
        elif self._rng.random() < self.duplication:
            self.world.count("network: a message duplicated")
            times = 2
        for _ in range(times):
            delay_ms = self.delay_ms() * self._rng.choice((1, 1, 1, 10))  # a tenfold delay reorders messages
            self.world.after(delay_ms, self._arrive(origin, target, act))

    def _arrive(self, origin: str, target: SimProcess, act: Act) -> Act:
        def arrive() -> None:
            if self.passes(origin, target.name):
                # The life at arrival: a request that was sent to a server before its
                # restart reaches the new process.
                target.do(target.life, act)

        return arrive

    def open(self, node: SimProcess, server: SimProcess) -> "SimStream":
        self._opened += 1
        stream = SimStream(self, self._opened, node, server)
        self._streams[self._opened] = stream
        server.on_end_hooks.append(lambda: stream.die(server, politely=True))  # also before its first answer
        return stream

    def forget(self, stream: "SimStream") -> None:
        self._streams.pop(stream.number, None)


class StreamEnd:
    """One end of a stream, bound to one life of its process."""

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.life = process.life
        self.open = True
        self.on_message: Callable[[Any], None] = lambda _: None
        self.on_break: Callable[[str], None] = lambda _: None
        self.incoming: list[Any] = []  # sent and not yet delivered
        self.last_at_ms = 0.0

    @property
    def connected(self) -> bool:
        return self.open and self.process.alive and self.process.life == self.life


class SimStream:
    """A bidirectional stream between a node (or a subscriber) and a server."""

    def __init__(self, network: SimNetwork, number: int, node: SimProcess, server: SimProcess) -> None:
        self.number = number
        self.node = node
        self.server = server
        self.up = StreamEnd(server)  # receives what the node sends
        self.down = StreamEnd(node)
        self.beats_arrive = True  # whether the node's heartbeats reach the server
        self.on_beats_change: Callable[[bool], None] = lambda _: None  # called when `beats_arrive` changes
        self._network = network
        self._unhealthy_since_ms: int | None = None

    def send_to_server(self, message: Any) -> None:
        self._send(self.up, self.node.name, message)

    def send_to_node(self, message: Any) -> None:
        self._send(self.down, self.server.name, message)

    def close(self, end: StreamEnd, reason: str) -> None:
        """Close one end; the other end is notified if the network lets that through."""
        if not end.open:
            return
        end.open = False
        other = self.up if end is self.down else self.down
        origin = end.process.name

        def close_other() -> None:
            if not self._network.passes(origin, other.process.name):
                # The close is lost like any packet.
                self.check()  # the other end notices by its own keepalive
            elif other.connected:
                other.process.do(other.life, lambda: self._break(other, reason))

        self._network.world.after(self._network.delay_ms(), close_other)
        if not self.up.open and not self.down.open:
            self._network.forget(self)

    def die(self, process: SimProcess, *, politely: bool) -> None:
        """The process at one end died: its kernel closes the connection, unless the whole machine is gone."""
        end = self.up if process is self.server else self.down
        if politely:
            self.close(end, "the other end disconnected")
        else:
            end.open = False
            self.check()

    def check(self) -> None:
        """Recompute whether heartbeats arrive and keepalives are answered; deliver what a cut held back."""
        passes = self._network.passes
        upward = passes(self.node.name, self.server.name)
        downward = passes(self.server.name, self.node.name)
        # Only upward: with a one-way cut a node may be heard although it hears nothing.
        arrive = upward and self.node.runs and self.down.connected
        if arrive != self.beats_arrive:
            self.beats_arrive = arrive
            if self.up.connected:
                self.up.process.do(self.up.life, lambda: self.on_beats_change(arrive))
        if upward:
            self._release(self.up)
        if downward:
            self._release(self.down)
        both = self.node.runs and self.server.runs and self.down.connected and self.up.connected
        # Both ends start a keepalive timer of their own; healing in time voids it by the changed start time.
        if upward and downward and both:
            self._unhealthy_since_ms = None
        elif self._unhealthy_since_ms is None:
            self._unhealthy_since_ms = self._network.world.now_ms
            for end in (self.up, self.down):
                self._ping(end, self._unhealthy_since_ms)

    def _ping(self, end: StreamEnd, since_ms: int) -> None:
        def unanswered() -> None:
            if self._unhealthy_since_ms == since_ms and end.connected:
                self._network.world.count("network: keepalive timed out")
                end.process.do(end.life, lambda: self._break(end, "keepalive timed out"))

        self._network.world.after(self._network._rng.uniform(*PING_MS), unanswered)

    def _break(self, end: StreamEnd, reason: str) -> None:
        if end.open:
            self.close(end, reason)
            end.on_break(reason)

    def _send(self, end: StreamEnd, origin: str, message: Any) -> None:
        world = self._network.world
        # Ordering: a message never overtakes an earlier one of the same direction.
        at_ms = max(end.last_at_ms, world.now_ms + self._network.delay_ms())
        end.last_at_ms = at_ms
        end.incoming.append(message)

        def arrive() -> None:
            if self._network.passes(origin, end.process.name):
                self._release(end, 1)

        world.after(at_ms - world.now_ms, arrive)

    def _release(self, end: StreamEnd, most: int | None = None) -> None:
        """Deliver up to `most` incoming messages, in order."""
        messages, end.incoming = (
            end.incoming[:most],
            end.incoming[len(end.incoming) if most is None else most :],
        )
        for message in messages:
            if end.connected:
                end.process.do(end.life, partial(_deliver, end, message))


def _deliver(end: StreamEnd, message: Any) -> None:
    # The end may have closed while the message waited in the backlog of a frozen process.
    if end.open:
        end.on_message(message)
