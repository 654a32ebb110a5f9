"""The service for agents: a node is told what is on disk, and nothing before its hello is."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn, cast

import grpc
import msgspec
import pytest

from rota.apiserver.admission.node_actions import delete_node_records
from rota.engine.reconciler import Reconciler
from rota.engine.run import Engine
from rota.identity.authority import CertificateAuthority
from rota.model.attempt import AttemptBlock
from rota.model.errors import Unavailable
from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.messages import Hello, JobOrders, LogPiece, LogRequest
from rota.model.node import Connection, Eligibility, NodeIntent
from rota.model.plan import NO_CHANGE, WRITERS, Plan, Record
from rota.model.view import View
from rota.store.memory import MemoryStore
from rota.testing.builders import hello, job_spec
from rota.watcher import liveness, session
from rota.watcher.agent_service import AgentService
from rota.watcher.authentication import Context
from rota.watcher.dispatch import DispatchState
from rota.watcher.inbound import SCHEDULER_WAKE
from rota.watcher.leadership import LeadershipContext
from rota.watcher.node_sessions import ReceivedMark
from rota.watcher.session import NodeSession
from rota.wire import agent as wire
from rota.wire.generated import agent_pb2 as pb
from tests.engine.driving import running, turns
from tests.engine.gated_store import GatedStore
from tests.watcher.placed_work import ONE, A, placed

PLACES_NOTHING = Reconciler(SCHEDULER_WAKE[0], "scheduler", {}, lambda *_: NO_CHANGE, lambda _: ())


class TrustingService(AgentService):
    async def _authenticate(self, context: Context) -> NodeId:
        del context  # nobody has to show a certificate here
        return A


class Aborted(Exception):
    """The call has ended with that status."""


class FakeNode:
    """A node's end of a stream: it says hello and then listens."""

    def __init__(self, word: Hello) -> None:
        self.heard: list[pb.ToNode] = []
        self._news = asyncio.Condition()
        self._word = word

    async def says(self) -> AsyncIterator[pb.FromNode]:
        yield pb.FromNode(n=1, hello=wire.hello_to_wire(self._word))
        await asyncio.Event().wait()

    async def write(self, word: pb.ToNode) -> None:
        self.heard.append(word)
        async with self._news:
            self._news.notify_all()

    async def echoed(self, n: int) -> None:
        """Returns when orders have come that echo this word."""
        async with self._news:
            await self._news.wait_for(lambda: any(word.orders.echo == n for word in self.heard))

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise Aborted(f"{code.name} {details}")

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    @property
    def welcomed(self) -> bool:
        return any(word.HasField("welcome") for word in self.heard)

    @property
    def servers(self) -> list[str]:
        """Of which it was told last."""
        told = [list(word.servers.addresses) for word in self.heard if word.HasField("servers")]
        return told[-1] if told else []

    @property
    def starts(self) -> list[tuple[int, int]]:
        orders = [wire.orders_from_wire(one) for word in self.heard for one in word.orders.jobs]
        return [(start.index, start.attempt) for one in orders for start in one.start]


def records() -> Iterator[Record]:
    """A node, a job, and its one task offered to that node."""
    mirror = placed()
    node, job = mirror.nodes[A], mirror.jobs[ONE]
    for record in (node.spec, node.status, job.spec, job.cluster, job.status, job.attempts[0]):
        assert record is not None
        yield record


async def put(engine: Engine, record: Record) -> None:
    await engine.ask(WRITERS[type(record)], lambda *_: Plan((record,)))


@asynccontextmanager
async def calling(store: GatedStore, line: FakeNode) -> AsyncIterator[tuple[Engine, Any, AttemptBlock]]:
    """An engine that knows all but where the task goes, and a call that has yet to be made."""
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        *known, placement = records()
        for record in known:
            await put(engine, record)
        calls: list[asyncio.Task[None]] = []

        def call() -> asyncio.Task[None]:
            calls.append(group.create_task(service.Connect(line.says(), cast(Context, line))))
            return calls[-1]

        assert isinstance(placement, AttemptBlock)
        yield engine, call, placement
        for one in calls:
            one.cancel()


@pytest.fixture
async def store(tmp_path: Any) -> AsyncIterator[GatedStore]:
    gated = GatedStore(MemoryStore(tmp_path))
    yield gated
    await gated.close()


async def test_a_node_that_restarted_is_not_told_to_start_what_its_restart_has_ended(
    store: GatedStore,
) -> None:
    line = FakeNode(hello("a", boot_id="boot-2"))
    async with calling(store, line) as (engine, call, placement), asyncio.TaskGroup() as group:
        store.gate.clear()
        group.create_task(put(engine, placement))
        await store.at_the_gate.wait()
        call()  # while a commit is under way that gave it work
        await turns()
        store.gate.set()
        await turns()

        assert line.welcomed
        assert line.starts == []


async def test_a_silent_node_is_told_of_all_servers_with_its_welcome_and_of_each_new_one(
    store: GatedStore,
) -> None:
    """It may have no other word to say before its server is killed, and could not find the next leader."""
    known, line = ["one:1", "two:2"], FakeNode(hello("a"))
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(
            engine,
            cast(CertificateAuthority, None),
            leadership=LeadershipContext(servers=lambda: list(known)),
        )
        for record in list(records())[:2]:
            await put(engine, record)
        call = group.create_task(service.Connect(line.says(), cast(Context, line)))
        await turns()
        kinds = [word.WhichOneof("word") for word in line.heard]
        first = line.servers
        known.append("three:3")
        await service.sessions.send_servers()
        await turns()
        call.cancel()

    assert kinds[:2] == ["welcome", "servers"]
    assert first == ["one:1", "two:2"]
    assert line.servers == ["one:1", "two:2", "three:3"]


async def test_a_node_is_told_only_what_is_on_disk(store: GatedStore) -> None:
    line = FakeNode(hello("a"))
    async with calling(store, line) as (engine, call, placement), asyncio.TaskGroup() as group:
        store.gate.clear()
        call()
        await store.at_the_gate.wait()
        group.create_task(put(engine, placement))
        await turns()
        store.gate.set()
        store.gate.clear()  # its hello is through, what comes next is not
        await turns()

        assert line.starts == []
        store.gate.set()
        await turns()

        assert line.welcomed
        assert line.starts == [(0, 1)]


async def test_a_node_that_was_deleted_is_not_known_anew_when_its_stream_ends(store: GatedStore) -> None:
    line = FakeNode(hello("a"))
    async with calling(store, line) as (engine, call, _):
        call()
        await turns()
        await engine.ask(
            "apiserver", lambda view, _: delete_node_records(view.nodes[A], "its machine is gone")
        )
        await turns()

    assert line.welcomed
    assert A not in engine.mirror.nodes


@pytest.mark.parametrize(
    ("codes", "is_whole"),
    [
        (("begun", "", "done"), True),
        (("begun", ""), False),
        (("", ""), True),  # an agent of an older version
    ],
)
async def test_a_log_that_stops_without_its_last_word_was_cut_off(
    store: GatedStore, codes: tuple[str, ...], is_whole: bool
) -> None:
    async with running(store, PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        asking = service.sessions._sessions[A] = NodeSession(A, cast(DispatchState, None))
        said = b""

        async def read() -> bool:
            nonlocal said
            try:
                async for piece in service.logs.open(A, LogRequest(ONE, 0, 1, "stdout", 0, follow=True)):
                    said += piece.data
            except Unavailable:
                return False
            return True

        reading = group.create_task(read())
        await turns()
        asked = only_reading(asking)
        await service.sessions.relay_log(
            A, sent(*(pb.LogChunk(id=asked, code=code, data=code.encode()) for code in codes))
        )

    assert reading.result() is is_whole
    assert said == "".join(codes).replace("done", "").encode()


async def test_a_log_is_not_waited_for_whose_node_has_gone_before_it_sent_anything(store: GatedStore) -> None:
    async with running(store, PLACES_NOTHING) as engine:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        asking = service.sessions._sessions[A] = NodeSession(A, cast(DispatchState, None))
        pieces = service.logs.open(A, LogRequest(ONE, 0, 1, "stdout", 0, follow=True))
        asyncio.get_running_loop().call_soon(
            service.sessions._on_disconnect, asking
        )  # when it has been asked for

        with pytest.raises(Unavailable, match="is not connected any more"):
            await anext(pieces)


async def test_a_reading_is_answered_once_and_by_the_node_that_was_asked(store: GatedStore) -> None:
    async with running(store, PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        asking = service.sessions._sessions[A] = NodeSession(A, cast(DispatchState, None))
        pieces = service.logs.open(A, LogRequest(ONE, 0, 1, "stdout", 0, follow=True))
        reading = group.create_task(read_all(pieces))
        await turns()
        asked = only_reading(asking)
        await service.sessions.relay_log(NodeId("other"), sent(pb.LogChunk(id=asked, data=b"forged")))
        await service.sessions.relay_log(
            A, sent(pb.LogChunk(id=asked, data=b"said"), pb.LogChunk(code="done"))
        )
        await service.sessions.relay_log(A, sent(pb.LogChunk(id=asked, data=b"said twice")))

    assert reading.result() == b"said"


async def test_ids_of_readings_cannot_be_counted_up_to(store: GatedStore) -> None:
    async with running(store, PLACES_NOTHING) as engine:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        asking = NodeSession(A, cast(DispatchState, None))
        ids = {service.sessions.readings.open(asking)[0] for _ in range(1000)}

    assert len(ids) == 1000
    assert min(ids) > 2**40


class DeafNode(FakeNode):
    """A node that takes nothing of what it is told."""

    def __init__(self, word: Hello) -> None:
        super().__init__(word)
        self.is_told = asyncio.Event()
        self.refusal = ""

    async def write(self, word: pb.ToNode) -> None:
        del word
        self.is_told.set()
        await asyncio.Event().wait()

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        self.refusal = f"{code.name} {details}"
        raise asyncio.CancelledError


async def test_a_revoked_node_that_takes_nothing_is_cut_off_all_the_same(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LAST_MESSAGE_SECONDS", 0.01)
    line = DeafNode(hello(A))
    async with calling(store, line) as (engine, call, _):
        connected = call()
        await line.is_told.wait()
        await put(engine, NodeIntent(A, Eligibility.REVOKED))
        await asyncio.wait([connected])
        link = engine.mirror.nodes[A].connection

    assert line.refusal.startswith("PERMISSION_DENIED node a was revoked")
    assert link is Connection.DOWN


async def read_all(pieces: AsyncIterator[LogPiece]) -> bytes:
    return b"".join([piece.data async for piece in pieces])


def only_reading(session: NodeSession) -> int:
    """The id of the one log that was asked for over this connection."""
    [asked] = [word.open_log.id for word in session.messages if word.HasField("open_log")]
    return asked


async def sent(*chunks: pb.LogChunk) -> AsyncIterator[pb.LogChunk]:
    for chunk in chunks:
        yield chunk


async def test_a_node_that_hangs_up_before_it_is_greeted_does_not_count_as_connected(
    store: GatedStore,
) -> None:
    line = FakeNode(hello("a"))
    async with calling(store, line) as (engine, call, _):
        store.gate.clear()
        calling_now = call()
        await store.at_the_gate.wait()
        calling_now.cancel()
        store.gate.set()
        await turns()

        assert not line.welcomed
        assert engine.mirror.nodes[A].connection is Connection.DOWN
        status = engine.mirror.nodes[A].status
        assert status is not None
        assert (status.state, status.reason) == (NodeState.SUSPECT, "its connection broke")


async def test_orders_that_cannot_be_computed_cost_that_node_its_connection_only(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FakeNode(hello("a"))
    orders = DispatchState.orders

    def stumble(told: DispatchState, view: View, node: NodeId) -> list[JobOrders]:
        if view.nodes[node].assigned:
            raise ZeroDivisionError
        return orders(told, view, node)

    monkeypatch.setattr(DispatchState, "orders", stumble)
    async with calling(store, line) as (engine, call, placement):
        over = call()
        await turns()
        assert line.welcomed
        await put(engine, placement)
        await over

        assert line.starts == []
        assert engine.parking.all() == [], "no listener has failed"
        await put(engine, job_spec(2))
        assert list(engine.mirror.jobs) == ["1", "2"]


async def test_a_lost_watcher_says_nothing_of_its_nodes_and_their_silence_counts_from_then(
    store: GatedStore,
) -> None:
    """Its connection did not break: another did. A broken one would make the node suspect at once."""
    line = FakeNode(hello("a"))
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        for record in list(records())[:-1]:
            await put(engine, record)
        talk = group.create_task(service.sessions.serve_session(A, line.says(), cast(Any, line)))
        await turns()
        engine.observe(lambda mirror: setattr(mirror.nodes[A], "last_seen_at_ms", -10_000))

        service.sessions.on_watcher_lost([(A, cast(Any, line))])
        talk.cancel()
        await turns()

        entry = engine.mirror.nodes[A]
        assert entry.connection is Connection.UNKNOWN
        assert entry.last_seen_at_ms >= 0
        assert entry.status is not None
        assert entry.status.state is NodeState.READY


async def test_beats_that_a_watcher_tells_count_for_the_session_of_its_line_alone(store: GatedStore) -> None:
    line, other = FakeNode(hello("a")), FakeNode(hello("a"))
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        for record in list(records())[:-1]:
            await put(engine, record)
        talk = group.create_task(service.sessions.serve_session(A, line.says(), cast(Any, line)))
        await turns()

        def heard_at(spoken: FakeNode) -> int:
            engine.observe(lambda mirror: setattr(mirror.nodes[A], "last_seen_at_ms", -10_000))
            service.sessions.on_relayed_heartbeats([ReceivedMark(A, cast(Any, spoken), 9, holds_leases=True)])
            return engine.mirror.nodes[A].last_seen_at_ms

        late, own = heard_at(other), heard_at(line)
        async with asyncio.timeout(30):
            await line.echoed(9)
        talk.cancel()

    assert late == -10_000 < own


async def test_a_late_hello_of_an_older_connection_replaces_no_newer_session(store: GatedStore) -> None:
    newer, older = FakeNode(numbered(7)), FakeNode(numbered(6))
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        for record in list(records())[:-1]:
            await put(engine, record)
        talk = group.create_task(service.sessions.serve_session(A, newer.says(), cast(Any, newer)))
        await turns()
        with pytest.raises(Aborted, match="ABORTED the node has connected again since"):
            await service.sessions.serve_session(A, older.says(), cast(Any, older))
        session = service.sessions._sessions[A]
        talk.cancel()

    assert (newer.welcomed, older.welcomed) == (True, False)
    assert session.outbound is newer


def numbered(session: int) -> Hello:
    return msgspec.structs.replace(hello("a"), session=session)
