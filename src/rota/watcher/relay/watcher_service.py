"""The leader's end of watcher.proto: messages that watchers relay for agents, and the orders back. [I/O]

Each session of a watcher is served by the `AgentService`, as if its agent had called here: the same checks,
orders, acknowledgements and fences. Only heartbeats are different. A watcher counts them, and one batch a
second says which sessions were seen, up to which sequence number.

A watcher that is lost, or silent for WATCHER_SILENT_MS, is no evidence about its nodes: their sessions end,
and their silence counts from then on. The newest session of a node wins, wherever it comes from.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from typing import NoReturn

import grpc
import structlog

from rota.engine.run import Engine
from rota.identity import certificates
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import IdentityRefused, Unsafe
from rota.model.errors import BadField, RotaError
from rota.model.ids import NodeId
from rota.model.limits import (
    SESSION_WORDS_MAX,
    WATCHER_LISTED_MS,
    WATCHER_TELL_MS,
    WATCHERS_MAX,
)
from rota.watcher.agent_service import AgentService
from rota.watcher.authentication import Context, Unidentified
from rota.watcher.leadership import LeadershipContext
from rota.watcher.node_sessions import ReceivedMark
from rota.watcher.refused_calls import NO_AUDIT, RefusedCalls
from rota.watcher.relay.keepalive import KeepaliveTimer, PeerSilent
from rota.wire import bounds, forwarding
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import watcher_pb2, watcher_pb2_grpc
from rota.wire.watcher import from_node, load_of

log = structlog.get_logger("rota.watcher")

_FIRST_SECONDS = 10.0  # for a watcher to send its first batch
_BATCH_BYTES = 1 << 20  # of messages in one batch; a larger message goes alone
_AHEAD_BYTES = 16 << 20  # buffered for one watcher, before its sessions wait in write()


class AttachedWatchers:
    """Addresses of the watchers that are attached, or were within the last WATCHER_LISTED_MS."""

    def __init__(self) -> None:
        self._seen_at: dict[str, float] = {}
        self._attached: dict[str, int] = {}

    def add(self, address: str) -> None:
        self._attached[address] = self._attached.get(address, 0) + 1

    def remove(self, address: str) -> None:
        self._attached[address] -= 1
        if not self._attached[address]:
            del self._attached[address]
            self._seen_at[address] = time.monotonic()

    def addresses(self) -> list[str]:
        """Sorted, because agents are sent the list whenever it differs from the last one."""
        oldest = time.monotonic() - WATCHER_LISTED_MS / 1000
        self._seen_at = {address: at for address, at in self._seen_at.items() if at > oldest}
        return sorted({*self._attached, *self._seen_at})[:WATCHERS_MAX]


class WatcherService(watcher_pb2_grpc.WatcherServicer):
    """Serves watcher.proto to the watchers that `leadership.may_watch` admits."""

    def __init__(
        self,
        engine: Engine,
        agents: AgentService,
        authority: CertificateAuthority,
        watchers: AttachedWatchers,
        *,
        leadership: LeadershipContext,
        servers: Callable[[], list[str]],
    ) -> None:
        self._refused = leadership.refused
        self._engine = engine
        self._agents = agents
        self._authority = authority
        self._watchers = watchers
        self._may_watch = leadership.may_watch
        self._note_signer = leadership.note_signer
        self._servers = servers

    def _epoch(self) -> int:
        return self._engine.epoch

    # ---- rpc (gRPC chooses these names)

    async def Attach(self, request_iterator: AsyncIterator[watcher_pb2.NodeBatch], context: Context) -> None:
        watcher = await self._authenticate(context)
        shown = forwarding.shown_certificate(context)
        # Needed by a CA rotation, which must not end while a watcher depends on the old CA.
        await self._record_signer(watcher, self._authority.signer_of(shown))
        batches = aiter(request_iterator)
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                first = await _next(batches)
            # Fencing: a leader whose epoch is lower was deposed, and must not serve the watcher's nodes.
            if first.epoch_seen > self._epoch():
                reason = f"the watcher has seen epoch {first.epoch_seen}, this server leads {self._epoch()}"
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
            log.info("watcher attached", watcher=watcher, address=first.address)
            self._watchers.add(first.address)
            try:
                attached = WatcherConnection(self._agents, self._authority, self._epoch, self._refused)
                await self._serve(attached, first, self._while_allowed(watcher, shown, batches), context)
            finally:
                self._watchers.remove(first.address)
                log.info("watcher detached", watcher=watcher, address=first.address)
        except BadField as invalid:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{invalid} ({invalid.hint})")
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the watcher has sent no batch")
        except (WatcherDetached, PeerSilent) as reason:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(reason))

    async def RenewWatcher(
        self, request: watcher_pb2.RenewWatcherRequest, context: Context
    ) -> watcher_pb2.RenewWatcherReply:
        watcher = await self._authenticate(context)
        try:
            bounds.check(request)
            like = None if request.follows else forwarding.shown_certificate(context)
            certificate = self._authority.sign_watcher(request.csr, watcher, datetime.now(UTC), like=like)
        except (IdentityRefused, BadField) as refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        return watcher_pb2.RenewWatcherReply(certificate=certificate, ca=self._authority.bundle.pem)

    async def _record_signer(self, watcher: str, signer: str) -> None:
        try:
            await asyncio.to_thread(self._note_signer, watcher, signer)
        except (OSError, TimeoutError, RotaError, Unsafe) as error:  # needed by a CA rotation only
            log.warning("CA of watcher not recorded", watcher=watcher, reason=str(error))

    async def _authenticate(self, context: Context) -> str:
        shown = forwarding.shown_certificate(context)
        watcher = certificates.watcher_id_of(shown) if shown else None
        if watcher is None:
            reason = "not a watcher's certificate"
            self._refused.record(context, "call as a watcher", grpc.StatusCode.UNAUTHENTICATED, reason)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
        # TLS checked the CA when the connection was opened, which may be before the rotation ended.
        if self._authority.is_retired(shown):
            reason = f"the CA that signed the certificate of watcher {watcher} is no longer trusted"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
        if not self._may_watch(watcher):
            reason = f"watcher {watcher} is not known here: join it again"
            self._refused.record(context, "call as a watcher", grpc.StatusCode.PERMISSION_DENIED, reason)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        return watcher

    async def _while_allowed(
        self, watcher: str, shown: bytes, batches: AsyncIterator[watcher_pb2.NodeBatch]
    ) -> AsyncIterator[watcher_pb2.NodeBatch]:
        """The batches of a watcher, one a second or more. Raises WatcherDetached once it is removed."""
        # Checked with each batch and not only at the attach: a removal must take effect within a second.
        async for batch in batches:
            if not self._may_watch(watcher):
                raise WatcherDetached(f"watcher {watcher} was removed")
            if self._authority.is_retired(shown):
                raise WatcherDetached(
                    f"the CA that signed the certificate of watcher {watcher} is no longer trusted"
                )
            yield batch

    def _authorities(self) -> bytes:
        """The CA bundle; empty before the first rotation, as a watcher trusts the CA it joined with."""
        return self._authority.bundle.pem if self._authority.has_rotated else b""

    async def _serve(
        self,
        attached: "WatcherConnection",
        first: watcher_pb2.NodeBatch,
        batches: AsyncIterator[watcher_pb2.NodeBatch],
        context: Context,
    ) -> None:
        """Serve the connection until either side ends it. Raises BadField, WatcherDetached or PeerSilent."""
        broken: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(attached.receive_loop(first, batches, tasks))
                tasks.create_task(attached.send_loop(context, self._servers, self._authorities))
                tasks.create_task(attached.keepalive.watch())
                try:
                    # Waits for a failure of one of the tasks; the group then cancels this wait.
                    await asyncio.Event().wait()
                finally:
                    # Ordering: before the task group cancels the sessions. Each of them would report a
                    # disconnect of its node, and make it suspect.
                    attached.lose_sessions()
        except* (BadField, WatcherDetached, PeerSilent) as errors:
            broken += errors.exceptions
        for error in broken:
            raise error


class WatcherDetached(Exception):
    """The watcher closed its connection, or was removed."""


class SessionEnded(Exception):
    """A session was ended by the leader, with this status for the agent's call."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class RelayedOutbound:
    """The leader's end of one relayed session: its `Outbound`, and the messages that arrive for it."""

    def __init__(self, session: int, attached: "WatcherConnection") -> None:
        self.session = session
        self.node: NodeId | None = None  # once it is authenticated
        self._attached = attached
        # Unbounded, because `deliver` must not block the
        # stream of all other sessions; it has its own limit.
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def deliver(self, message: bytes | None) -> None:
        """Queue a message of the agent; None: the agent has disconnected.

        A session with too many queued messages ends: the agent reconnects, and its hello says everything
        again.
        """
        if self._queue.qsize() > SESSION_WORDS_MAX:
            message = None
        self._queue.put_nowait(message)

    async def messages(self, first: bytes) -> AsyncIterator[pb.FromNode]:
        """The agent's messages, decoded here, so that invalid bytes end this session only."""
        yield from_node(first)
        while (message := await self._queue.get()) is not None:
            yield from_node(message)

    async def write(self, message: pb.ToNode) -> None:
        await self._attached.send(self.session, message.SerializeToString())

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise SessionEnded(code, details)


class WatcherConnection:
    """One watcher's connection: its sessions, and the batch that is sent next."""

    def __init__(
        self,
        agents: AgentService,
        authority: CertificateAuthority,
        epoch: Callable[[], int],
        refused: RefusedCalls = NO_AUDIT,
    ) -> None:
        self.keepalive = KeepaliveTimer()
        self._refused = refused
        self._agents = agents
        self._authority = authority
        self._epoch = epoch
        self._sessions: dict[int, RelayedOutbound] = {}
        self._received_n = 0
        self._outgoing: deque[watcher_pb2.SessionWord] = deque()
        self._outgoing_bytes = 0
        self._ended: list[watcher_pb2.EndedSession] = []
        self._wake = asyncio.Event()
        self._has_space = asyncio.Event()
        self._has_space.set()

    def lose_sessions(self) -> None:
        relayed = self._sessions.values()
        self._agents.sessions.on_watcher_lost(
            (outbound.node, outbound) for outbound in relayed if outbound.node
        )

    # ---- from the watcher

    async def receive_loop(
        self,
        first: watcher_pb2.NodeBatch,
        batches: AsyncIterator[watcher_pb2.NodeBatch],
        tasks: asyncio.TaskGroup,
    ) -> None:
        batch = first
        while True:
            self.keepalive.reset()
            self._receive_batch(batch, tasks)
            # Ordering: acknowledged once it is applied. An earlier
            # echo would confirm messages that may still be lost.
            self._received_n = batch.n
            batch = await _next(batches)

    def _receive_batch(self, batch: watcher_pb2.NodeBatch, tasks: asyncio.TaskGroup) -> None:
        relayed = self._sessions
        for opened in batch.opened:
            outbound = relayed[opened.session] = RelayedOutbound(opened.session, self)
            tasks.create_task(self._serve_session(outbound, opened))
        for message in batch.words:
            if message.session in relayed:
                relayed[message.session].deliver(message.word)
        # Ordering: numbers after the messages that they confirm, which are in this batch or an earlier one.
        leased = frozenset(batch.leased)
        received = zip(batch.heard_session, batch.heard_n, strict=True)
        self._agents.sessions.on_relayed_heartbeats(
            ReceivedMark(node, relayed[session], n, session in leased)
            for session, n in received
            if session in relayed and (node := relayed[session].node) is not None
        )
        if batch.loads:
            # A task of its own: a load may wait for a commit, and the next batch must not.
            tasks.create_task(self._measure(batch.loads))
        for session in batch.closed:
            if session in relayed:
                relayed[session].deliver(None)
        if batch.opened or batch.words or batch.closed or batch.leased:
            self._wake.set()

    async def _measure(self, loads: Iterable[watcher_pb2.SessionLoad]) -> None:
        for load in loads:
            outbound = self._sessions.get(load.session)
            if outbound is not None and outbound.node is not None:
                with contextlib.suppress(BadField):  # an invalid load must not cost the other nodes theirs
                    await self._agents.sessions.measure(outbound.node, outbound, load_of(load.load))

    async def _serve_session(self, outbound: RelayedOutbound, opened: watcher_pb2.OpenedSession) -> None:
        """Serve one session to its end; the watcher gets the status for the agent's call in any case."""
        code, reason = grpc.StatusCode.OK, ""
        try:
            outbound.node = node = await self._identified(opened)
            messages = outbound.messages(opened.hello)
            await self._agents.sessions.serve_session(node, messages, outbound, opened.certificate)
        except (SessionEnded, Unidentified) as end:
            code, reason = end.code, str(end)
        except BadField as invalid:
            code, reason = grpc.StatusCode.INVALID_ARGUMENT, f"{invalid} ({invalid.hint})"
        except Exception as error:
            log.error("session failed", node=outbound.node, exc_info=error)
            code, reason = grpc.StatusCode.INTERNAL, "something went wrong inside; the server's log says what"
        finally:
            self._sessions.pop(outbound.session, None)
            ended = watcher_pb2.EndedSession(session=outbound.session, code=code.value[0], reason=reason)
            self._ended.append(ended)
            self._wake.set()

    async def _identified(self, opened: watcher_pb2.OpenedSession) -> NodeId:
        """The node of a session; a refusal is audited as if the agent had connected to this server."""
        try:
            if not self._authority.vouches_for(opened.certificate):
                raise Unidentified(
                    grpc.StatusCode.UNAUTHENTICATED, "the certificate was not signed by a CA of this cluster"
                )
            return await self._agents.authenticator.identify(opened.certificate)
        except Unidentified as refusal:
            self._refused.record_from(opened.origin, "call as a node", refusal.code, str(refusal))
            raise

    # ---- to the watcher

    async def send(self, session: int, message: bytes) -> None:
        """Queue a message for the watcher. Backpressure: waits while _AHEAD_BYTES are queued."""
        await self._has_space.wait()
        self._outgoing.append(watcher_pb2.SessionWord(session=session, word=message))
        self._outgoing_bytes += len(message)
        # One message may exceed the bound: it is checked after
        # the append, so that large messages are not stuck.
        if self._outgoing_bytes > _AHEAD_BYTES:
            self._has_space.clear()
        self._wake.set()

    async def send_loop(
        self, context: Context, servers: Callable[[], list[str]], authorities: Callable[[], bytes]
    ) -> None:
        """Send a batch when there is something to send, and at least one a second, which acknowledges."""
        sent_servers: list[str] = []
        sent_ca = b""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCHER_TELL_MS / 1000):
                    await self._wake.wait()
            # Before the batch is made: a message queued during the write sets the event again.
            self._wake.clear()
            batch = self._next_batch()
            if sent_servers != (current := servers()):
                sent_servers = current
                batch.addresses.extend(current)
            if sent_ca != (ca := authorities()):
                batch.ca = sent_ca = ca
            await context.write(batch)

    def _next_batch(self) -> watcher_pb2.LeaderBatch:
        messages: list[watcher_pb2.SessionWord] = []
        size = 0
        # At least one message, however large: otherwise it would block the queue forever.
        while self._outgoing and (not messages or size + len(self._outgoing[0].word) <= _BATCH_BYTES):
            messages.append(self._outgoing.popleft())
            size += len(messages[-1].word)
        self._outgoing_bytes -= size
        self._has_space.set()
        ended: list[watcher_pb2.EndedSession] = []
        if self._outgoing:
            # Ordering: the last messages of an ended session go out before its end.
            self._wake.set()
        else:
            ended, self._ended = self._ended, []
        return watcher_pb2.LeaderBatch(
            epoch=self._epoch(), echo=self._received_n, words=messages, ended=ended
        )


async def _next(batches: AsyncIterator[watcher_pb2.NodeBatch]) -> watcher_pb2.NodeBatch:
    """The next batch. Raises WatcherDetached at the end of the stream, BadField if out of bounds."""
    try:
        batch = await anext(batches)
    except StopAsyncIteration:
        raise WatcherDetached("the watcher has closed the connection") from None
    bounds.check(batch)
    return batch
