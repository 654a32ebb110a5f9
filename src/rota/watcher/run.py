"""The door for agents: one stream a node, its words into the engine, orders out after each commit. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import grpc
import structlog

from rota.engine.run import Committed, Engine
from rota.identity import authority, certificates
from rota.identity.authority import Authority
from rota.identity.errors import Refused
from rota.model.errors import BadField, Conflict, NotFound, RotaError, StoreFull, Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import HEARTBEAT_MS, LOST_MS
from rota.model.node import Link, Load, Unwelcome
from rota.model.pieces import joined
from rota.model.result import ReportDoor
from rota.model.sync import Drain, JobOrders, LogPiece, LogRequest, OutputsRequest
from rota.watcher import liveness, sessions
from rota.watcher.leading import ALONE, Leading
from rota.watcher.logs import LogReadings, TailStore, is_own
from rota.watcher.pace import BOUNDS, Bounds, bounds_now, report_ms, spread_ms
from rota.watcher.session import Line, Over, Session
from rota.watcher.told import Told
from rota.wire import agent as wire
from rota.wire import bounds
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

log = structlog.get_logger("rota.watcher")

_PIECE_BYTES = 256 << 10  # of a log, told at once
_LAST_WORD_SECONDS = 5.0  # for what is being said to a node that is about to be hung up on
PLACE = (
    "place",
    "round",
)  # the reconciler that may have room now, by name: components do not know each other
_ERRORS: dict[str, type[RotaError]] = {"not_found": NotFound, "conflict": Conflict}
T = TypeVar("T", pb.FromNode, pb.LogChunk)
Reports = Callable[[NodeId, JobId], ReportDoor | None]
Context = grpc.aio.ServicerContext[Any, Any]


async def _checked(messages: AsyncIterator[T]) -> AsyncIterator[T]:
    """BadField instead of the first message that holds more than it may."""
    async for message in messages:
        bounds.check(message)
        yield message


def nowhere(node: NodeId, job: JobId) -> ReportDoor | None:
    del node, job
    return None


class AgentDoor(pb_grpc.AgentServicer):
    """Serves agent.proto, and opens logs on nodes for whoever reads them."""

    def __init__(
        self,
        engine: Engine,
        authority: Authority,
        lost_ms: int = LOST_MS,
        pace: Bounds = BOUNDS,
        tails: TailStore | None = None,
        *,
        leading: Leading = ALONE,
        reports: Reports = nowhere,
    ) -> None:
        self._reports = reports
        self._engine = engine
        self._leading = leading
        self._pace = pace
        self._authority = authority
        self._lost_ms = lost_ms
        self._heartbeat_ms = min(HEARTBEAT_MS, lost_ms // 3)
        self._sessions: dict[NodeId, Session] = {}
        self._nonsense: dict[NodeId, str] = {}  # what each node said last that cannot be
        self._readings = LogReadings()
        self._tails = tails
        engine.listen(self._committed)

    # ---- rpc (gRPC chooses these names)

    async def Connect(self, request_iterator: AsyncIterator[pb.FromNode], context: Context) -> None:
        await self.converse(await self._who(context), request_iterator, context, _expires_at_ms(context))

    async def converse(
        self,
        node: NodeId,
        words: AsyncIterator[pb.FromNode],
        line: Line,
        expires_at_ms: int | None = None,
    ) -> None:
        """With a node whose identity is certain, until one side ends it, or the node says what cannot be.

        Without an expiry the node has no certificate, as a worker of the gateway.
        """
        try:
            await self._converse(node, _checked(words), line, expires_at_ms)
        except BadField as nonsense:
            reason = f"{nonsense} ({nonsense.hint})"
            self._note_nonsense(node, reason)
            await line.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    async def _converse(
        self, node: NodeId, words: AsyncIterator[pb.FromNode], line: Line, expires_at_ms: int | None
    ) -> None:
        session = await self._greet(node, words, line, expires_at_ms)
        try:
            async with asyncio.TaskGroup() as halves:
                halves.create_task(self._listen(session, words))
                halves.create_task(self._speak(session, line))
        except* Over:
            pass
        finally:
            self._part(session)
        if session.nonsense is not None:
            raise session.nonsense

    async def _listen(self, session: Session, words: AsyncIterator[pb.FromNode]) -> None:
        """Hear the node out, until it says what cannot be.

        A write that is cancelled halfway keeps the status from being sent after it: the other half finishes
        what it says first, unless the node does not take it.
        """
        try:
            await self._hear(session, words)
        except BadField as nonsense:
            session.nonsense = nonsense
            session.end()
            await asyncio.sleep(_LAST_WORD_SECONDS)
            raise Over from None

    async def PushLog(self, request_iterator: AsyncIterator[pb.LogChunk], context: Context) -> pb.LogDone:
        node = await self._who(context)
        try:
            await self.take_log(_checked(request_iterator))
        except BadField as nonsense:
            await self._refuse_call(node, nonsense, context)
        return pb.LogDone()

    async def take_log(self, chunks: AsyncIterator[pb.LogChunk]) -> None:
        await self._readings.take(chunks)

    async def KeepTails(self, request: pb.Tails, context: Context) -> pb.TailsKept:
        node = await self._who(context)
        try:
            bounds.check(request)
        except BadField as nonsense:
            await self._refuse_call(node, nonsense, context)
        pieces = wire.tails_from_wire(request)
        own = await self._engine.read(lambda mirror: [one for one in pieces if is_own(mirror, node, one)])
        if own and self._tails is not None:
            with contextlib.suppress(OSError):  # a full disk: the node has them, too
                await asyncio.to_thread(self._tails.keep, own)
        return pb.TailsKept()

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewReply:
        """Also with a certificate that has expired: the handshake has proved that the node has its key."""
        node, now = await self._known(context), datetime.now(UTC)
        lapsed = self._why_lapsed(node, certificates.period_of(_certificate(context)).end, now)
        if lapsed is not None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{lapsed}: join it again")
        try:
            certificate = self._authority.sign_node(request.csr, node, self._name(node), now)
        except Refused as refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        return pb.RenewReply(certificate=certificate, ca=self._authority.ca_pem)

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
        session.say(
            pb.ToNode(epoch=self._engine.epoch, open_log=wire.log_request_to_wire(reading_id, wanted))
        )
        try:
            await reading.begin()
            is_cut = False
            while some := await reading.take():
                for chunk in some:
                    if chunk.error:
                        raise Unavailable(chunk.error)
                    is_cut = wire.is_cut_behind(chunk, before=is_cut)
                said = (wire.log_piece_from_wire(chunk) for chunk in some if chunk.code != wire.DONE)
                for piece in joined(said, _PIECE_BYTES):
                    yield piece
            if is_cut:
                raise Unavailable(f"node {self._name(node)} went away while it sent the log")
        finally:
            self._readings.close(reading_id)
            session.say(pb.ToNode(epoch=self._engine.epoch, close_log=pb.CloseLog(id=reading_id)))

    # ---- what apiserver calls an OutputSource

    async def outputs(self, node: NodeId, wanted: OutputsRequest) -> AsyncGenerator[bytes, None]:
        session = self._sessions.get(node)
        if session is None:
            raise Unavailable(f"node {self._name(node)} is not connected")
        reading_id, reading = self._readings.open(session)
        asked = wire.outputs_request_to_wire(reading_id, wanted)
        session.say(pb.ToNode(epoch=self._engine.epoch, open_outputs=asked))
        try:
            await reading.begin()
            while some := await reading.take():
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
            session.say(pb.ToNode(epoch=self._engine.epoch, close_log=pb.CloseLog(id=reading_id)))

    # ---- one connection

    async def _who(self, context: Context) -> NodeId:
        """The node whose certificate the connection shows, if it is one of ours and may work with it now."""
        node = await self._known(context)
        end = certificates.period_of(_certificate(context)).end
        if datetime.now(UTC) >= end:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                f"the certificate of node {node} expired on {end:%Y-%m-%d %H:%M} UTC: renew it first",
            )
        return node

    async def _known(self, context: Context) -> NodeId:
        """The node whose certificate the connection shows, expired or not, if it is one of ours."""
        pem = _certificate(context)
        if not pem:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no client certificate")
        try:
            node = NodeId(certificates.node_id_of(pem))
        except ValueError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        known = await self._engine.read(lambda mirror: node in mirror.nodes)
        if not known:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"node {node} is not known here: join it again"
            )
        return node

    async def _greet(
        self, node: NodeId, words: AsyncIterator[pb.FromNode], line: Line, expires_at_ms: int | None
    ) -> Session:
        first = await anext(aiter(words))
        if first.WhichOneof("word") != "hello":
            await line.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first word must be hello")
        word = wire.hello_from_wire(first.hello).with_certificate(expires_at_ms)
        reason = sessions.unwelcome(
            self._engine.mirror,
            node,
            word,
            epoch=self._engine.epoch,
            now_ms=self._engine.now_ms(),
            ttl_ms=self._leading.ttl_ms,
        )
        self._note_refusal(node, None if reason is None else Unwelcome(reason, word.epoch_seen))
        if reason is not None:
            await line.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        before = self._sessions.get(node)
        if before is not None:
            before.end()
        session = self._sessions[node] = Session(node, Told(word.inventory, partial(self._reports, node)))
        session.heard_n = first.n
        # Noted before it is decided on: a node back from silence would be judged by that silence.
        self._engine.observe(lambda mirror: mirror.connect(node, Link.UP))
        self._engine.observe(lambda mirror: mirror.hear(node))
        try:
            await self._engine.ask(
                "watcher", lambda view, now: sessions.hello(view, node, word, now), may_split=True
            )
            session.greeted = True
            await self._engine.read(lambda _: self._collect(session))  # since then more may be decided
        except RotaError as error:
            self._part(session)
            await line.abort(grpc.StatusCode.ABORTED, str(error))  # not as if nobody had been reached
        except asyncio.CancelledError:  # it hung up before it was greeted
            self._part(session)
            raise
        session.stored_n = first.n
        session.say(self._welcome(session))
        self._engine.observe(lambda mirror: mirror.hear(node), (liveness.NAME, node), PLACE)
        return session

    async def _refuse_call(self, node: NodeId, nonsense: BadField, context: Context) -> None:
        reason = f"{nonsense} ({nonsense.hint})"
        self._note_nonsense(node, reason)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    def _note_nonsense(self, node: NodeId, reason: str) -> None:
        """Logged once for each reason: the node calls again, and says it again."""
        if self._nonsense.get(node) != reason:
            self._nonsense[node] = reason
            log.error("a node says what cannot be", node=self._name(node), reason=reason)
        if node in self._engine.mirror.nodes:
            self._engine.observe(lambda mirror: mirror.nodes[node].refuse(Unwelcome(reason, 0)))

    def _note_refusal(self, node: NodeId, why: Unwelcome | None) -> None:
        """For the operator: nodes call again and again, so it is logged when it changes."""
        if why is not None and why != self._engine.mirror.nodes[node].refused:
            log.error("a node is refused", node=self._name(node), reason=why.reason)
        self._engine.observe(lambda mirror: mirror.nodes[node].refuse(why))

    async def _hear(self, session: Session, words: AsyncIterator[pb.FromNode]) -> None:
        node = session.node
        async for word in words:
            self._notice(node)
            session.hear(word)
            self._tell_news(session)
            match word.WhichOneof("word"):
                case "report":
                    await self._report(session, word)
                case "beat":
                    if word.beat.HasField("load"):
                        await self._measure(node, wire.load_from_wire(word.beat.load))
                case "drain":
                    await self._drain(node, wire.drain_from_wire(word.drain))
                case "leave":
                    await self.leave(node, wire.brief(word.leave.reason))
                    raise Over
                case _:
                    log.warning("unexpected word", node=node)
        raise Over

    def _tell_news(self, session: Session) -> None:
        """What has changed for it: told when it says something, so that thousands are not at one moment."""
        if self._set_pace(session):
            pace = pb.Pace(report_interval_ms=session.report_ms, spread_ms=session.spread_ms)
            session.say(pb.ToNode(epoch=self._engine.epoch, pace=pace))
        if session.servers != (servers := self._leading.servers()):
            session.servers = servers
            session.say(pb.ToNode(epoch=self._engine.epoch, servers=pb.Servers(addresses=servers)))

    def _notice(self, node: NodeId) -> None:
        """It lives; if that was in doubt, somebody shall look."""
        if node not in self._engine.mirror.nodes:
            raise Over  # it was deleted meanwhile
        status = self._engine.mirror.nodes[node].status
        doubted = status is not None and status.state is not NodeState.READY
        self._engine.observe(lambda mirror: mirror.hear(node), *(((liveness.NAME, node),) if doubted else ()))

    async def _report(self, session: Session, word: pb.FromNode) -> None:
        node = session.node
        report = wire.report_from_wire(word.n, word.report)
        session.told.heard(report.claims)
        if report.load is not None:
            await self._measure(node, report.load)
        try:
            await self._engine.ask(
                "watcher", lambda view, now: sessions.report(view, node, report, now), may_split=True
            )
        except (Unavailable, StoreFull):
            raise Over from None  # not stored, so not acknowledged: the node says it again when it calls
        session.told.stored(report.claims)
        session.stored_n = word.n
        session.wake.set()

    async def _drain(self, node: NodeId, word: Drain) -> None:
        await self._engine.ask("watcher", lambda view, now: sessions.drain(view, node, word, now))

    async def leave(self, node: NodeId, reason: str) -> None:
        await self._engine.ask(
            "watcher", lambda view, now: sessions.leave(view, node, reason, now), may_split=True
        )

    async def _speak(self, session: Session, line: Line) -> None:
        while True:
            await session.something_to_say()
            if session.over:
                raise Over
            words, session.words = session.words, []
            orders, session.orders = session.orders, []
            forget, session.forget = session.forget, []
            for word in words:
                await line.write(word)
            if orders or forget or session.echo_due or session.stored_n > session.stored_told:
                session.stored_told = session.stored_n
                session.echo_due = False
                await line.write(self._orders(session, orders, forget))

    def _orders(self, session: Session, orders: list[JobOrders], forget: list[JobId]) -> pb.ToNode:
        return pb.ToNode(
            epoch=self._engine.epoch,
            orders=pb.Orders(
                echo=session.heard_n,
                stored=session.stored_n,
                jobs=[wire.orders_to_wire(one) for one in orders],
                forget=forget,
                renews=self._leading.may_renew(),
            ),
        )

    def _welcome(self, session: Session) -> pb.ToNode:
        self._set_pace(session)
        welcome = pb.Welcome(
            name=self._name(session.node),
            heartbeat_ms=self._heartbeat_ms,
            report_interval_ms=session.report_ms,
            spread_ms=session.spread_ms,
        )
        return pb.ToNode(epoch=self._engine.epoch, welcome=welcome)

    def _set_pace(self, session: Session) -> bool:
        node = session.node
        mirror = self._engine.mirror
        wanted = report_ms(mirror, node, bounds_now(mirror.pace, self._pace))
        spread = spread_ms(len(mirror.nodes), self._lost_ms)
        if (wanted, spread) == (session.report_ms, session.spread_ms):
            return False
        session.report_ms, session.spread_ms = wanted, spread
        self._engine.observe(lambda mirror: mirror.nodes[node].paced(wanted))
        return True

    async def _measure(self, node: NodeId, load: Load) -> None:
        self._engine.observe(lambda mirror: mirror.measure(node, load), PLACE)
        status = self._engine.mirror.nodes[node].status
        if status is not None and status.shortage != load.shortage:
            with contextlib.suppress(Unavailable, StoreFull):  # not stored: it says so again
                await self._engine.ask(
                    "watcher", lambda view, _: sessions.shortage(view, node, load.shortage)
                )

    def _part(self, session: Session) -> None:
        """The stream is broken: the node is suspect at once, unless it has already called again."""
        self._readings.give_up(session, f"node {self._name(session.node)} is not connected any more")
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            node = session.node
            if node not in self._engine.mirror.nodes:
                return  # it was deleted: to note something of it would make it anew
            self._engine.observe(lambda mirror: mirror.connect(node, Link.DOWN), (liveness.NAME, node))

    # ---- after each commit

    def _committed(self, committed: Committed) -> None:
        mirror = self._engine.mirror
        for node in mirror.touched:
            session = self._sessions.get(node)
            if session is not None:
                self._collect_or_end(session)
        mirror.touched.clear()
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

    def _collect_or_end(self, session: Session) -> None:
        """Orders that cannot be computed cost one node its connection, not the others their orders."""
        try:
            self._collect(session)
        except Exception as error:
            log.error("orders failed", node=self._name(session.node), error=repr(error))
            session.end()

    def _collect(self, session: Session) -> None:
        orders = session.told.orders(self._engine.mirror, session.node) if session.greeted else []
        if orders:
            session.orders += orders
            session.wake.set()

    def _name(self, node: NodeId) -> str:
        entry = self._engine.mirror.nodes.get(node)
        return node if entry is None else entry.spec.name


def _expires_at_ms(context: Context) -> int | None:
    pem = _certificate(context)
    return round(certificates.period_of(pem).end.timestamp() * 1000) if pem else None


def _certificate(context: Context) -> bytes:
    """The one that the caller has shown, PEM; empty: none."""
    return bytes(next(iter(context.auth_context().get("x509_pem_cert", ())), b""))


def _named(deletes: Iterable[str], prefix: str) -> Iterator[str]:
    """The names in keys PREFIX/NAME/spec. A namespace may be called `spec`, so the first part decides."""
    for key in deletes:
        if key.startswith(prefix) and key.endswith("/spec"):
            yield key.removeprefix(prefix).removesuffix("/spec")
