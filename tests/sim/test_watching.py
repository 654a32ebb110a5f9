"""The feed of a simulated server: who waits for the store is told what is committed meanwhile."""

from rota.apiserver.feed import Position
from rota.engine.loop import Decided
from rota.model.plan import Event, Instant
from rota.sim.medium import Medium
from rota.sim.network import Network
from rota.sim.watching import Watching
from rota.sim.words import Page, Watch
from rota.sim.world import Clock, Process, World


def test_what_is_committed_while_the_store_is_asked_is_told_all_the_same() -> None:
    world = World(0)
    network = Network(world)
    reader, server = (Process(world, name, Clock(world)) for name in ("reader", "server"))
    reader.begin()
    server.begin()
    watching = Watching(server, Medium(world, network), lambda *_: None)
    watching.miss(1)
    stream = network.open(reader, server)
    heard: list[object] = []
    stream.down.hear = heard.append
    watching.open(stream, Watch(None, None))  # the store is asked, and has nothing newer
    decided = Decided(Instant(0, 0), {}, {}, (Event("test", "something happened"),), (), [], [], fenced=False)
    watching.hear(decided, 2)
    world.run(60_000)

    pages = [word for word in heard if isinstance(word, Page)]
    assert [happened.at for page in pages for happened in page.events] == [Position(2, 0)]
