"""Forged: what subscribers are told, and what users are answered."""

from collections.abc import Callable

from rota.apiserver.admission import Submitted
from rota.apiserver.feed import Happened, Position
from rota.model.ids import JobId, NodeId
from rota.model.node import Link, NodeSpec
from rota.model.plan import Event
from rota.sim.events import LATE_MS, Events
from rota.sim.medium import Medium
from rota.sim.network import Network
from rota.sim.subscribers import Subscriber
from rota.sim.users import Users
from rota.sim.words import Begun, Ended, Greeting, Page
from rota.sim.world import Clock, Process, World
from rota.store import codec
from rota.store.protocol import Batch, EventRow
from rota.testing.builders import hello
from tests.sim.stage import Stage

NAME = "subscriber a"
HAPPENED = [Happened(Position(revision, 0), 0, Event("test", "")) for revision in (1, 2)]


class Told:
    """A subscriber, the words of a server that may say anything, and two events."""

    def __init__(self) -> None:
        self.world = World(0)
        network = Network(self.world)
        self.medium = Medium(self.world, network)
        self.events = Events(self.world)
        self.subscriber = Subscriber(network, self.medium, [], self.events, "a")
        for happened in HAPPENED:
            row = codec.encode_events(0, (happened.event,))
            self.medium.events.append((0, EventRow(happened.at.revision, row)))
            self.events.committed(Batch(1, 0, 0, 0, [], [], row), happened.at.revision)
        self.events.begun(NAME, Position(0, 0), 1)

    def hear(self, word: object) -> None:
        self.subscriber._hear(None, word)  # type: ignore[arg-type]  # it has called nobody


def an_event_is_left_out() -> None:
    Told().hear(Page(HAPPENED[1:]))


def an_event_is_told_twice() -> None:
    Told().hear(Page([*HAPPENED, HAPPENED[1]]))


def an_event_is_made_up() -> None:
    told = Told()
    told.hear(Page(HAPPENED))
    told.hear(Page([Happened(Position(3, 0), 0, Event("test", ""))]))


def an_acknowledgement_is_forgotten() -> None:
    told = Told()
    told.events.acknowledged(NAME, Position(2, 0))
    told.hear(Begun(Position(1, 0)))


def nothing_is_told() -> None:
    told = Told()
    told.world.run(LATE_MS + 1)
    told.events.look(NAME, LATE_MS + 1)


def what_is_there_is_said_to_be_gone() -> None:
    Told().hear(Ended(Position(1, 0), 2))


def another_body_is_accepted() -> None:
    world = World(0)
    users = Users(world, Network(world), [])
    users.insist = lambda command, done: done(Submitted(JobId("1"), new=False))  # type: ignore[method-assign] # noqa: ARG005
    users.err({}, "key")


def a_clone_is_welcome() -> None:
    stage = Stage()
    stage.write(NodeSpec(NodeId("n1"), "n1"))
    server = stage.server()
    server.leads = True
    server.ask = lambda owner, command, answered, refused: answered(None)  # type: ignore[method-assign] # noqa: ARG005
    machine = Process(stage.world, "n1", Clock(stage.world))
    machine.begin()
    for boot in ("boot-1", "boot-2"):
        stream = stage.network.open(machine, server)
        server.greet(stream, Greeting(1, NodeId("n1"), hello("n1", boot_id=boot), lambda: 1))
        server.mirror.connect(NodeId("n1"), Link.DOWN)


FORGED: dict[Callable[[], None], str] = {
    an_event_is_left_out: "subscriber a was told 2.0, and to come was 1.0",
    an_event_is_told_twice: "subscriber a was told 2.0 after 2.0",
    an_event_is_made_up: "subscriber a was told 3.0, and to come was nothing",
    an_acknowledgement_is_forgotten: "subscriber a had come to 2.0 and goes on from 1.0",
    a_clone_is_welcome: "boot-2 is welcome as n1, and boot-1 answers",
    nothing_is_told: "subscriber a was not told 1.0 for 15001 ms",
    what_is_there_is_said_to_be_gone: "subscriber a is told that 1.0 is gone, which is still there",
    another_body_is_accepted: "submit key with another body was answered with Submitted(job='1', new=False",
}
