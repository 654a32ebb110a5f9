"""The agent service: orders follow durable decisions only, and none precede a durable hello."""

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
        del context  # no certificate is needed here
        return A


class Aborted(Exception):
    """The call was aborted with this status."""


class FakeNode:
    """A node's end of a stream: it says hello and then reads."""

    def __init__(self, message: Hello) -> None:
        self.received: list[pb.ToNode] = []
        self._news = asyncio.Condition()
        self._hello = message

    async def messages(self) -> AsyncIterator[pb.FromNode]:
        yield pb.FromNode(n=1, hello=wire.hello_to_wire(self._hello))
        await asyncio.Event().wait()

    async def write(self, message: pb.ToNode) -> None:
        self.received.append(message)
        async with self._news:
            self._news.notify_all()

    async def echoed(self, n: int) -> None:
        """Wait for orders that echo this sequence number."""
        async with self._news:
            await self._news.wait_for(lambda: any(message.orders.echo == n for message in self.received))

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise Aborted(f"{code.name} {details}")

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    @property
    def welcomed(self) -> bool:
        return any(message.HasField("welcome") for message in self.received)

    @property
    def servers(self) -> list[str]:
        """The addresses received last."""
        addresses = [
            list(message.servers.addresses) for message in self.received if message.HasField("servers")
        ]
        return addresses[-1] if addresses else []

    @property
    def starts(self) -> list[tuple[int, int]]:
        orders = [
            wire.orders_from_wire(job_orders)
            for message in self.received
            for job_orders in message.orders.jobs
        ]
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
async def calling(store: GatedStore, node: FakeNode) -> AsyncIterator[tuple[Engine, Any, AttemptBlock]]:
    """An engine with everything but the placement of the task, and a function that makes the call."""
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        *known, placement = records()
        for record in known:
            await put(engine, record)
        calls: list[asyncio.Task[None]] = []

        def call() -> asyncio.Task[None]:
            calls.append(group.create_task(service.Connect(node.messages(), cast(Context, node))))
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


async def test_a_restarted_node_is_not_ordered_to_start_what_its_restart_has_ended(
    store: GatedStore,
) -> None:
    node = FakeNode(hello("a", boot_id="boot-2"))
    async with calling(store, node) as (engine, call, placement), asyncio.TaskGroup() as group:
        store.gate.clear()
        group.create_task(put(engine, placement))
        await store.at_the_gate.wait()
        call()  # while a commit that gives it work is in progress
        await turns()
        store.gate.set()
        await turns()

        assert node.welcomed
        assert node.starts == []


async def test_a_silent_node_gets_all_servers_with_its_welcome_and_each_new_one(
    store: GatedStore,
) -> None:
    """It may send nothing else before its server is killed, and could then not find the next leader."""
    known, node = ["one:1", "two:2"], FakeNode(hello("a"))
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(
            engine,
            cast(CertificateAuthority, None),
            leadership=LeadershipContext(servers=lambda: list(known)),
        )
        for record in list(records())[:2]:
            await put(engine, record)
        call = group.create_task(service.Connect(node.messages(), cast(Context, node)))
        await turns()
        kinds = [message.WhichOneof("word") for message in node.received]
        first = node.servers
        known.append("three:3")
        await service.sessions.send_servers()
        await turns()
        call.cancel()

    assert kinds[:2] == ["welcome", "servers"]
    assert first == ["one:1", "two:2"]
    assert node.servers == ["one:1", "two:2", "three:3"]


async def test_orders_are_sent_only_for_durable_decisions(store: GatedStore) -> None:
    node = FakeNode(hello("a"))
    async with calling(store, node) as (engine, call, placement), asyncio.TaskGroup() as group:
        store.gate.clear()
        call()
        await store.at_the_gate.wait()
        group.create_task(put(engine, placement))
        await turns()
        store.gate.set()
        store.gate.clear()  # its hello is committed, the next commit is held back
        await turns()

        assert node.starts == []
        store.gate.set()
        await turns()

        assert node.welcomed
        assert node.starts == [(0, 1)]


async def test_a_deleted_node_is_not_recreated_when_its_stream_ends(store: GatedStore) -> None:
    node = FakeNode(hello("a"))
    async with calling(store, node) as (engine, call, _):
        call()
        await turns()
        await engine.ask(
            "apiserver", lambda view, _: delete_node_records(view.nodes[A], "its machine is gone")
        )
        await turns()

    assert node.welcomed
    assert A not in engine.mirror.nodes


@pytest.mark.parametrize(
    ("codes", "is_whole"),
    [
        (("begun", "", "done"), True),
        (("begun", ""), False),
        (("",), False),
    ],
)
async def test_a_log_that_stops_without_its_final_chunk_was_cut_off(
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


async def test_a_log_fails_when_its_node_disconnects_before_sending(store: GatedStore) -> None:
    async with running(store, PLACES_NOTHING) as engine:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        asking = service.sessions._sessions[A] = NodeSession(A, cast(DispatchState, None))
        pieces = service.logs.open(A, LogRequest(ONE, 0, 1, "stdout", 0, follow=True))
        asyncio.get_running_loop().call_soon(service.sessions._on_disconnect, asking)  # once it is requested

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


async def test_ids_of_readings_cannot_be_guessed(store: GatedStore) -> None:
    async with running(store, PLACES_NOTHING) as engine:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        asking = NodeSession(A, cast(DispatchState, None))
        ids = {service.sessions.readings.open(asking)[0] for _ in range(1000)}

    assert len(ids) == 1000
    assert min(ids) > 2**40


class DeafNode(FakeNode):
    """A node that reads none of its messages."""

    def __init__(self, message: Hello) -> None:
        super().__init__(message)
        self.is_told = asyncio.Event()
        self.refusal = ""

    async def write(self, message: pb.ToNode) -> None:
        del message
        self.is_told.set()
        await asyncio.Event().wait()

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        self.refusal = f"{code.name} {details}"
        raise asyncio.CancelledError


async def test_a_revoked_node_that_reads_nothing_is_disconnected_in_time(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LAST_MESSAGE_SECONDS", 0.01)
    node = DeafNode(hello(A))
    async with calling(store, node) as (engine, call, _):
        connected = call()
        await node.is_told.wait()
        await put(engine, NodeIntent(A, Eligibility.REVOKED))
        await asyncio.wait([connected])
        link = engine.mirror.nodes[A].connection

    assert node.refusal.startswith("PERMISSION_DENIED node a was revoked")
    assert link is Connection.DOWN


async def read_all(pieces: AsyncIterator[LogPiece]) -> bytes:
    return b"".join([piece.data async for piece in pieces])


def only_reading(session: NodeSession) -> int:
    """The id of the only log requested on this session."""
    [asked] = [message.open_log.id for message in session.messages if message.HasField("open_log")]
    return asked


async def sent(*chunks: pb.LogChunk) -> AsyncIterator[pb.LogChunk]:
    for chunk in chunks:
        yield chunk


async def test_a_node_that_disconnects_during_its_handshake_is_not_connected(
    store: GatedStore,
) -> None:
    node = FakeNode(hello("a"))
    async with calling(store, node) as (engine, call, _):
        store.gate.clear()
        calling_now = call()
        await store.at_the_gate.wait()
        calling_now.cancel()
        store.gate.set()
        await turns()

        assert not node.welcomed
        assert engine.mirror.nodes[A].connection is Connection.DOWN
        status = engine.mirror.nodes[A].status
        assert status is not None
        assert (status.state, status.reason) == (NodeState.SUSPECT, "its connection broke")


async def test_a_fault_in_computing_orders_ends_that_session_only(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(hello("a"))
    orders = DispatchState.orders

    def stumble(dispatch: DispatchState, view: View, node: NodeId) -> list[JobOrders]:
        if view.nodes[node].assigned:
            raise ZeroDivisionError
        return orders(dispatch, view, node)

    monkeypatch.setattr(DispatchState, "orders", stumble)
    async with calling(store, node) as (engine, call, placement):
        over = call()
        await turns()
        assert node.welcomed
        await put(engine, placement)
        await over

        assert node.starts == []
        assert engine.parking.all() == [], "no listener has failed"
        await put(engine, job_spec(2))
        assert list(engine.mirror.jobs) == ["1", "2"]


async def test_nodes_of_a_lost_watcher_are_silent_from_then_on_and_not_suspect(
    store: GatedStore,
) -> None:
    """Its own connection did not break. A broken one would make the node suspect immediately."""
    node = FakeNode(hello("a"))
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        for record in list(records())[:-1]:
            await put(engine, record)
        serving = group.create_task(service.sessions.serve_session(A, node.messages(), cast(Any, node)))
        await turns()
        engine.observe(lambda mirror: setattr(mirror.nodes[A], "last_seen_at_ms", -10_000))

        service.sessions.on_watcher_lost([(A, cast(Any, node))])
        serving.cancel()
        await turns()

        entry = engine.mirror.nodes[A]
        assert entry.connection is Connection.UNKNOWN
        assert entry.last_seen_at_ms >= 0
        assert entry.status is not None
        assert entry.status.state is NodeState.READY


async def test_relayed_heartbeats_count_for_the_session_of_their_stream_only(store: GatedStore) -> None:
    node, other = FakeNode(hello("a")), FakeNode(hello("a"))
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        for record in list(records())[:-1]:
            await put(engine, record)
        serving = group.create_task(service.sessions.serve_session(A, node.messages(), cast(Any, node)))
        await turns()

        def last_seen_after(source: FakeNode) -> int:
            engine.observe(lambda mirror: setattr(mirror.nodes[A], "last_seen_at_ms", -10_000))
            service.sessions.on_relayed_heartbeats([ReceivedMark(A, cast(Any, source), 9, holds_leases=True)])
            return engine.mirror.nodes[A].last_seen_at_ms

        late, own = last_seen_after(other), last_seen_after(node)
        async with asyncio.timeout(30):
            await node.echoed(9)
        serving.cancel()

    assert late == -10_000 < own


async def test_a_delayed_hello_of_an_older_connection_is_refused(store: GatedStore) -> None:
    newer, older = FakeNode(numbered(7)), FakeNode(numbered(6))
    async with running(store, liveness.reconciler(), PLACES_NOTHING) as engine, asyncio.TaskGroup() as group:
        service = TrustingService(engine, cast(CertificateAuthority, None))
        for record in list(records())[:-1]:
            await put(engine, record)
        serving = group.create_task(service.sessions.serve_session(A, newer.messages(), cast(Any, newer)))
        await turns()
        with pytest.raises(Aborted, match="ABORTED the node has connected again since"):
            await service.sessions.serve_session(A, older.messages(), cast(Any, older))
        session = service.sessions._sessions[A]
        serving.cancel()

    assert (newer.welcomed, older.welcomed) == (True, False)
    assert session.outbound is newer


def numbered(session: int) -> Hello:
    return msgspec.structs.replace(hello("a"), session=session)
