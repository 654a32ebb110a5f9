"""The feed of a simulated server: who waits for the store is told what is committed meanwhile."""

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


class SlowMedium(SimStore):
    """Answers when it is told to."""

    def read_events(self, server: SimProcess, after: int, most: int, done: Done) -> None:
        del server, after, most
        self.asked.append(done)

    def __init__(self, world: World, network: SimNetwork) -> None:
        super().__init__(world, network)
        self.asked: list[Done] = []


def test_what_is_committed_while_the_store_is_asked_is_told_all_the_same() -> None:
    world = World(0)
    network = SimNetwork(world)
    reader, server = (SimProcess(world, name, SimClock(world)) for name in ("reader", "server"))
    reader.start_life()
    server.start_life()
    medium = SlowMedium(world, network)
    revisions = [1]
    watching = SimEventStream(server, medium, lambda *_: None, lambda: revisions[-1])
    watching.on_reload()
    stream = network.open(reader, server)
    heard: list[object] = []
    stream.down.hear = heard.append
    watching.open(stream, WatchRequest(None, None))
    revisions.append(2)
    watching.on_commit(Decided(Instant(0, 0), {}, {}, NEWS, (), [], [], fenced=False))
    medium.asked.pop()([])  # what it had before that
    medium.asked.pop()([EventRow(2, codec.encode_events(0, NEWS))])
    world.run(1000)

    pages = [word for word in heard if isinstance(word, EventPageMessage)]
    assert [happened.at for page in pages for happened in page.events] == [EventCursor(2, 0)]
