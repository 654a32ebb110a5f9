"""Event streams of a simulated server: a subscriber that waits for the store misses no commit."""

from rota.apiserver.streams.event_cursor import EventCursor
from rota.engine.loop import Decided
from rota.model.plan import EventRecord, Instant
from rota.sim.cluster.event_stream import SimEventStream
from rota.sim.cluster.messages import EventPageMessage, WatchRequest
from rota.sim.world.network import SimNetwork
from rota.sim.world.store import Done, SimStore
from rota.sim.world.virtual_time import SimClock, SimProcess, World
from rota.store import codec
from rota.store.protocol import EventRow

NEWS = (EventRecord("test", "something happened"),)


class SlowStore(SimStore):
    """A store whose answers the test gives."""

    def read_events(self, server: SimProcess, after: int, most: int, done: Done) -> None:
        del server, after, most
        self.pending.append(done)

    def __init__(self, world: World, network: SimNetwork) -> None:
        super().__init__(world, network)
        self.pending: list[Done] = []


def test_events_committed_during_a_read_of_the_store_are_sent() -> None:
    world = World(0)
    network = SimNetwork(world)
    reader, server = (SimProcess(world, name, SimClock(world)) for name in ("reader", "server"))
    reader.start_life()
    server.start_life()
    store = SlowStore(world, network)
    revisions = [1]
    events = SimEventStream(server, store, lambda *_: None, lambda: revisions[-1])
    events.on_reload()
    stream = network.open(reader, server)
    received: list[object] = []
    stream.down.on_message = received.append
    events.open(stream, WatchRequest(None, None))
    revisions.append(2)
    events.on_commit(Decided(Instant(0, 0), {}, {}, NEWS, (), [], [], fenced=False))
    store.pending.pop()([])  # what the store held before the commit
    store.pending.pop()([EventRow(2, codec.encode_events(0, NEWS))])
    world.run(1000)

    pages = [message for message in received if isinstance(message, EventPageMessage)]
    assert [happened.at for page in pages for happened in page.events] == [EventCursor(2, 0)]
