"""Forged: what subscribers are told, and what users are answered."""

from collections.abc import Callable

from rota.apiserver.admission.submission import SubmitResult
from rota.apiserver.streams.event_cursor import EventCursor, SequencedEvent
from rota.model.ids import JobId, NodeId
from rota.model.node import Connection, NodeSpec
from rota.model.plan import EventRecord
from rota.sim.checks.events import LATE_MS, EventChecks
from rota.sim.cluster.messages import EventPageMessage, HelloMessage, WatchEnded, WatchStarted
from rota.sim.cluster.subscribers import SimSubscriber
from rota.sim.cluster.users import SimUsers
from rota.sim.world.network import SimNetwork
from rota.sim.world.store import SimStore
from rota.sim.world.virtual_time import SimClock, SimProcess, World
from rota.store import codec
from rota.store.protocol import Batch, EventRow
from rota.testing.builders import hello
from tests.sim.stage import Stage

NAME = "subscriber a"
HAPPENED = [SequencedEvent(EventCursor(revision, 0), 0, EventRecord("test", "")) for revision in (1, 2)]


class Told:
    """A subscriber, the words of a server that may say anything, and two events."""

    def __init__(self) -> None:
        self.world = World(0)
        network = SimNetwork(self.world)
        self.medium = SimStore(self.world, network)
        self.events = EventChecks(self.world)
        self.subscriber = SimSubscriber(network, self.medium, [], self.events, "a")
        for happened in HAPPENED:
            row = codec.encode_events(0, (happened.event,))
            self.medium.events.append((0, EventRow(happened.at.revision, row)))
            self.events.committed(Batch(1, 0, 0, 0, [], [], row), happened.at.revision)
        self.events.begun(NAME, EventCursor(0, 0), 1)

    def hear(self, word: object) -> None:
        self.subscriber._on_message(None, word)  # type: ignore[arg-type]  # it has called nobody


def an_event_is_left_out() -> None:
    Told().hear(EventPageMessage(HAPPENED[1:]))


def an_event_is_told_twice() -> None:
    Told().hear(EventPageMessage([*HAPPENED, HAPPENED[1]]))


def an_event_is_made_up() -> None:
    told = Told()
    told.hear(EventPageMessage(HAPPENED))
    told.hear(EventPageMessage([SequencedEvent(EventCursor(3, 0), 0, EventRecord("test", ""))]))


def an_acknowledgement_is_forgotten() -> None:
    told = Told()
    told.events.acknowledged(NAME, EventCursor(2, 0))
    told.hear(WatchStarted(EventCursor(1, 0)))


def nothing_is_told() -> None:
    told = Told()
    told.world.run(LATE_MS + 1)
    told.events.check(NAME, LATE_MS + 1)


def what_is_there_is_said_to_be_gone() -> None:
    Told().hear(WatchEnded(EventCursor(1, 0), 2))


def another_body_is_accepted() -> None:
    world = World(0)
    users = SimUsers(world, SimNetwork(world), [])
    users.insist = lambda command, done: done(SubmitResult(JobId("1"), new=False))  # type: ignore[method-assign] # noqa: ARG005
    users.submit_wrongly({}, "key")


def a_clone_is_welcome() -> None:
    stage = Stage()
    stage.write(NodeSpec(NodeId("n1"), "n1"))
    server = stage.server()
    server.leads = True
    server.ask = lambda owner, command, answered, refused: answered(None)  # type: ignore[method-assign] # noqa: ARG005
    machine = SimProcess(stage.world, "n1", SimClock(stage.world))
    machine.start_life()
    for boot in ("boot-1", "boot-2"):
        stream = stage.network.open(machine, server)
        server.handshake(stream, HelloMessage(1, NodeId("n1"), hello("n1", boot_id=boot), lambda: 1))
        server.mirror.connect(NodeId("n1"), Connection.DOWN)


FORGED: dict[Callable[[], None], str] = {
    an_event_is_left_out: "subscriber a was told 2.0, and to come was 1.0",
    an_event_is_told_twice: "subscriber a was told 2.0 after 2.0",
    an_event_is_made_up: "subscriber a was told 3.0, and to come was nothing",
    an_acknowledgement_is_forgotten: "subscriber a had come to 2.0 and goes on from 1.0",
    a_clone_is_welcome: "boot-2 is welcome as n1, and boot-1 answers",
    nothing_is_told: "subscriber a was not told 1.0 for 15001 ms",
    what_is_there_is_said_to_be_gone: "subscriber a is told that 1.0 is gone, which is still there",
    another_body_is_accepted: (
        "submit key with another body was answered with SubmitResult(job='1', new=False"
    ),
}
