"""The door for agents: one stream a node, its words into the engine, orders out after each commit. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

import grpc
import structlog

from rota.engine.run import Committed, Engine
from rota.engine.state.mirror import Mirror
from rota.identity import authority, certificates
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import IdentityRefused
from rota.model.errors import (
    BadField,
    Conflict,
    NotAllowed,
    NotFound,
    RotaError,
    StoreFull,
    Unavailable,
    Withheld,
)
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.lifecycle import NodeState
from rota.model.limits import HEARTBEAT_MS, LOST_MS, ROTATION_SPREAD_MS, SUSPECT_MS
from rota.model.messages import (
    DrainRequest,
    Hello,
    JobOrders,
    JobReports,
    LogPiece,
    LogRequest,
    OutputsRequest,
)
from rota.model.node import Connection, NodeLoad, RefusedHandshake
from rota.model.plan import ADOPTION
from rota.model.result import ResultEndpoint
from rota.rules.log_pieces import joined
from rota.watcher import adoption, leave_notices, liveness, node_messages
from rota.watcher.adoption import BroughtJob
from rota.watcher.dispatch import DispatchState, unsealed
from rota.watcher.leadership import SINGLE_SERVER, LeadershipContext
from rota.watcher.logs import LogReadings, PushLimits, TailSink, is_own
from rota.watcher.report_interval import (
    DEFAULT_BOUNDS,
    IntervalBounds,
    effective_bounds,
    report_ms,
    spread_ms,
)
from rota.watcher.session import NodeSession, Outbound, SessionOver
from rota.wire import agent as wire
from rota.wire import bounds, forwarding
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

log = structlog.get_logger("rota.watcher")

_PIECE_BYTES = 256 << 10  # of a log, told at once
_SENT_PER_STEP = 100  # nodes, before something else may run: some milliseconds
_LAST_MESSAGE_SECONDS = 5.0  # for what is being said to a node that is about to be hung up on
SCHEDULER_WAKE = (
    "place",
    "round",
)  # the reconciler that may have room now, by name: components do not know each other
_ERRORS: dict[str, type[RotaError]] = {"not_found": NotFound, "conflict": Conflict}
T = TypeVar("T", pb.FromNode, pb.LogChunk)
Reports = Callable[[NodeId, JobId], ResultEndpoint | None]
Context = grpc.aio.ServicerContext[Any, Any]


class ReceivedMark(NamedTuple):
    """The last word of a session since a watcher told of it before."""

    node: NodeId
    outbound: Outbound
    n: int
    holds_leases: bool


async def _checked(messages: AsyncIterator[T]) -> AsyncIterator[T]:
    """BadField instead of the first message that holds more than it may."""
    async for message in messages:
        bounds.check(message)
        yield message


def no_result_endpoint(node: NodeId, job: JobId) -> ResultEndpoint | None:
    del node, job
    return None


class Unidentified(Exception):
    """A certificate names no node of ours, or cannot be used now; `code` is the status of the call."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class AgentService(pb_grpc.AgentServicer):
    """Serves agent.proto, and opens logs on nodes for whoever reads them."""

    def __init__(
        self,
        engine: Engine,
        authority: CertificateAuthority,
        lost_ms: int = LOST_MS,
        pace: IntervalBounds = DEFAULT_BOUNDS,
        tails: TailSink | None = None,
        *,
        leading: LeadershipContext = SINGLE_SERVER,
        reports: Reports = no_result_endpoint,
    ) -> None:
        self._reports = reports
        self._refused = leading.refused
        self._engine = engine
        self._leadership = leading
        self._report_interval = pace
        self._authority = authority
        self._lost_ms = lost_ms
        self._heartbeat_ms = min(HEARTBEAT_MS, lost_ms // 3)
        self._sessions: dict[NodeId, NodeSession] = {}
        self._invalid_messages: dict[NodeId, str] = {}  # what each node said last that cannot be
        self._readings = LogReadings()
        self._pushes = PushLimits()
        self._tails = tails
        engine.on_commit(self._on_commit)

    # ---- rpc (gRPC chooses these names)

    async def Connect(self, request_iterator: AsyncIterator[pb.FromNode], context: Context) -> None:
        node = await self._authenticate(context)
        await self.serve_session(node, request_iterator, context, self._certificate(context))

    async def serve_session(
        self,
        node: NodeId,
        words: AsyncIterator[pb.FromNode],
        line: Outbound,
        certificate: bytes = b"",
    ) -> None:
        """With a node whose identity is certain, until one side ends it, or the node says what cannot be.

        A worker of the gateway has no certificate.
        """
        try:
            await self._serve_session(node, _checked(words), line, certificate)
        except BadField as nonsense:
            reason = f"{nonsense} ({nonsense.hint})"
            self._log_invalid_message(node, reason)
            await line.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    async def _serve_session(
        self, node: NodeId, words: AsyncIterator[pb.FromNode], line: Outbound, certificate: bytes
    ) -> None:
        session = await self._handshake(node, words, line, certificate)
        try:
            async with asyncio.timeout(None) as session.limit, asyncio.TaskGroup() as halves:
                halves.create_task(self._receive_until_invalid(session, words))
                halves.create_task(self._send_loop(session, line))
        except* (SessionOver, TimeoutError):
            pass
        finally:
            session.limit = None
            self._on_disconnect(session)
        if session.invalid_message is not None:
            raise session.invalid_message
        if session.refusal is not None:
            await line.abort(grpc.StatusCode.PERMISSION_DENIED, session.refusal)

    async def _receive_until_invalid(self, session: NodeSession, words: AsyncIterator[pb.FromNode]) -> None:
        """Hear the node out, until it says what cannot be.

        A write that is cancelled halfway keeps the status from being sent after it: the other half finishes
        what it says first, unless the node does not take it.
        """
        try:
            await self._receive_loop(session, words)
        except BadField as nonsense:
            session.invalid_message = nonsense
            session.end()
            await asyncio.sleep(_LAST_MESSAGE_SECONDS)
            raise SessionOver from None

    async def PushLog(self, request_iterator: AsyncIterator[pb.LogChunk], context: Context) -> pb.LogDone:
        node = await self._authenticate(context)
        try:
            with self._pushes.limit_for(node) as limit:
                async with limit:
                    await self.relay_log(node, _checked(request_iterator))
        except BadField as nonsense:
            await self._refuse_call(node, nonsense, context)
        except TimeoutError:
            await self._authenticate(context)  # it may not push any more, and this says why
        return pb.LogDone()

    async def relay_log(self, node: NodeId, chunks: AsyncIterator[pb.LogChunk]) -> None:
        """Pass on what this node, whose identity is certain, answers to a reading that was asked of it."""
        await self._readings.relay(node, chunks)

    async def KeepTails(self, request: pb.Tails, context: Context) -> pb.TailsKept:
        node = await self._authenticate(context)
        try:
            bounds.check(request)
        except BadField as nonsense:
            await self._refuse_call(node, nonsense, context)
        pieces = wire.tails_from_wire(request)
        own = await self._engine.read(lambda mirror: [one for one in pieces if is_own(mirror, node, one)])
        if own and self._tails is not None:
            with contextlib.suppress(OSError):  # a full disk: the node has them, too
                await asyncio.to_thread(self._tails.store, own)
        return pb.TailsKept()

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewReply:
        """Also with a certificate that has expired: the handshake has proved that the node has its key."""
        node, now = await self._authenticate_even_expired(context), datetime.now(UTC)
        lapsed = self._why_lapsed(node, certificates.period_of(self._certificate(context)).end, now)
        if lapsed is not None:
            code = grpc.StatusCode.PERMISSION_DENIED
            self._refused.record(context, "renew a certificate", code, lapsed, f"node {node}")
            await context.abort(code, f"{lapsed}: join it again")
        try:
            like = None if request.follows else self._certificate(context)
            certificate = self._authority.sign_node(request.csr, node, self._name(node), now, like=like)
        except IdentityRefused as refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        return pb.RenewReply(certificate=certificate, ca=self._authority.bundle.pem)

    def _why_lapsed(self, node: NodeId, end: datetime, now: datetime) -> str | None:
        """Why a certificate that expired at `end` cannot be renewed; None: it can.

        An old key must not outlive its certificate: once a node has come with a newer one, only that counts.
        """
        name, until = self._name(node), end + self._authority.renewal_window
        if now < end:
            return None
        if now >= until:
            return f"the certificate of node {name} could be renewed until {until:%Y-%m-%d %H:%M} UTC"
        entry = self._engine.mirror.nodes.get(node)
        latest_ms = None if entry is None or entry.status is None else entry.status.certificate_expires_at_ms
        # One from the future was signed while the clock was ahead: it is not newer for that.
        last_ms = (now + authority.NODE_LIFE).timestamp() * 1000
        if latest_ms is not None and end.timestamp() * 1000 < latest_ms <= last_ms:
            return f"node {name} has used a newer certificate than this one, which expired on {end:%Y-%m-%d}"
        return None

    # ---- logs: what apiserver calls a LogSource

    async def open(self, node: NodeId, wanted: LogRequest) -> AsyncIterator[LogPiece]:
        session = self._sessions.get(node)
        if session is None:
            raise Unavailable(f"node {self._name(node)} is not connected")
        reading_id, reading = self._readings.open(session)
        session.send(
            pb.ToNode(epoch=self._engine.epoch, open_log=wire.log_request_to_wire(reading_id, wanted))
        )
        try:
            await reading.mark_answered()
            is_cut = False
            while some := await reading.receive():
                for chunk in some:
                    if chunk.error:
                        raise (Withheld if chunk.code == wire.WITHHELD else Unavailable)(chunk.error)
                    is_cut = wire.is_cut_behind(chunk, before=is_cut)
                said = (wire.log_piece_from_wire(chunk) for chunk in some if chunk.code != wire.DONE)
                for piece in joined(said, _PIECE_BYTES):
                    yield piece
            if is_cut:
                raise Unavailable(f"node {self._name(node)} went away while it sent the log")
        finally:
            self._readings.close(reading_id)
            session.send(pb.ToNode(epoch=self._engine.epoch, close_log=pb.CloseLog(id=reading_id)))

    # ---- what apiserver calls an OutputSource

    async def outputs(self, node: NodeId, wanted: OutputsRequest) -> AsyncGenerator[bytes, None]:
        session = self._sessions.get(node)
        if session is None:
            raise Unavailable(f"node {self._name(node)} is not connected")
        reading_id, reading = self._readings.open(session)
        asked = wire.outputs_request_to_wire(reading_id, wanted)
        session.send(pb.ToNode(epoch=self._engine.epoch, open_outputs=asked))
        try:
            await reading.mark_answered()
            while some := await reading.receive():
                for chunk in some:
                    if chunk.error:
                        raise _ERRORS.get(chunk.code, Unavailable)(chunk.error)
                    if chunk.code == wire.DONE:
                        return
                    if chunk.data:
                        yield chunk.data
            raise Unavailable(f"node {self._name(node)} went away while it sent them")
        finally:
            self._readings.close(reading_id)
            session.send(pb.ToNode(epoch=self._engine.epoch, close_log=pb.CloseLog(id=reading_id)))

    # ---- one connection

    async def _authenticate(self, context: Context) -> NodeId:
        """The node whose certificate the connection shows, if it is one of ours and may work with it now."""
        try:
            return await self.identify(self._certificate(context))
        except Unidentified as refusal:
            self._refused.record(context, "call as a node", refusal.code, str(refusal))
            await context.abort(refusal.code, str(refusal))

    async def _authenticate_even_expired(self, context: Context) -> NodeId:
        """The node whose certificate the connection shows, expired or not, if it is one of ours."""
        try:
            return await self._node_of(self._certificate(context))
        except Unidentified as refusal:
            self._refused.record(context, "renew a certificate", refusal.code, str(refusal))
            await context.abort(refusal.code, str(refusal))

    def _certificate(self, context: Context) -> bytes:
        """The node's certificate: the one that is shown, or the one that a watcher states for its agent."""
        shown = forwarding.shown_certificate(context)
        watcher = certificates.watcher_id_of(shown) if shown else None
        if watcher is None or not self._leadership.may_watch(watcher) or self._authority.is_retired(shown):
            return shown
        stated = forwarding.stated_certificate(context)
        return stated if self._authority.vouches_for(stated) else shown

    async def identify(self, pem: bytes) -> NodeId:
        """The node that this certificate of our CA names, if it may work with it now. Raises Unidentified."""
        node = await self._node_of(pem)
        end = certificates.period_of(pem).end
        if datetime.now(UTC) >= end:
            reason = f"the certificate of node {node} expired on {end:%Y-%m-%d %H:%M} UTC: renew it first"
            raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, reason)
        return node

    async def _node_of(self, pem: bytes) -> NodeId:
        if not pem:
            raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, "no client certificate")
        try:
            node = NodeId(certificates.node_id_of(pem))
        except ValueError as error:
            raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
        if self._authority.is_retired(pem):  # the connection is older than the end of the rotation
            reason = f"the CA that signed the certificate of node {node} is trusted no more"
            raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, reason)
        entry = await self._engine.read(lambda mirror: mirror.nodes.get(node))
        if entry is None:
            reason = f"node {node} is not known here: join it again"
            raise Unidentified(grpc.StatusCode.PERMISSION_DENIED, reason)
        if entry.revoked:
            raise Unidentified(grpc.StatusCode.PERMISSION_DENIED, node_messages.why_revoked(entry))
        return node

    async def _handshake(
        self, node: NodeId, words: AsyncIterator[pb.FromNode], line: Outbound, certificate: bytes
    ) -> NodeSession:
        first = await anext(aiter(words))
        if first.WhichOneof("word") != "hello":
            await line.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first word must be hello")
        word = self._hello(first.hello, certificate)
        reason = node_messages.why_refused(
            self._engine.mirror,
            node,
            word,
            epoch=self._engine.epoch,
            now_ms=self._engine.now_ms(),
            ttl_ms=self._leadership.ttl_ms,
        )
        self._log_refusal(node, None if reason is None else RefusedHandshake(reason, word.epoch_seen))
        if reason is not None:
            await line.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        before = self._sessions.get(node)
        if before is not None:
            # The hello of a connection that the node has left may have waited at a watcher.
            if before.is_newer_than(word.boot_id, word.session):
                await line.abort(grpc.StatusCode.ABORTED, "the node has connected again since")
            before.end()
        session = NodeSession(node, self._dispatch_state(node, word.inventory), line, certificate=certificate)
        session.boot_id, session.number, session.received_n = word.boot_id, word.session, first.n
        self._sessions[node] = session
        # Noted before it is decided on: a node back from silence would be judged by that silence.
        self._engine.observe(lambda mirror: mirror.connect(node, Connection.UP))
        self._engine.observe(lambda mirror: mirror.mark_seen(node))
        try:
            if self._leadership.specs is not None and first.hello.protocol >= wire.PROTOCOL_RESUBMITS:
                await self._adopt(session, word.inventory, words, line)
            await self._engine.ask(
                "watcher", lambda view, now: node_messages.on_hello(view, node, word, now), may_split=True
            )
            session.hello_durable = True
            await self._engine.read(lambda _: self._collect(session))  # since then more may be decided
        except (BadField, asyncio.CancelledError):  # it said what cannot be, or hung up before it was greeted
            self._on_disconnect(session)
            raise
        except (RotaError, TimeoutError) as error:
            self._on_disconnect(session)
            await line.abort(grpc.StatusCode.ABORTED, str(error))  # not as if nobody had been reached
        session.durable_n = first.n
        session.send(self._welcome(session))
        self._send_servers(session)  # at once: this server may be killed before the node says another word
        self._tell_trust(session)
        self._engine.observe(lambda mirror: mirror.mark_seen(node), (liveness.NAME, node), SCHEDULER_WAKE)
        return session

    def _hello(self, said: pb.Hello, certificate: bytes) -> Hello:
        word = wire.hello_from_wire(said)
        if not certificate:
            return word
        return word.with_certificate(_expires_at_ms(certificate), self._authority.signer_of(certificate))

    def _dispatch_state(self, node: NodeId, inventory: list[JobReports]) -> DispatchState:
        specs = self._leadership.specs
        sealed = unsealed if specs is None else partial(specs.seal, node)
        return DispatchState(inventory, partial(self._reports, node), sealed)

    async def _adopt(
        self,
        session: NodeSession,
        inventory: list[JobReports],
        words: AsyncIterator[pb.FromNode],
        line: Outbound,
    ) -> None:
        """Have the node bring back what this server does not know of its inventory: nothing of it is stopped.

        It is not greeted yet: what it says of these jobs, ends among them, is heard when they are known.
        """
        epoch, node = self._engine.epoch, session.node
        wanted = await self._engine.read(lambda mirror: adoption.unknown(mirror, node, inventory, epoch))
        if not wanted:
            return
        asked = pb.Resubmit(jobs=[one.job for one in wanted])
        await line.write(pb.ToNode(epoch=epoch, resubmit=asked))
        for one in wanted:
            spec = await self._resubmitted(session, one.job, words)
            if spec is not None:
                brought = BroughtJob(node, spec, one.reports, epoch)
                await self._engine.ask(ADOPTION, brought.adopt)

    async def _resubmitted(
        self, session: NodeSession, job: JobId, words: AsyncIterator[pb.FromNode]
    ) -> JobSpec | None:
        """The spec that the node has of this job; None: it has none that a server of this cluster sealed."""
        assert self._leadership.specs is not None
        async with asyncio.timeout(SUSPECT_MS / 1000):
            word = await anext(aiter(words))
        self._mark_seen(session.node)
        session.on_message(word)
        said = word.resubmission
        if word.WhichOneof("word") != "resubmission" or said.job != job:
            raise BadField("word", "is not what was asked for", f"send the resubmission of job {job}")
        spec = self._leadership.specs.unseal(session.node, job, said.record)
        if spec is None:
            log.warning("a job that a node runs cannot be adopted", node=self._name(session.node), job=job)
        return spec

    async def _refuse_call(self, node: NodeId, nonsense: BadField, context: Context) -> None:
        reason = f"{nonsense} ({nonsense.hint})"
        self._log_invalid_message(node, reason)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    def _log_invalid_message(self, node: NodeId, reason: str) -> None:
        """Logged once for each reason: the node calls again, and says it again."""
        if self._invalid_messages.get(node) != reason:
            self._invalid_messages[node] = reason
            log.error("a node says what cannot be", node=self._name(node), reason=reason)
        if node in self._engine.mirror.nodes:
            self._engine.observe(lambda mirror: mirror.nodes[node].set_refused(RefusedHandshake(reason, 0)))

    def _log_refusal(self, node: NodeId, why: RefusedHandshake | None) -> None:
        """For the operator: nodes call again and again, so it is logged when it changes."""
        if why is not None and why != self._engine.mirror.nodes[node].refused:
            log.error("a node is refused", node=self._name(node), reason=why.reason)
        self._engine.observe(lambda mirror: mirror.nodes[node].set_refused(why))

    async def _receive_loop(self, session: NodeSession, words: AsyncIterator[pb.FromNode]) -> None:
        node = session.node
        async for word in words:
            self._mark_seen(node)
            session.on_message(word)
            self._send_changes(session)
            match word.WhichOneof("word"):
                case "report":
                    await self._on_report(session, word)
                case "beat":
                    if word.beat.HasField("load"):
                        await self._measure(node, wire.load_from_wire(word.beat.load))
                case "drain":
                    await self._on_drain(node, wire.drain_from_wire(word.drain))
                case "leave":
                    await self.leave(node, wire.brief(word.leave.reason))
                    raise SessionOver
                case "away" | "again":
                    self._record_disconnect_reason(session, word)
                    raise SessionOver
                case _:
                    log.warning("unexpected word", node=node)
        raise SessionOver

    def _record_disconnect_reason(self, session: NodeSession, word: pb.FromNode) -> None:
        if word.WhichOneof("word") == "again":
            session.calls_again = True
            return
        node, reason = session.node, wire.brief(word.away.reason)
        self._engine.observe(lambda mirror: mirror.nodes[node].set_disconnect_reason(reason))

    def _send_changes(self, session: NodeSession) -> None:
        """What has changed for it: told when it says something, so that thousands are not at one moment."""
        if self._set_report_interval(session):
            pace = pb.Pace(report_interval_ms=session.report_ms, spread_ms=session.spread_ms)
            session.send(pb.ToNode(epoch=self._engine.epoch, pace=pace))
        self._send_servers(session)
        self._tell_trust(session)

    def _send_servers(self, session: NodeSession) -> None:
        if session.servers != (servers := self._leadership.servers()):
            session.servers = servers
            session.send(pb.ToNode(epoch=self._engine.epoch, servers=pb.Servers(addresses=servers)))

    def _tell_trust(self, session: NodeSession) -> None:
        """Nothing before the first rotation: a node trusts the one authority since it has joined."""
        if not session.certificate or not self._authority.has_rotated:
            return
        if session.ca != (ca := self._authority.bundle.pem):
            session.ca = ca
            spread = max(session.spread_ms, ROTATION_SPREAD_MS * len(self._engine.mirror.nodes))
            trust = pb.Trust(ca=ca, spread_ms=spread)
            session.send(pb.ToNode(epoch=self._engine.epoch, trust=trust))

    def end_retired(self) -> None:
        """End the connections of nodes whose certificate is of an authority that is trusted no more."""
        for session in list(self._sessions.values()):
            if session.certificate and self._authority.is_retired(session.certificate):
                self._pushes.end(session.node)
                session.end()

    async def send_servers(self) -> None:
        """Tell all nodes that are connected which servers there are; others have their turn in between."""
        for number, session in enumerate(list(self._sessions.values())):
            if session.servers:  # else it is told with its welcome, which comes first
                self._send_servers(session)
            if number % _SENT_PER_STEP == 0:
                await asyncio.sleep(0)

    def _mark_seen(self, node: NodeId) -> None:
        """It lives; if that was in doubt, somebody shall look."""
        entry = self._engine.mirror.nodes.get(node)
        if entry is None or entry.revoked:
            raise SessionOver  # it was deleted or revoked meanwhile
        wake = ((liveness.NAME, node),) if self._is_doubted(node) else ()
        self._engine.observe(lambda mirror: mirror.mark_seen(node), *wake)

    async def _on_report(self, session: NodeSession, word: pb.FromNode) -> None:
        node = session.node
        report = wire.report_from_wire(word.n, word.report)
        session.dispatch.on_reports(report.claims)
        if report.load is not None:
            await self._measure(node, report.load)
        try:
            await self._engine.ask(
                "watcher", lambda view, now: node_messages.on_report(view, node, report, now), may_split=True
            )
        except (Unavailable, StoreFull, NotAllowed):
            raise SessionOver from None  # not stored, so not acknowledged: the node resends it
        session.dispatch.on_durable(report.claims)
        session.durable_n = word.n
        session.wake.set()

    async def _on_drain(self, node: NodeId, word: DrainRequest) -> None:
        await self._engine.ask("watcher", lambda view, now: node_messages.on_drain(view, node, word, now))

    async def leave(self, node: NodeId, reason: str) -> None:
        await self._engine.ask(
            "watcher", lambda view, now: node_messages.on_leave(view, node, reason, now), may_split=True
        )

    async def _send_loop(self, session: NodeSession, line: Outbound) -> None:
        while True:
            await session.has_pending()
            if session.over:
                raise SessionOver
            words, session.messages = session.messages, []
            orders, session.orders = session.orders, []
            forget, session.forget = session.forget, []
            for word in words:
                await line.write(word)
            if orders or forget or session.echo_due or session.durable_n > session.acked_n:
                session.acked_n = session.durable_n
                session.echo_due = False
                await line.write(self._orders(session, orders, forget))

    def _orders(self, session: NodeSession, orders: list[JobOrders], forget: list[JobId]) -> pb.ToNode:
        return pb.ToNode(
            epoch=self._engine.epoch,
            orders=pb.Orders(
                echo=session.received_n,
                stored=session.durable_n,
                jobs=[wire.orders_to_wire(one) for one in orders],
                forget=forget,
                renews=self._leadership.may_renew(),
            ),
        )

    def _welcome(self, session: NodeSession) -> pb.ToNode:
        self._set_report_interval(session)
        welcome = pb.Welcome(
            name=self._name(session.node),
            heartbeat_ms=self._heartbeat_ms,
            report_interval_ms=session.report_ms,
            spread_ms=session.spread_ms,
        )
        return pb.ToNode(epoch=self._engine.epoch, welcome=welcome)

    def _set_report_interval(self, session: NodeSession) -> bool:
        node = session.node
        mirror = self._engine.mirror
        wanted = report_ms(mirror, node, effective_bounds(mirror.report_interval, self._report_interval))
        spread = spread_ms(len(mirror.nodes), self._lost_ms)
        if (wanted, spread) == (session.report_ms, session.spread_ms):
            return False
        session.report_ms, session.spread_ms = wanted, spread
        self._engine.observe(lambda mirror: mirror.nodes[node].set_report_interval(wanted))
        return True

    async def _measure(self, node: NodeId, load: NodeLoad) -> None:
        self._engine.observe(lambda mirror: mirror.measure(node, load), SCHEDULER_WAKE)
        status = self._engine.mirror.nodes[node].status
        if status is not None and status.shortage != load.shortage:
            with contextlib.suppress(Unavailable, StoreFull):  # not stored: it says so again
                await self._engine.ask(
                    "watcher", lambda view, _: node_messages.on_shortage(view, node, load.shortage)
                )

    def _on_disconnect(self, session: NodeSession) -> None:
        """The stream is broken: the node is suspect at once, unless it calls again, or has done so."""
        self._readings.abandon_all(session, f"node {self._name(session.node)} is not connected any more")
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            node = session.node
            if node not in self._engine.mirror.nodes:
                return  # it was deleted: to note something of it would make it anew
            if session.calls_again:
                certain = not self._is_doubted(node)
                self._engine.observe(partial(_cut, node=node, certain=certain), (liveness.NAME, node))
                return
            self._engine.observe(lambda mirror: mirror.connect(node, Connection.DOWN), (liveness.NAME, node))

    # ---- what watchers lift: words and silence of many nodes at once

    def on_relayed_heartbeats(self, heard: Iterable[ReceivedMark]) -> None:
        """Beats that a watcher has answered itself; those of sessions that are over are passed over."""
        alive: list[NodeId] = []
        for node, line, n, holds_leases in heard:
            session = self._sessions.get(node)
            if session is None or session.outbound is not line or node not in self._engine.mirror.nodes:
                continue
            alive.append(node)
            session.received_n = max(session.received_n, n)
            if holds_leases:
                session.echo_due = True
                session.wake.set()
            if session.hello_durable:
                self._send_changes(session)
        doubted = [(liveness.NAME, node) for node in alive if self._is_doubted(node)]
        self._engine.observe(lambda mirror: _mark_all_seen(mirror, alive), *doubted)

    async def measure(self, node: NodeId, line: Outbound, load: pb.Load) -> None:
        session = self._sessions.get(node)
        if session is not None and session.outbound is line and node in self._engine.mirror.nodes:
            await self._measure(node, wire.load_from_wire(load))

    def on_watcher_lost(self, lines: Iterable[tuple[NodeId, Outbound]]) -> None:
        """The watcher of these sessions is gone or silent, which says nothing of their nodes.

        Their silence counts from now, so that each has its whole grace to call elsewhere. Of a node that was
        in doubt before it counts on.
        """
        for node, line in lines:
            session = self._sessions.get(node)
            if session is None or session.outbound is not line:
                continue
            self._readings.abandon_all(session, f"node {self._name(node)} is not connected any more")
            del self._sessions[node]
            if node in self._engine.mirror.nodes:
                certain = not self._is_doubted(node)
                self._engine.observe(partial(_cut, node=node, certain=certain), (liveness.NAME, node))

    def _is_doubted(self, node: NodeId) -> bool:
        status = self._engine.mirror.nodes[node].status
        return status is not None and status.state is not NodeState.READY

    # ---- after each commit

    def _on_commit(self, committed: Committed) -> None:
        self._wake_touched(self._engine.mirror)
        deletes = committed.decided.deletes
        for session in [self._sessions.get(NodeId(node)) for node in _named(deletes, "node/")]:
            if session is not None:
                session.end()
        for job in map(JobId, _named(deletes, "job/")):
            if self._tails is not None:
                self._tails.forget(job)
            for session in self._sessions.values():
                session.forget.append(job)
                session.wake.set()
        self._record_departures(committed)

    def _wake_touched(self, mirror: Mirror) -> None:
        for node in mirror.touched:
            session = self._sessions.get(node)
            if node in mirror.nodes and mirror.nodes[node].revoked:
                self._cut_off(node, session)
            elif session is not None:
                self._collect_or_end(session)
        mirror.touched.clear()

    def _cut_off(self, node: NodeId, session: NodeSession | None) -> None:
        """End every call of a node that was revoked; it is suspect from now on, whatever it still says."""
        self._pushes.end(node)
        if session is not None:
            session.refusal = node_messages.why_revoked(self._engine.mirror.nodes[node])
            session.end()
            self._on_disconnect(session)

    def _record_departures(self, committed: Committed) -> None:
        for node, index in leave_notices.leave_events(committed.events):
            if node in self._engine.mirror.nodes:
                note = partial(_set_left_at, node=node, at=(committed.revision, index))
                self._engine.observe(note, (leave_notices.NAME, node))

    def _collect_or_end(self, session: NodeSession) -> None:
        """Orders that cannot be computed cost one node its connection, not the others their orders."""
        try:
            self._collect(session)
        except Exception as error:
            log.error("orders failed", node=self._name(session.node), error=repr(error))
            session.end()

    def _collect(self, session: NodeSession) -> None:
        orders = session.dispatch.orders(self._engine.mirror, session.node) if session.hello_durable else []
        if orders:
            session.orders += orders
            session.wake.set()

    def _name(self, node: NodeId) -> str:
        entry = self._engine.mirror.nodes.get(node)
        return node if entry is None else entry.spec.name


def _expires_at_ms(pem: bytes) -> int:
    return round(certificates.period_of(pem).end.timestamp() * 1000)


def _mark_all_seen(mirror: Mirror, nodes: list[NodeId]) -> None:
    for node in nodes:
        mirror.mark_seen(node)


def _cut(mirror: Mirror, node: NodeId, *, certain: bool) -> None:
    mirror.connect(node, Connection.UNKNOWN)
    if certain:
        mirror.mark_seen(node)


def _named(deletes: Iterable[str], prefix: str) -> Iterator[str]:
    """The names in keys PREFIX/NAME/spec. A namespace may be called `spec`, so the first part decides."""
    for key in deletes:
        if key.startswith(prefix) and key.endswith("/spec"):
            yield key.removeprefix(prefix).removesuffix("/spec")


def _set_left_at(mirror: Mirror, node: NodeId, at: tuple[int, int]) -> None:
    mirror.nodes[node].left_at = at
