"""Forged: wrong event streams to subscribers, and wrong answers to users and nodes."""

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
from tests.sim.check_stage import CheckStage

NAME = "subscriber a"
HAPPENED = [SequencedEvent(EventCursor(revision, 0), 0, EventRecord("test", "")) for revision in (1, 2)]


class ForgedEvents:
    """A subscriber whose messages are forged, and two committed events."""

    def __init__(self) -> None:
        self.world = World(0)
        network = SimNetwork(self.world)
        self.store = SimStore(self.world, network)
        self.events = EventChecks(self.world)
        self.subscriber = SimSubscriber(network, self.store, [], self.events, "a")
        for happened in HAPPENED:
            row = codec.encode_events(0, (happened.event,))
            self.store.events.append((0, EventRow(happened.at.revision, row)))
            self.events.committed(Batch(1, 0, 0, 0, [], [], row), happened.at.revision)
        self.events.started(NAME, EventCursor(0, 0), 1)

    def receive(self, message: object) -> None:
        self.subscriber._on_message(None, message)  # type: ignore[arg-type]  # it has no stream


def an_event_is_left_out() -> None:
    ForgedEvents().receive(EventPageMessage(HAPPENED[1:]))


def an_event_is_sent_twice() -> None:
    ForgedEvents().receive(EventPageMessage([*HAPPENED, HAPPENED[1]]))


def an_event_is_made_up() -> None:
    forged = ForgedEvents()
    forged.receive(EventPageMessage(HAPPENED))
    forged.receive(EventPageMessage([SequencedEvent(EventCursor(3, 0), 0, EventRecord("test", ""))]))


def an_acknowledgement_is_forgotten() -> None:
    forged = ForgedEvents()
    forged.events.acknowledged(NAME, EventCursor(2, 0))
    forged.receive(WatchStarted(EventCursor(1, 0)))


def no_event_is_sent() -> None:
    forged = ForgedEvents()
    forged.world.run(LATE_MS + 1)
    forged.events.check(NAME, LATE_MS + 1)


def a_stored_event_is_called_expired() -> None:
    ForgedEvents().receive(WatchEnded(EventCursor(1, 0), 2))


def another_body_is_accepted() -> None:
    world = World(0)
    users = SimUsers(world, SimNetwork(world), [])
    users.insist = lambda command, done: done(SubmitResult(JobId("1"), new=False))  # type: ignore[method-assign] # noqa: ARG005
    users.submit_conflicting({}, "key")


def a_clone_is_welcome() -> None:
    stage = CheckStage()
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
    an_event_is_left_out: "subscriber a was sent 2.0, and 1.0 was expected",
    an_event_is_sent_twice: "subscriber a was sent 2.0 after 2.0",
    an_event_is_made_up: "subscriber a was sent 3.0, and nothing was expected",
    an_acknowledgement_is_forgotten: "subscriber a had received 2.0 and resumes from 1.0",
    a_clone_is_welcome: "boot-2 is accepted as n1, and boot-1 is connected",
    no_event_is_sent: "subscriber a was not sent 1.0 for 15001 ms",
    a_stored_event_is_called_expired: "subscriber a is told that 1.0 has expired, which is still stored",
    another_body_is_accepted: (
        "submit key with another body was answered with SubmitResult(job='1', new=False"
    ),
}
