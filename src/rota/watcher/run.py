"""The door for agents: one stream a node, its words into the engine, orders out after each commit. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

import grpc
import structlog

from rota.engine.mirror import Mirror
from rota.engine.run import Committed, Engine
from rota.identity import authority, certificates
from rota.identity.authority import Authority
from rota.identity.errors import Refused
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
from rota.model.node import Link, Load, Unwelcome
from rota.model.pieces import joined
from rota.model.plan import ADOPTION
from rota.model.result import ReportDoor
from rota.model.sync import Drain, Hello, JobClaims, JobOrders, LogPiece, LogRequest, OutputsRequest
from rota.watcher import adoption, departures, liveness, sessions
from rota.watcher.adoption import Brought
from rota.watcher.leading import ALONE, Leading
from rota.watcher.logs import LogReadings, Pushes, TailStore, is_own
from rota.watcher.pace import BOUNDS, Bounds, bounds_now, report_ms, spread_ms
from rota.watcher.session import Line, Over, Session
from rota.watcher.told import Told, unsealed
from rota.wire import agent as wire
from rota.wire import bounds, forwarding
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

log = structlog.get_logger("rota.watcher")

_PIECE_BYTES = 256 << 10  # of a log, told at once
_TOLD_AT_ONCE = 100  # nodes, before something else may run: some milliseconds
_LAST_WORD_SECONDS = 5.0  # for what is being said to a node that is about to be hung up on
PLACE = (
    "place",
    "round",
)  # the reconciler that may have room now, by name: components do not know each other
_ERRORS: dict[str, type[RotaError]] = {"not_found": NotFound, "conflict": Conflict}
T = TypeVar("T", pb.FromNode, pb.LogChunk)
Reports = Callable[[NodeId, JobId], ReportDoor | None]
Context = grpc.aio.ServicerContext[Any, Any]


class Heard(NamedTuple):
    """The last word of a session since a watcher told of it before."""

    node: NodeId
    line: Line
    n: int
    holds_leases: bool


async def _checked(messages: AsyncIterator[T]) -> AsyncIterator[T]:
    """BadField instead of the first message that holds more than it may."""
    async for message in messages:
        bounds.check(message)
        yield message


def nowhere(node: NodeId, job: JobId) -> ReportDoor | None:
    del node, job
    return None


class Unidentified(Exception):
    """A certificate names no node of ours, or cannot be used now; `code` is the status of the call."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


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
        self._refused = leading.refused
        self._engine = engine
        self._leading = leading
        self._pace = pace
        self._authority = authority
        self._lost_ms = lost_ms
        self._heartbeat_ms = min(HEARTBEAT_MS, lost_ms // 3)
        self._sessions: dict[NodeId, Session] = {}
        self._nonsense: dict[NodeId, str] = {}  # what each node said last that cannot be
        self._readings = LogReadings()
        self._pushes = Pushes()
        self._tails = tails
        engine.listen(self._committed)

    # ---- rpc (gRPC chooses these names)

    async def Connect(self, request_iterator: AsyncIterator[pb.FromNode], context: Context) -> None:
        node = await self._who(context)
        await self.converse(node, request_iterator, context, self._certificate(context))

    async def converse(
        self,
        node: NodeId,
        words: AsyncIterator[pb.FromNode],
        line: Line,
        certificate: bytes = b"",
    ) -> None:
        """With a node whose identity is certain, until one side ends it, or the node says what cannot be.

        A worker of the gateway has no certificate.
        """
        try:
            await self._converse(node, _checked(words), line, certificate)
        except BadField as nonsense:
            reason = f"{nonsense} ({nonsense.hint})"
            self._note_nonsense(node, reason)
            await line.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    async def _converse(
        self, node: NodeId, words: AsyncIterator[pb.FromNode], line: Line, certificate: bytes
    ) -> None:
        session = await self._greet(node, words, line, certificate)
        try:
            async with asyncio.timeout(None) as session.limit, asyncio.TaskGroup() as halves:
                halves.create_task(self._listen(session, words))
                halves.create_task(self._speak(session, line))
        except* (Over, TimeoutError):
            pass
        finally:
            session.limit = None
            self._part(session)
        if session.nonsense is not None:
            raise session.nonsense
        if session.refusal is not None:
            await line.abort(grpc.StatusCode.PERMISSION_DENIED, session.refusal)

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
            with self._pushes.of(node) as limit:
                async with limit:
                    await self.take_log(node, _checked(request_iterator))
        except BadField as nonsense:
            await self._refuse_call(node, nonsense, context)
        except TimeoutError:
            await self._who(context)  # it may not push any more, and this says why
        return pb.LogDone()

    async def take_log(self, node: NodeId, chunks: AsyncIterator[pb.LogChunk]) -> None:
        """Pass on what this node, whose identity is certain, answers to a reading that was asked of it."""
        await self._readings.take(node, chunks)

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
        lapsed = self._why_lapsed(node, certificates.period_of(self._certificate(context)).end, now)
        if lapsed is not None:
            code = grpc.StatusCode.PERMISSION_DENIED
            self._refused.note(context, "renew a certificate", code, lapsed, f"node {node}")
            await context.abort(code, f"{lapsed}: join it again")
        try:
            like = None if request.follows else self._certificate(context)
            certificate = self._authority.sign_node(request.csr, node, self._name(node), now, like=like)
        except Refused as refusal:
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
        session.say(
            pb.ToNode(epoch=self._engine.epoch, open_log=wire.log_request_to_wire(reading_id, wanted))
        )
        try:
            await reading.begin()
            is_cut = False
            while some := await reading.take():
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
        try:
            return await self.identify(self._certificate(context))
        except Unidentified as refusal:
            self._refused.note(context, "call as a node", refusal.code, str(refusal))
            await context.abort(refusal.code, str(refusal))

    async def _known(self, context: Context) -> NodeId:
        """The node whose certificate the connection shows, expired or not, if it is one of ours."""
        try:
            return await self._node_of(self._certificate(context))
        except Unidentified as refusal:
            self._refused.note(context, "renew a certificate", refusal.code, str(refusal))
            await context.abort(refusal.code, str(refusal))

    def _certificate(self, context: Context) -> bytes:
        """The node's certificate: the one that is shown, or the one that a watcher states for its agent."""
        shown = forwarding.shown_certificate(context)
        watcher = certificates.watcher_id_of(shown) if shown else None
        if watcher is None or not self._leading.may_watch(watcher) or self._authority.is_retired(shown):
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
            raise Unidentified(grpc.StatusCode.PERMISSION_DENIED, sessions.why_revoked(entry))
        return node

    async def _greet(
        self, node: NodeId, words: AsyncIterator[pb.FromNode], line: Line, certificate: bytes
    ) -> Session:
        first = await anext(aiter(words))
        if first.WhichOneof("word") != "hello":
            await line.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first word must be hello")
        word = self._hello(first.hello, certificate)
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
            # The hello of a connection that the node has left may have waited at a watcher.
            if before.is_newer_than(word.boot_id, word.session):
                await line.abort(grpc.StatusCode.ABORTED, "the node has connected again since")
            before.end()
        session = Session(node, self._told(node, word.inventory), line, certificate=certificate)
        session.boot_id, session.number, session.heard_n = word.boot_id, word.session, first.n
        self._sessions[node] = session
        # Noted before it is decided on: a node back from silence would be judged by that silence.
        self._engine.observe(lambda mirror: mirror.connect(node, Link.UP))
        self._engine.observe(lambda mirror: mirror.hear(node))
        try:
            if self._leading.specs is not None and first.hello.protocol >= wire.PROTOCOL_RESUBMITS:
                await self._adopt(session, word.inventory, words, line)
            await self._engine.ask(
                "watcher", lambda view, now: sessions.hello(view, node, word, now), may_split=True
            )
            session.greeted = True
            await self._engine.read(lambda _: self._collect(session))  # since then more may be decided
        except (BadField, asyncio.CancelledError):  # it said what cannot be, or hung up before it was greeted
            self._part(session)
            raise
        except (RotaError, TimeoutError) as error:
            self._part(session)
            await line.abort(grpc.StatusCode.ABORTED, str(error))  # not as if nobody had been reached
        session.stored_n = first.n
        session.say(self._welcome(session))
        self._tell_servers(session)  # at once: this server may be killed before the node says another word
        self._tell_trust(session)
        self._engine.observe(lambda mirror: mirror.hear(node), (liveness.NAME, node), PLACE)
        return session

    def _hello(self, said: pb.Hello, certificate: bytes) -> Hello:
        word = wire.hello_from_wire(said)
        if not certificate:
            return word
        return word.with_certificate(_expires_at_ms(certificate), self._authority.signer_of(certificate))

    def _told(self, node: NodeId, inventory: list[JobClaims]) -> Told:
        specs = self._leading.specs
        sealed = unsealed if specs is None else partial(specs.seal, node)
        return Told(inventory, partial(self._reports, node), sealed)

    async def _adopt(
        self, session: Session, inventory: list[JobClaims], words: AsyncIterator[pb.FromNode], line: Line
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
                brought = Brought(node, spec, one.claims, epoch)
                await self._engine.ask(ADOPTION, brought.adopt)

    async def _resubmitted(
        self, session: Session, job: JobId, words: AsyncIterator[pb.FromNode]
    ) -> JobSpec | None:
        """The spec that the node has of this job; None: it has none that a server of this cluster sealed."""
        assert self._leading.specs is not None
        async with asyncio.timeout(SUSPECT_MS / 1000):
            word = await anext(aiter(words))
        self._notice(session.node)
        session.hear(word)
        said = word.resubmission
        if word.WhichOneof("word") != "resubmission" or said.job != job:
            raise BadField("word", "is not what was asked for", f"send the resubmission of job {job}")
        spec = self._leading.specs.unseal(session.node, job, said.record)
        if spec is None:
            log.warning("a job that a node runs cannot be adopted", node=self._name(session.node), job=job)
        return spec

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
                case "away" | "again":
                    self._note_parting(session, word)
                    raise Over
                case _:
                    log.warning("unexpected word", node=node)
        raise Over

    def _note_parting(self, session: Session, word: pb.FromNode) -> None:
        if word.WhichOneof("word") == "again":
            session.calls_again = True
            return
        node, reason = session.node, wire.brief(word.away.reason)
        self._engine.observe(lambda mirror: mirror.nodes[node].part(reason))

    def _tell_news(self, session: Session) -> None:
        """What has changed for it: told when it says something, so that thousands are not at one moment."""
        if self._set_pace(session):
            pace = pb.Pace(report_interval_ms=session.report_ms, spread_ms=session.spread_ms)
            session.say(pb.ToNode(epoch=self._engine.epoch, pace=pace))
        self._tell_servers(session)
        self._tell_trust(session)

    def _tell_servers(self, session: Session) -> None:
        if session.servers != (servers := self._leading.servers()):
            session.servers = servers
            session.say(pb.ToNode(epoch=self._engine.epoch, servers=pb.Servers(addresses=servers)))

    def _tell_trust(self, session: Session) -> None:
        """Nothing before the first rotation: a node trusts the one authority since it has joined."""
        if not session.certificate or not self._authority.has_rotated:
            return
        if session.ca != (ca := self._authority.bundle.pem):
            session.ca = ca
            spread = max(session.spread_ms, ROTATION_SPREAD_MS * len(self._engine.mirror.nodes))
            trust = pb.Trust(ca=ca, spread_ms=spread)
            session.say(pb.ToNode(epoch=self._engine.epoch, trust=trust))

    def end_retired(self) -> None:
        """End the connections of nodes whose certificate is of an authority that is trusted no more."""
        for session in list(self._sessions.values()):
            if session.certificate and self._authority.is_retired(session.certificate):
                self._pushes.end(session.node)
                session.end()

    async def tell_servers(self) -> None:
        """Tell all nodes that are connected which servers there are; others have their turn in between."""
        for number, session in enumerate(list(self._sessions.values())):
            if session.servers:  # else it is told with its welcome, which comes first
                self._tell_servers(session)
            if number % _TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _notice(self, node: NodeId) -> None:
        """It lives; if that was in doubt, somebody shall look."""
        entry = self._engine.mirror.nodes.get(node)
        if entry is None or entry.revoked:
            raise Over  # it was deleted or revoked meanwhile
        wake = ((liveness.NAME, node),) if self._is_doubted(node) else ()
        self._engine.observe(lambda mirror: mirror.hear(node), *wake)

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
        except (Unavailable, StoreFull, NotAllowed):
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
        """The stream is broken: the node is suspect at once, unless it calls again, or has done so."""
        self._readings.give_up(session, f"node {self._name(session.node)} is not connected any more")
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            node = session.node
            if node not in self._engine.mirror.nodes:
                return  # it was deleted: to note something of it would make it anew
            if session.calls_again:
                certain = not self._is_doubted(node)
                self._engine.observe(partial(_cut, node=node, certain=certain), (liveness.NAME, node))
                return
            self._engine.observe(lambda mirror: mirror.connect(node, Link.DOWN), (liveness.NAME, node))

    # ---- what watchers lift: words and silence of many nodes at once

    def hear_many(self, heard: Iterable[Heard]) -> None:
        """Beats that a watcher has answered itself; those of sessions that are over are passed over."""
        alive: list[NodeId] = []
        for node, line, n, holds_leases in heard:
            session = self._sessions.get(node)
            if session is None or session.line is not line or node not in self._engine.mirror.nodes:
                continue
            alive.append(node)
            session.heard_n = max(session.heard_n, n)
            if holds_leases:
                session.echo_due = True
                session.wake.set()
            if session.greeted:
                self._tell_news(session)
        doubted = [(liveness.NAME, node) for node in alive if self._is_doubted(node)]
        self._engine.observe(lambda mirror: _hear_all(mirror, alive), *doubted)

    async def measure(self, node: NodeId, line: Line, load: pb.Load) -> None:
        session = self._sessions.get(node)
        if session is not None and session.line is line and node in self._engine.mirror.nodes:
            await self._measure(node, wire.load_from_wire(load))

    def lose_watcher(self, lines: Iterable[tuple[NodeId, Line]]) -> None:
        """The watcher of these sessions is gone or silent, which says nothing of their nodes.

        Their silence counts from now, so that each has its whole grace to call elsewhere. Of a node that was
        in doubt before it counts on.
        """
        for node, line in lines:
            session = self._sessions.get(node)
            if session is None or session.line is not line:
                continue
            self._readings.give_up(session, f"node {self._name(node)} is not connected any more")
            del self._sessions[node]
            if node in self._engine.mirror.nodes:
                certain = not self._is_doubted(node)
                self._engine.observe(partial(_cut, node=node, certain=certain), (liveness.NAME, node))

    def _is_doubted(self, node: NodeId) -> bool:
        status = self._engine.mirror.nodes[node].status
        return status is not None and status.state is not NodeState.READY

    # ---- after each commit

    def _committed(self, committed: Committed) -> None:
        self._tell_touched(self._engine.mirror)
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
        self._note_departures(committed)

    def _tell_touched(self, mirror: Mirror) -> None:
        for node in mirror.touched:
            session = self._sessions.get(node)
            if node in mirror.nodes and mirror.nodes[node].revoked:
                self._cut_off(node, session)
            elif session is not None:
                self._collect_or_end(session)
        mirror.touched.clear()

    def _cut_off(self, node: NodeId, session: Session | None) -> None:
        """End every call of a node that was revoked; it is suspect from now on, whatever it still says."""
        self._pushes.end(node)
        if session is not None:
            session.refusal = sessions.why_revoked(self._engine.mirror.nodes[node])
            session.end()
            self._part(session)

    def _note_departures(self, committed: Committed) -> None:
        for node, index in departures.told(committed.events):
            if node in self._engine.mirror.nodes:
                note = partial(_tell_left, node=node, at=(committed.revision, index))
                self._engine.observe(note, (departures.NAME, node))

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


def _expires_at_ms(pem: bytes) -> int:
    return round(certificates.period_of(pem).end.timestamp() * 1000)


def _hear_all(mirror: Mirror, nodes: list[NodeId]) -> None:
    for node in nodes:
        mirror.hear(node)


def _cut(mirror: Mirror, node: NodeId, *, certain: bool) -> None:
    mirror.connect(node, Link.UNKNOWN)
    if certain:
        mirror.hear(node)


def _named(deletes: Iterable[str], prefix: str) -> Iterator[str]:
    """The names in keys PREFIX/NAME/spec. A namespace may be called `spec`, so the first part decides."""
    for key in deletes:
        if key.startswith(prefix) and key.endswith("/spec"):
            yield key.removeprefix(prefix).removesuffix("/spec")


def _tell_left(mirror: Mirror, node: NodeId, at: tuple[int, int]) -> None:
    mirror.nodes[node].left_at = at
