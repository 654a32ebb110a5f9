"""The sessions of all connected nodes: handshake, send loop, disconnect, orders after each commit. [I/O]

How sessions work, and why in this order, is described at the top of `rota.watcher.session`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

import grpc
import structlog

from rota.engine.run import Committed, Engine
from rota.engine.state.mirror import Mirror
from rota.identity import certificates
from rota.identity.authority import CertificateAuthority
from rota.model.errors import BadField, RotaError
from rota.model.ids import JobId, NodeId
from rota.model.messages import Hello, JobOrders, JobReports
from rota.model.node import Connection, RefusedHandshake
from rota.model.result import ResultEndpoint
from rota.watcher import leave_notices, liveness, node_messages
from rota.watcher.dispatch import DispatchState, unsealed
from rota.watcher.inbound import SCHEDULER_WAKE, InboundMessages
from rota.watcher.leadership import LeadershipContext
from rota.watcher.logs import LogReadings, PushLimits
from rota.watcher.node_settings import SettingsSender
from rota.watcher.session import NodeSession, Outbound, SessionOver
from rota.wire import agent as wire
from rota.wire import bounds
from rota.wire.generated import agent_pb2 as pb

log = structlog.get_logger("rota.watcher")

_SENT_PER_STEP = 100  # nodes, before the event loop may run something else: some milliseconds
_LAST_MESSAGE_SECONDS = 5.0  # for the message being written to a node that broke the protocol
T = TypeVar("T", pb.FromNode, pb.LogChunk)
ResultEndpoints = Callable[[NodeId, JobId], ResultEndpoint | None]


class ReceivedMark(NamedTuple):
    """The last message of a session since the previous batch of its watcher."""

    node: NodeId
    outbound: Outbound
    n: int
    holds_leases: bool


class NodeSessions:
    """The table of sessions, one per connected node, and the code that runs them."""

    def __init__(
        self,
        engine: Engine,
        authority: CertificateAuthority,
        settings: SettingsSender,
        leadership: LeadershipContext,
        endpoints: ResultEndpoints,
    ) -> None:
        self.readings = LogReadings()
        self.pushes = PushLimits()
        self._engine = engine
        self._authority = authority
        self._settings = settings
        self._leadership = leadership
        self._endpoints = endpoints
        self._inbound = InboundMessages(engine, settings)
        self._sessions: dict[NodeId, NodeSession] = {}
        self._invalid_messages: dict[NodeId, str] = {}  # the last one logged for each node
        engine.on_commit(self._on_commit)

    def get(self, node: NodeId) -> NodeSession | None:
        return self._sessions.get(node)

    # ---- one session, from its hello to its end

    async def serve_session(
        self,
        node: NodeId,
        messages: AsyncIterator[pb.FromNode],
        outbound: Outbound,
        certificate: bytes = b"",
    ) -> None:
        """Run the session of an authenticated node until either side ends it.

        A message out of bounds ends it with INVALID_ARGUMENT. A proxy node of the gateway has no certificate.
        """
        try:
            await self._serve_session(node, checked(messages), outbound, certificate)
        except BadField as invalid:
            reason = f"{invalid} ({invalid.hint})"
            self.record_invalid_message(node, reason)
            await outbound.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    async def _serve_session(
        self, node: NodeId, messages: AsyncIterator[pb.FromNode], outbound: Outbound, certificate: bytes
    ) -> None:
        session = await self._handshake(node, messages, outbound, certificate)
        try:
            # Both halves in one group: if one fails the other
            # is cancelled, so no session is left half open.
            async with asyncio.timeout(None) as session.limit, asyncio.TaskGroup() as halves:
                halves.create_task(self._receive_until_invalid(session, messages))
                halves.create_task(self._send_loop(session, outbound))
        except* (SessionOver, TimeoutError):
            pass
        finally:
            session.limit = None
            # Also on cancellation: a session that stayed in the table would take orders for a dead stream.
            self._on_disconnect(session)
        if session.invalid_message is not None:
            raise session.invalid_message
        if session.refusal is not None:
            await outbound.abort(grpc.StatusCode.PERMISSION_DENIED, session.refusal)

    async def _receive_until_invalid(
        self, session: NodeSession, messages: AsyncIterator[pb.FromNode]
    ) -> None:
        try:
            await self._inbound.receive_loop(session, messages)
        except BadField as invalid:
            session.invalid_message = invalid
            # Raising at once would cancel the other half in the middle of a write, and gRPC could not send
            # the status after it. The send loop finishes its message first, unless the node does not read it.
            session.end()
            await asyncio.sleep(_LAST_MESSAGE_SECONDS)
            raise SessionOver from None

    async def _handshake(
        self, node: NodeId, messages: AsyncIterator[pb.FromNode], outbound: Outbound, certificate: bytes
    ) -> NodeSession:
        """Refuse the node, or make its hello durable and return its session; the steps are in `session`."""
        first = await anext(aiter(messages))
        if first.WhichOneof("word") != "hello":
            await outbound.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be hello")
        hello = self._hello(first.hello, certificate)
        # Before the session is registered: a refused hello
        # must not displace the session that is in the table.
        reason = node_messages.why_refused(
            self._engine.mirror,
            node,
            hello,
            epoch=self._engine.epoch,
            now_ms=self._engine.now_ms(),
            ttl_ms=self._leadership.ttl_ms,
        )
        self._record_refusal(node, None if reason is None else RefusedHandshake(reason, hello.epoch_seen))
        if reason is not None:
            await outbound.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        session = await self._register(node, first, hello, outbound, certificate)
        try:
            # Ordering: unknown jobs are adopted before the hello
            # is decided, which ignores reports about them.
            specs = self._leadership.specs
            if specs is not None and first.hello.protocol >= wire.PROTOCOL_RESUBMITS:
                await self._inbound.adopt_unknown_jobs(session, specs, hello.inventory, messages)
            await self._engine.ask(
                "watcher", lambda view, now: node_messages.on_hello(view, node, hello, now), may_split=True
            )
            # From here on `_on_commit` may compute orders:
            # earlier ones would ignore what the inventory says.
            session.hello_durable = True
            # A read waits for the commit in progress: what was decided since on_hello is durable by then.
            await self._engine.read(lambda _: self._collect(session))
        except (BadField, asyncio.CancelledError):  # invalid, or disconnected before it was welcomed
            self._on_disconnect(session)
            raise
        except (RotaError, TimeoutError) as error:
            self._on_disconnect(session)
            # Not UNAVAILABLE: the agent would take the server for unreachable, and look for the fault in the
            # network.
            await outbound.abort(grpc.StatusCode.ABORTED, str(error))
        # The hello itself is durable now, so reports in its inventory need no further acknowledgement.
        session.durable_n = first.n
        session.send(self._settings.welcome(session))
        # Now, not with the node's next message: this server may be killed before that.
        self._settings.send_servers(session)
        self._settings.send_trust(session)
        self._engine.observe(lambda mirror: mirror.mark_seen(node), (liveness.NAME, node), SCHEDULER_WAKE)
        return session

    async def _register(
        self, node: NodeId, first: pb.FromNode, hello: Hello, outbound: Outbound, certificate: bytes
    ) -> NodeSession:
        """Enter the session into the table in place of an older one; aborts the call of a delayed hello."""
        before = self._sessions.get(node)
        if before is not None:
            # Race: the hello of a connection that the node has left may have been delayed at a watcher.
            if before.is_newer_than(hello.boot_id, hello.session):
                await outbound.abort(grpc.StatusCode.ABORTED, "the node has connected again since")
            # The old session ends by itself; the table is overwritten
            # below, so its end no longer counts as a disconnect.
            before.end()
        dispatch = self._dispatch_state(node, hello.inventory)
        session = NodeSession(node, dispatch, outbound, certificate=certificate)
        session.boot_id, session.number, session.received_n = hello.boot_id, hello.session, first.n
        # In the table before the hello is durable: a second
        # hello must find this one to decide which is newer.
        self._sessions[node] = session
        # Ordering: before the hello is decided, or a node back from silence is judged by that silence.
        self._engine.observe(lambda mirror: mirror.connect(node, Connection.UP))
        self._engine.observe(lambda mirror: mirror.mark_seen(node))
        return session

    def _hello(self, message: pb.Hello, certificate: bytes) -> Hello:
        hello = wire.hello_from_wire(message)
        if not certificate:
            return hello
        return hello.with_certificate(_expires_at_ms(certificate), self._authority.signer_of(certificate))

    def _dispatch_state(self, node: NodeId, inventory: list[JobReports]) -> DispatchState:
        specs = self._leadership.specs
        sealed = unsealed if specs is None else partial(specs.seal, node)
        return DispatchState(inventory, partial(self._endpoints, node), sealed)

    async def _send_loop(self, session: NodeSession, outbound: Outbound) -> None:
        while True:
            await session.has_pending()
            if session.over:
                raise SessionOver
            # Swapped before the first await: what is queued during a write belongs to the next round.
            messages, session.messages = session.messages, []
            orders, session.orders = session.orders, []
            forget, session.forget = session.forget, []
            for message in messages:
                await outbound.write(message)
            if orders or forget or session.echo_due or session.durable_n > session.acked_n:
                # Before the write: if that fails the session is over, and the next hello starts afresh.
                session.acked_n = session.durable_n
                session.echo_due = False
                await outbound.write(self._orders(session, orders, forget))

    def _orders(self, session: NodeSession, orders: list[JobOrders], forget: list[JobId]) -> pb.ToNode:
        return pb.ToNode(
            epoch=self._engine.epoch,
            orders=pb.Orders(
                echo=session.received_n,
                stored=session.durable_n,
                jobs=[wire.orders_to_wire(job_orders) for job_orders in orders],
                forget=forget,
                renews=self._leadership.may_renew(),
            ),
        )

    def _on_disconnect(self, session: NodeSession) -> None:
        """The stream ended: the node is suspect immediately, unless it announced a reconnect."""
        self._abandon_readings(session)
        node = session.node
        if self._sessions.get(node) is not session:
            return  # superseded: the newer session says how the node is connected
        del self._sessions[node]
        if node not in self._engine.mirror.nodes:
            return  # deleted: an observation would create its entry again
        if session.calls_again:
            self._observe_unknown(node)
            return
        self._engine.observe(lambda mirror: mirror.connect(node, Connection.DOWN), (liveness.NAME, node))

    def _abandon_readings(self, session: NodeSession) -> None:
        name = node_messages.display_name(self._engine.mirror, session.node)
        self.readings.abandon_all(session, f"node {name} is not connected any more")

    def _observe_unknown(self, node: NodeId) -> None:
        """The connection ended for a reason that says nothing about the node: its silence starts now.

        The silence of a node that was in doubt before goes on.
        """
        restart_silence = not self._inbound.is_doubted(node)
        observed = partial(_connection_unknown, node=node, restart_silence=restart_silence)
        self._engine.observe(observed, (liveness.NAME, node))

    # ---- refusals, for the operator

    def record_invalid_message(self, node: NodeId, reason: str) -> None:
        """Show the node as refused; logged once per reason, as a node that reconnects repeats its message."""
        if self._invalid_messages.get(node) != reason:
            self._invalid_messages[node] = reason
            name = node_messages.display_name(self._engine.mirror, node)
            log.error("invalid message from node", node=name, reason=reason)
        if node in self._engine.mirror.nodes:
            self._engine.observe(lambda mirror: mirror.nodes[node].set_refused(RefusedHandshake(reason, 0)))

    def _record_refusal(self, node: NodeId, why: RefusedHandshake | None) -> None:
        """Show why the handshake was refused; logged when it changes, as nodes retry all the time."""
        if why is not None and why != self._engine.mirror.nodes[node].refused:
            name = node_messages.display_name(self._engine.mirror, node)
            log.error("node refused", node=name, reason=why.reason)
        self._engine.observe(lambda mirror: mirror.nodes[node].set_refused(why))

    # ---- called by other parts of this process

    async def relay_log(self, node: NodeId, chunks: AsyncIterator[pb.LogChunk]) -> None:
        """Pass the chunks of an authenticated node to the reading that it answers."""
        await self.readings.relay(node, chunks)

    async def leave(self, node: NodeId, reason: str) -> None:
        await self._inbound.leave(node, reason)

    def end_retired(self) -> None:
        """End the sessions of nodes whose certificate was signed by a CA that is no longer trusted."""
        for session in list(self._sessions.values()):
            if session.certificate and self._authority.is_retired(session.certificate):
                self.pushes.end(session.node)
                session.end()

    async def send_servers(self) -> None:
        """Send the server addresses to all connected nodes, yielding to the event loop in between."""
        # A copy, because the table may change while this yields.
        for number, session in enumerate(list(self._sessions.values())):
            if session.servers:  # else its welcome, which comes first, is still to be sent
                self._settings.send_servers(session)
            if number % _SENT_PER_STEP == 0:
                await asyncio.sleep(0)

    # ---- called for watchers: heartbeats, loads and loss of many sessions at once

    def on_relayed_heartbeats(self, received: Iterable[ReceivedMark]) -> None:
        """Heartbeats that a watcher has answered itself; those of superseded sessions are ignored."""
        alive: list[NodeId] = []
        for node, outbound, n, holds_leases in received:
            session = self._current(node, outbound)
            if session is None or node not in self._engine.mirror.nodes:
                continue
            alive.append(node)
            session.received_n = max(session.received_n, n)
            if holds_leases:
                session.echo_due = True
                session.wake.set()
            if session.hello_durable:
                self._settings.send_changes(session)
        self._inbound.mark_all_seen(alive)

    async def measure(self, node: NodeId, outbound: Outbound, load: pb.Load) -> None:
        if self._current(node, outbound) is not None and node in self._engine.mirror.nodes:
            await self._inbound.measure(node, wire.load_from_wire(load))

    def on_watcher_lost(self, relayed: Iterable[tuple[NodeId, Outbound]]) -> None:
        """The watcher of these sessions is lost or silent, which says nothing about their nodes.

        Each node has its whole grace, from now on, to connect elsewhere.
        """
        for node, outbound in relayed:
            session = self._current(node, outbound)
            if session is None:
                continue
            # Before the deletion from the table, so that readers fail now and not after their timeout.
            self._abandon_readings(session)
            # Removed here, so that the relayed session's own end
            # finds another or no session and reports no disconnect.
            del self._sessions[node]
            if node in self._engine.mirror.nodes:
                self._observe_unknown(node)

    def _current(self, node: NodeId, outbound: Outbound) -> NodeSession | None:
        """The node's session, if it is the one of this stream: the node may have reconnected elsewhere."""
        session = self._sessions.get(node)
        return session if session is not None and session.outbound is outbound else None

    # ---- after each commit

    def _on_commit(self, committed: Committed) -> None:
        # First: orders are computed from the state of exactly
        # this commit, before the next decision changes it.
        self._wake_touched(self._engine.mirror)
        deletes = committed.decided.deletes
        for session in [self._sessions.get(NodeId(node)) for node in deleted_names(deletes, "node/")]:
            if session is not None:
                session.end()
        for job in map(JobId, deleted_names(deletes, "job/")):
            for session in self._sessions.values():
                session.forget.append(job)
                session.wake.set()
        self._record_leave_positions(committed)

    def _wake_touched(self, mirror: Mirror) -> None:
        for node in mirror.touched:
            session = self._sessions.get(node)
            # Revoked nodes are handled first: no orders may be sent to them any more.
            if node in mirror.nodes and mirror.nodes[node].revoked:
                self._cut_off(node, session)
            elif session is not None:
                self._collect_or_end(session)
        mirror.touched.clear()

    def _cut_off(self, node: NodeId, session: NodeSession | None) -> None:
        """End every call of a revoked node; it is suspect from now on, even while its stream still ends."""
        self.pushes.end(node)
        if session is not None:
            session.refusal = node_messages.why_revoked(self._engine.mirror.nodes[node])
            session.end()
            # Now, not when the stream has ended: the node could delay that, and would keep its tasks.
            self._on_disconnect(session)

    def _record_leave_positions(self, committed: Committed) -> None:
        """Note where in the event stream each `node.left` of this commit is, for `leave_notices`."""
        for node, index in leave_notices.leave_events(committed.events):
            if node in self._engine.mirror.nodes:
                observed = partial(_set_left_at, node=node, at=(committed.revision, index))
                self._engine.observe(observed, (leave_notices.NAME, node))

    def _collect_or_end(self, session: NodeSession) -> None:
        """A fault in computing one node's orders ends its session and leaves the other nodes alone."""
        try:
            self._collect(session)
        except Exception as error:
            name = node_messages.display_name(self._engine.mirror, session.node)
            log.error("orders failed", node=name, error=repr(error))
            session.end()

    def _collect(self, session: NodeSession) -> None:
        orders = session.dispatch.orders(self._engine.mirror, session.node) if session.hello_durable else []
        if orders:
            session.orders += orders
            session.wake.set()


async def checked(messages: AsyncIterator[T]) -> AsyncIterator[T]:
    """The messages, each checked against the bounds of its fields. Raises BadField."""
    async for message in messages:
        bounds.check(message)
        yield message


def deleted_names(deletes: Iterable[str], prefix: str) -> Iterator[str]:
    """The names in keys PREFIX/NAME/spec. A namespace may be called `spec`, so the first part decides."""
    for key in deletes:
        if key.startswith(prefix) and key.endswith("/spec"):
            yield key.removeprefix(prefix).removesuffix("/spec")


def _expires_at_ms(pem: bytes) -> int:
    return round(certificates.period_of(pem).end.timestamp() * 1000)


def _connection_unknown(mirror: Mirror, node: NodeId, *, restart_silence: bool) -> None:
    mirror.connect(node, Connection.UNKNOWN)
    if restart_silence:
        mirror.mark_seen(node)


def _set_left_at(mirror: Mirror, node: NodeId, at: tuple[int, int]) -> None:
    mirror.nodes[node].left_at = at
