"""The leader's end of watcher.proto: messages that watchers relay for agents, and the orders back. [I/O]

Each session of a watcher is served by the `AgentService`, as if its agent had called here: the same checks,
orders, acknowledgements and fences. Only heartbeats are different. A watcher counts them, and one batch a
second says which sessions were seen, up to which sequence number.

A watcher that is gone, or silent for WATCHER_SILENT_MS, says nothing of its nodes: their sessions end, and
their silence counts from then on. The newest session of a node wins, wherever it comes from.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NoReturn

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
from rota.watcher.agent_service import AgentService, ReceivedMark, Unidentified
from rota.watcher.keepalive import KeepaliveTimer, PeerSilent
from rota.watcher.leadership import LeadershipContext
from rota.watcher.refused_calls import NO_AUDIT, RefusedCalls
from rota.wire import bounds, forwarding
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import watcher_pb2, watcher_pb2_grpc
from rota.wire.watcher import from_node, load_of

log = structlog.get_logger("rota.watcher")

_FIRST_SECONDS = 10.0  # for a watcher to say who it is
_BATCH_BYTES = 1 << 20  # of words in one batch; a larger word goes alone
_AHEAD_BYTES = 16 << 20  # that wait for one watcher, before those who order wait for it
Context = grpc.aio.ServicerContext[Any, Any]


class AttachedWatchers:
    """Addresses of the watchers that are attached, or were until a while ago."""

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
        """In a fixed order: agents are told when it changes."""
        oldest = time.monotonic() - WATCHER_LISTED_MS / 1000
        self._seen_at = {address: at for address, at in self._seen_at.items() if at > oldest}
        return sorted({*self._attached, *self._seen_at})[:WATCHERS_MAX]


class WatcherService(watcher_pb2_grpc.WatcherServicer):
    """Serves watcher.proto to those that `leading.has_watcher`."""

    def __init__(
        self,
        engine: Engine,
        agents: AgentService,
        authority: CertificateAuthority,
        watchers: AttachedWatchers,
        *,
        leading: LeadershipContext,
        servers: Callable[[], list[str]],
    ) -> None:
        self._refused = leading.refused
        self._engine = engine
        self._agents = agents
        self._authority = authority
        self._watchers = watchers
        self._may_watch = leading.may_watch
        self._note_signer = leading.note_signer
        self._servers = servers

    def _epoch(self) -> int:
        return self._engine.epoch

    # ---- rpc (gRPC chooses these names)

    async def Attach(self, request_iterator: AsyncIterator[watcher_pb2.NodeBatch], context: Context) -> None:
        watcher = await self._authenticate(context)
        shown = forwarding.shown_certificate(context)
        await self._note(watcher, self._authority.signer_of(shown))
        batches = aiter(request_iterator)
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                first = await _next(batches)
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
        except BadField as nonsense:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{nonsense} ({nonsense.hint})")
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the watcher has not said who it is")
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

    async def _note(self, watcher: str, signer: str) -> None:
        try:
            await asyncio.to_thread(self._note_signer, watcher, signer)
        except (OSError, TimeoutError, RotaError, Unsafe) as error:  # it works all the same
            log.warning("the CA of a watcher is not noted", watcher=watcher, reason=str(error))

    async def _authenticate(self, context: Context) -> str:
        shown = forwarding.shown_certificate(context)
        watcher = certificates.watcher_id_of(shown) if shown else None
        if watcher is None:
            reason = "not a watcher's certificate"
            self._refused.record(context, "call as a watcher", grpc.StatusCode.UNAUTHENTICATED, reason)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
        if self._authority.is_retired(shown):  # the connection is older than the end of the rotation
            reason = f"the CA that signed the certificate of watcher {watcher} is trusted no more"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
        if not self._may_watch(watcher):
            reason = f"watcher {watcher} is not known here: join it again"
            self._refused.record(context, "call as a watcher", grpc.StatusCode.PERMISSION_DENIED, reason)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        return watcher

    async def _while_allowed(
        self, watcher: str, shown: bytes, batches: AsyncIterator[watcher_pb2.NodeBatch]
    ) -> AsyncIterator[watcher_pb2.NodeBatch]:
        """The batches of a watcher until it is removed, or its CA is: at least one comes each second."""
        async for batch in batches:
            if not self._may_watch(watcher):
                raise WatcherDetached(f"watcher {watcher} was removed")
            if self._authority.is_retired(shown):
                raise WatcherDetached(
                    f"the CA that signed the certificate of watcher {watcher} is trusted no more"
                )
            yield batch

    def _authorities(self) -> bytes:
        """Empty before the first rotation: a watcher trusts the one authority since it has joined."""
        return self._authority.bundle.pem if self._authority.has_rotated else b""

    async def _serve(
        self,
        attached: "WatcherConnection",
        first: watcher_pb2.NodeBatch,
        batches: AsyncIterator[watcher_pb2.NodeBatch],
        context: Context,
    ) -> None:
        """Until either side ends it. Raises BadField, Detached or Silent."""
        broken: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(attached.receive_loop(first, batches, tasks))
                tasks.create_task(attached.send_loop(context, self._servers, self._authorities))
                tasks.create_task(attached.keepalive.watch())
                try:
                    await asyncio.Event().wait()
                finally:
                    # Before the sessions are cancelled: each would else call its node's connection broken.
                    attached.lose_sessions()
        except* (BadField, WatcherDetached, PeerSilent) as errors:
            broken += errors.exceptions
        for error in broken:
            raise error


class WatcherDetached(Exception):
    """The watcher has ended its connection, or was removed."""


class SessionEnded(Exception):
    """This session is over, with that status."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class RelayedOutbound:
    """One agent's stream, as the leader has it: a `Line` of the `AgentService`."""

    def __init__(self, session: int, attached: "WatcherConnection") -> None:
        self.session = session
        self.node: NodeId | None = None  # once it is known
        self._attached = attached
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def deliver(self, word: bytes | None) -> None:
        """None: the agent is gone. Too many words that wait are given up: the agent will say all again."""
        if self._queue.qsize() > SESSION_WORDS_MAX:
            word = None
        self._queue.put_nowait(word)

    async def messages(self, first: bytes) -> AsyncIterator[pb.FromNode]:
        """Decoded here, so that bytes which are no message end this session, not its watcher's connection."""
        yield from_node(first)
        while (word := await self._queue.get()) is not None:
            yield from_node(word)

    async def write(self, message: pb.ToNode) -> None:
        await self._attached.send(self.session, message.SerializeToString())

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise SessionEnded(code, details)


class WatcherConnection:
    """One watcher's connection: its sessions, and what it is still to be told."""

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
        self._agents.on_watcher_lost((line.node, line) for line in self._sessions.values() if line.node)

    # ---- up

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
            self._received_n = batch.n
            batch = await _next(batches)

    def _receive_batch(self, batch: watcher_pb2.NodeBatch, tasks: asyncio.TaskGroup) -> None:
        lines = self._sessions
        for opened in batch.opened:
            line = lines[opened.session] = RelayedOutbound(opened.session, self)
            tasks.create_task(self._serve_session(line, opened))
        for said in batch.words:
            if said.session in lines:
                lines[said.session].deliver(said.word)
        leased = frozenset(batch.leased)
        heard = zip(batch.heard_session, batch.heard_n, strict=True)
        self._agents.on_relayed_heartbeats(
            ReceivedMark(node, lines[session], n, session in leased)
            for session, n in heard
            if session in lines and (node := lines[session].node) is not None
        )
        if batch.loads:
            tasks.create_task(self._measure(batch.loads))  # it may wait for the disk: the next batch need not
        for session in batch.closed:
            if session in lines:
                lines[session].deliver(None)
        if batch.opened or batch.words or batch.closed or batch.leased:
            self._wake.set()

    async def _measure(self, loads: Iterable[watcher_pb2.SessionLoad]) -> None:
        for one in loads:
            line = self._sessions.get(one.session)
            if line is not None and line.node is not None:
                with contextlib.suppress(BadField):  # a load that cannot be costs no other node anything
                    await self._agents.measure(line.node, line, load_of(one.load))

    async def _serve_session(self, line: RelayedOutbound, opened: watcher_pb2.OpenedSession) -> None:
        """One session to its end; whatever ends it, the watcher is told with which status."""
        code, reason = grpc.StatusCode.OK, ""
        try:
            line.node = node = await self._identified(opened)
            await self._agents.serve_session(node, line.messages(opened.hello), line, opened.certificate)
        except (SessionEnded, Unidentified) as end:
            code, reason = end.code, str(end)
        except BadField as nonsense:
            code, reason = grpc.StatusCode.INVALID_ARGUMENT, f"{nonsense} ({nonsense.hint})"
        except Exception as error:
            log.error("a session failed", node=line.node, exc_info=error)
            code, reason = grpc.StatusCode.INTERNAL, "something went wrong inside; the server's log says what"
        finally:
            self._sessions.pop(line.session, None)
            ended = watcher_pb2.EndedSession(session=line.session, code=code.value[0], reason=reason)
            self._ended.append(ended)
            self._wake.set()

    async def _identified(self, opened: watcher_pb2.OpenedSession) -> NodeId:
        """The node of a session; a refusal is written down as if the agent had called here."""
        try:
            if not self._authority.vouches_for(opened.certificate):
                raise Unidentified(grpc.StatusCode.UNAUTHENTICATED, "the certificate is not of this cluster")
            return await self._agents.identify(opened.certificate)
        except Unidentified as refusal:
            self._refused.note_from(opened.origin, "call as a node", refusal.code, str(refusal))
            raise

    # ---- down

    async def send(self, session: int, word: bytes) -> None:
        await self._has_space.wait()
        self._outgoing.append(watcher_pb2.SessionWord(session=session, word=word))
        self._outgoing_bytes += len(word)
        if self._outgoing_bytes > _AHEAD_BYTES:
            self._has_space.clear()
        self._wake.set()

    async def send_loop(
        self, context: Context, servers: Callable[[], list[str]], authorities: Callable[[], bytes]
    ) -> None:
        """A batch when there is something to tell, and at least one a second: it acknowledges."""
        told: list[str] = []
        trusted = b""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCHER_TELL_MS / 1000):
                    await self._wake.wait()
            self._wake.clear()
            batch = self._next_batch()
            if told != (now := servers()):
                told = now
                batch.addresses.extend(now)
            if trusted != (ca := authorities()):
                batch.ca = trusted = ca
            await context.write(batch)

    def _next_batch(self) -> watcher_pb2.LeaderBatch:
        words: list[watcher_pb2.SessionWord] = []
        size = 0
        while self._outgoing and (not words or size + len(self._outgoing[0].word) <= _BATCH_BYTES):
            words.append(self._outgoing.popleft())
            size += len(words[-1].word)
        self._outgoing_bytes -= size
        self._has_space.set()
        ended: list[watcher_pb2.EndedSession] = []
        if self._outgoing:
            self._wake.set()  # and what ended waits: its last words come first
        else:
            ended, self._ended = self._ended, []
        return watcher_pb2.LeaderBatch(epoch=self._epoch(), echo=self._received_n, words=words, ended=ended)


async def _next(batches: AsyncIterator[watcher_pb2.NodeBatch]) -> watcher_pb2.NodeBatch:
    """The next batch. Raises Detached where none will come, BadField if it holds more than it may."""
    try:
        batch = await anext(batches)
    except StopAsyncIteration:
        raise WatcherDetached("the watcher has ended it") from None
    bounds.check(batch)
    return batch
