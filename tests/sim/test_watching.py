"""The feed of a simulated server: who waits for the store is told what is committed meanwhile."""

from rota.apiserver.feed import Position
from rota.engine.loop import Decided
from rota.model.plan import Event, Instant
from rota.sim.medium import Done, Medium
from rota.sim.network import Network
from rota.sim.watching import Watching
from rota.sim.words import Page, Watch
from rota.sim.world import Clock, Process, World
from rota.store import codec
from rota.store.protocol import EventRow

NEWS = (Event("test", "something happened"),)


class SlowMedium(Medium):
    """Answers when it is told to."""

    def read_events(self, server: Process, after: int, most: int, done: Done) -> None:
        del server, after, most
        self.asked.append(done)

    def __init__(self, world: World, network: Network) -> None:
        super().__init__(world, network)
        self.asked: list[Done] = []


def test_what_is_committed_while_the_store_is_asked_is_told_all_the_same() -> None:
    world = World(0)
    network = Network(world)
    reader, server = (Process(world, name, Clock(world)) for name in ("reader", "server"))
    reader.begin()
    server.begin()
    medium = SlowMedium(world, network)
    revisions = [1]
    watching = Watching(server, medium, lambda *_: None, lambda: revisions[-1])
    watching.miss()
    stream = network.open(reader, server)
    heard: list[object] = []
    stream.down.hear = heard.append
    watching.open(stream, Watch(None, None))
    revisions.append(2)
    watching.hear(Decided(Instant(0, 0), {}, {}, NEWS, (), [], [], fenced=False))
    medium.asked.pop()([])  # what it had before that
    medium.asked.pop()([EventRow(2, codec.encode_events(0, NEWS))])
    world.run(1000)

    pages = [word for word in heard if isinstance(word, Page)]
    assert [happened.at for page in pages for happened in page.events] == [Position(2, 0)]
