"""A watcher's end of watcher.proto: one stream to the leader, for all of its agents. [I/O]

Messages of nodes are relayed as they arrive, many in one batch. Heartbeats are not: once a second a batch
has, for each session, the sequence number of the last message received. The leader acknowledges batches, so a
watcher knows which messages of its agents the leader has received, and when it answers a heartbeat it echoes
no higher number than that.

All sessions end with the connection to the leader: when it breaks, when the leader is silent for
WATCHER_SILENT_MS, or when its epoch is lower than one seen before, every agent's call ends with UNAVAILABLE.
The agents say hello again, here or elsewhere. Nothing is kept for the next leader, so no order of a deposed
leader can reach an agent through a watcher that has attached to the new one.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import grpc
import structlog

from rota.model.errors import BadField, NotAllowed
from rota.model.limits import ORIGIN_BYTES_MAX, REPORT_MOST_MS, REPORT_POINTS, WATCHER_TELL_MS
from rota.watcher.relay.keepalive import KeepaliveTimer, PeerSilent
from rota.wire import bounds
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import watcher_pb2, watcher_pb2_grpc

log = structlog.get_logger("rota.watcher")

_BATCH_BYTES = 1 << 20  # of messages in one batch, and one message more
_AGENT_BYTES_MAX = 64 << 20  # buffered for one agent; above that its call ends
_BACKOFF_FIRST_SECONDS = 0.1
_BACKOFF_MAX_SECONDS = 2.0
_DETACHED_REASON = grpc.StatusCode.UNAVAILABLE
Dial = Callable[[str], grpc.aio.Channel]
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class LeaderUnreachable(Exception):
    """This watcher is not attached to a leader."""


_CONNECTION_ERRORS = (
    LeaderUnreachable,
    PeerSilent,
    BadField,
    grpc.aio.AioRpcError,
    asyncio.InvalidStateError,
)


class LoadFilter:
    """Selects the loads of a node to relay: those that differ from the last one, and one in a while."""

    def __init__(self) -> None:
        self.last: pb.Load | None = None
        self._relayed: pb.Load | None = None
        self._relayed_at_ms = 0

    def should_relay(self, load: pb.Load, now_ms: int) -> bool:
        self.last = load
        before = self._relayed
        is_old = now_ms - self._relayed_at_ms >= REPORT_MOST_MS
        if before is not None and not is_old and not _differs(load, before):
            return False
        self._relayed, self._relayed_at_ms = load, now_ms
        return True


_FREE_AND_TOTAL = (("memory_free", "memory_total"), ("swap_free", "swap_total"))


def _differs(load: pb.Load, other: pb.Load) -> bool:
    """Whether the loads differ in shortage, disks or GPUs, or by REPORT_POINTS percent of an amount.

    An agent reports at once when its load has changed by that much.
    """
    if load.shortage != other.shortage or len(load.disks) != len(other.disks) or load.gpus != other.gpus:
        return True
    amounts = [(load.cpu_milli, other.cpu_milli, max(load.cores, 1) * 1000)]
    amounts += [
        (getattr(load, free), getattr(other, free), getattr(load, total)) for free, total in _FREE_AND_TOTAL
    ]
    amounts += [
        (disk.free, before.free, disk.total) for disk, before in zip(load.disks, other.disks, strict=True)
    ]
    return any(abs(now - before) * 100 >= REPORT_POINTS * max(total, 1) for now, before, total in amounts)


class RelayedSession:
    """One agent's stream: messages to send to it, and the last of its own that the leader acknowledged."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.loads = LoadFilter()
        self.acknowledged_n = 0
        self.end: tuple[grpc.StatusCode, str] | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._wake = asyncio.Event()

    def push(self, message: bytes) -> None:
        self._outgoing.append(message)
        self._outgoing_bytes += len(message)
        # Backpressure on the shared stream would stop all agents: the slow one loses its call instead.
        if self._outgoing_bytes > _AGENT_BYTES_MAX:
            self._outgoing = []
            self.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "the agent does not read its messages")
        self._wake.set()

    def finish(self, code: grpc.StatusCode, reason: str) -> None:
        # The first end counts: it has the cause, later ones are consequences of it.
        self.end = self.end or (code, reason)
        self._wake.set()

    async def next_messages(self) -> list[bytes]:
        """The messages to send to the agent, in order; empty once the session has ended."""
        while not self._outgoing and self.end is None:
            # Cleared before the wait and checked in the loop: a push in between is not lost.
            self._wake.clear()
            await self._wake.wait()
        messages, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
        return messages


class Uplink:
    """Keeps this watcher attached to the leader; `servers` are tried one after the other."""

    def __init__(
        self,
        address: str,
        servers: Iterable[str],
        dial: Dial,
        learn: Callable[[list[str]], None] | None,
        trust: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """`learn` is called with the servers that the leader lists, which are tried, too; None: they are not.

        `trust` is called with the CA bundle that the leader sends.
        """
        self.epoch = 0  # the highest one seen
        self.leader: str | None = None  # address of the server it is attached to
        self.channel: grpc.aio.Channel | None = None
        self._address = address
        self._servers = list(servers)
        self._dial = dial
        self._learn = learn
        self._trust = trust
        self._changed = asyncio.Condition()
        self._renewed = asyncio.Event()
        self._outgoing = _Outgoing()
        self._sessions: dict[int, RelayedSession] = {}
        self._last_session = 0

    # ---- called by the agents' side

    def open(self, certificate: bytes, hello: pb.FromNode, origin: str) -> RelayedSession:
        """Relay a new session. `origin` is the agent's address, for the leader's audit log of refusals."""
        if self.leader is None:
            raise LeaderUnreachable("this watcher is not connected to the leader")
        # Numbers are never reused: a late message for an old session must not reach a new one.
        self._last_session += 1
        session = self._sessions[self._last_session] = RelayedSession(self._last_session)
        self._outgoing.open(session, certificate, hello, origin)
        return session

    def send(self, session: RelayedSession, message: pb.FromNode) -> None:
        # Race: the connection may have been lost since; the
        # agent's call ends then, and its next hello says it again.
        if session.number in self._sessions:
            self._outgoing.send(session, message)

    def acknowledge(self, session: RelayedSession, n: int, *, holds_leases: bool) -> None:
        if session.number in self._sessions:
            self._outgoing.acknowledge(session, n, holds_leases=holds_leases)

    def measure(self, session: RelayedSession, load: pb.Load) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        if session.number in self._sessions and session.loads.should_relay(load, now_ms):
            self._outgoing.measure(session, load)

    def close(self, session: RelayedSession) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self._outgoing.close(session)

    async def changes(self, known: str | None) -> None:
        """Wait until it is attached to another server than `known`, or to none."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.leader != known)

    def attach_again(self) -> None:
        """Reconnect with a new certificate: an open connection keeps the one it was opened with."""
        self._renewed.set()

    # ---- the connection to the leader

    async def run(self) -> None:
        """Attach to one server after the other, until it is cancelled. Raises NotAllowed."""
        backoff = _BACKOFF_FIRST_SECONDS
        while True:
            address = self._servers[0]
            was_attached = await self._attach(address)
            self._servers.append(self._servers.pop(0))
            backoff = _BACKOFF_FIRST_SECONDS if was_attached else min(backoff * 2, _BACKOFF_MAX_SECONDS)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))

    async def _attach(self, address: str) -> bool:
        """Run one connection to its end; returns True if the server has answered. Raises NotAllowed."""
        broken: list[BaseException] = []
        # A new buffer for each connection: nothing of the last one may reach another leader.
        self._outgoing = _Outgoing()
        keepalive = KeepaliveTimer()
        async with self._dial(address) as channel:
            stub = watcher_pb2_grpc.WatcherStub(channel)  # type: ignore[no-untyped-call]  # generated
            stream: Any = stub.Attach()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._send_loop(stream))
                    tasks.create_task(self._receive_loop(stream, address, channel, keepalive))
                    tasks.create_task(keepalive.watch())
                    tasks.create_task(self._until_renewed())
            except* _CONNECTION_ERRORS as errors:
                broken += errors.exceptions
                log.warning("not attached", server=address, reason=_reason(broken[0]))
            finally:
                # Read before it is cleared: the backoff starts over only if the server had answered.
                was_attached = self.leader is not None
                stream.cancel()
                await self._set_attached(None, None)
        # After the channel is closed: a refused watcher must
        # not be retried, since its certificate will not change.
        for error in filter(_is_refused, broken):
            raise NotAllowed(
                _reason(error), hint="get a line with `rota watcher token` and start with --join"
            )
        return was_attached

    async def _until_renewed(self) -> None:
        self._renewed.clear()
        await self._renewed.wait()
        raise LeaderUnreachable("the certificate of this watcher was renewed: reconnecting")

    async def _set_attached(self, leader: str | None, channel: grpc.aio.Channel | None) -> None:
        if leader is not None:
            log.info("attached", server=leader, epoch=self.epoch)
        self.leader, self.channel = leader, channel
        # Sessions of the last connection are unknown to the
        # new leader: their agents reconnect and say hello.
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.finish(_DETACHED_REASON, "this watcher has lost the leader")
        async with self._changed:
            self._changed.notify_all()

    async def _receive_loop(
        self, stream: Any, address: str, channel: grpc.aio.Channel, keepalive: KeepaliveTimer
    ) -> None:
        while True:
            batch = await _read(stream)
            keepalive.reset()
            self._receive_batch(batch)
            if self.leader is None:  # the first batch
                await self._set_attached(address, channel)

    def _receive_batch(self, batch: watcher_pb2.LeaderBatch) -> None:
        # Fencing: a server that was deposed must not give orders through this watcher.
        if batch.epoch < self.epoch:
            raise LeaderUnreachable(f"its epoch is {batch.epoch}, and {self.epoch} was seen before")
        self.epoch = batch.epoch
        self._forward(batch)
        if batch.ca:
            self._trust(batch.ca)
        if batch.addresses:
            self._learn_servers(list(batch.addresses))

    def _forward(self, batch: watcher_pb2.LeaderBatch) -> None:
        """Apply a batch to the sessions: acknowledged numbers, messages for agents, ended sessions."""
        for session, n in self._outgoing.acknowledged(batch.echo):
            session.acknowledged_n = n
        for message in batch.words:
            if (receiver := self._sessions.get(message.session)) is not None:
                receiver.push(message.word)
        for end in batch.ended:
            if (ended := self._sessions.pop(end.session, None)) is not None:
                ended.finish(_CODES[end.code], end.reason)

    def _learn_servers(self, addresses: list[str]) -> None:
        if self._learn is not None:
            self._learn(addresses)
            self._servers = list(dict.fromkeys((*self._servers, *addresses)))

    async def _send_loop(self, stream: Any) -> None:
        """Send the first batch, then one when there is something to send, and at least one a second."""
        first = watcher_pb2.NodeBatch(n=1, address=self._address, epoch_seen=self.epoch)
        await stream.write(first)
        while True:
            await self._outgoing.wait()
            await stream.write(self._outgoing.next_batch())


class _Outgoing:
    """What agents have sent since the last batch, and the batches not yet acknowledged."""

    def __init__(self) -> None:
        self._n = 1  # the first batch opens the connection, and has no sessions
        self._waiting: deque[_Item] = deque()
        self._loads: list[watcher_pb2.SessionLoad] = []
        self._leased: list[int] = []
        self._received: dict[RelayedSession, int] = {}
        self._sent: dict[int, dict[RelayedSession, int]] = {}
        self._urgent = asyncio.Event()

    def open(self, session: RelayedSession, certificate: bytes, hello: pb.FromNode, origin: str) -> None:
        opened = watcher_pb2.OpenedSession(
            session=session.number,
            certificate=certificate,
            hello=hello.SerializeToString(),
            origin=origin[:ORIGIN_BYTES_MAX],
        )
        self._add(opened)
        self._received[session] = hello.n

    def send(self, session: RelayedSession, message: pb.FromNode) -> None:
        self._add(watcher_pb2.SessionWord(session=session.number, word=message.SerializeToString()))
        self._received[session] = message.n

    def close(self, session: RelayedSession) -> None:
        self._received.pop(session, None)
        self._add(session.number)

    def _add(self, item: "_Item") -> None:
        self._waiting.append(item)
        self._urgent.set()

    def acknowledge(self, session: RelayedSession, n: int, *, holds_leases: bool) -> None:
        self._received[session] = n
        if holds_leases:
            self._leased.append(session.number)
            self._urgent.set()

    def measure(self, session: RelayedSession, load: pb.Load) -> None:
        self._loads.append(watcher_pb2.SessionLoad(session=session.number, load=load.SerializeToString()))

    async def wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCHER_TELL_MS / 1000):
                await self._urgent.wait()

    def next_batch(self) -> watcher_pb2.NodeBatch:
        """As much as fits into one message.

        Invariant: a batch confirms received numbers only when it, or one before it, holds all messages up to
        them. So while messages are left over for the next batch, it confirms none.
        """
        self._n += 1
        batch = watcher_pb2.NodeBatch(n=self._n)
        size = 0
        while self._waiting and size < _BATCH_BYTES:
            size += _put(batch, self._waiting.popleft())
        self._sent[self._n] = {}
        if self._waiting:
            return batch
        self._urgent.clear()
        batch.heard_session.extend(session.number for session in self._received)
        batch.heard_n.extend(self._received.values())
        batch.leased.extend(self._leased)
        batch.loads.extend(self._loads)
        self._sent[self._n] = self._received
        self._received, self._leased, self._loads = {}, [], []
        return batch

    def acknowledged(self, echo: int) -> list[tuple[RelayedSession, int]]:
        """The last number of each session that the leader has received since the previous acknowledgement."""
        found: dict[RelayedSession, int] = {}
        for n in [n for n in self._sent if n <= echo]:
            found |= self._sent.pop(n)
        return list(found.items())


# An int is the number of a closed session.
_Item = watcher_pb2.OpenedSession | watcher_pb2.SessionWord | int


def _put(batch: watcher_pb2.NodeBatch, item: _Item) -> int:
    """Add an item to the batch; returns its approximate size in bytes."""
    match item:
        case watcher_pb2.OpenedSession():
            batch.opened.append(item)
            return len(item.hello) + len(item.certificate)
        case watcher_pb2.SessionWord():
            batch.words.append(item)
            return len(item.word)
        case int():
            batch.closed.append(item)
            return 8


async def _read(stream: Any) -> watcher_pb2.LeaderBatch:
    batch = await stream.read()
    if batch is grpc.aio.EOF:
        raise LeaderUnreachable("it has closed the connection")
    bounds.check(batch)
    assert isinstance(batch, watcher_pb2.LeaderBatch)
    return batch


def _is_refused(error: BaseException) -> bool:
    """Whether the leader does not know this watcher, or it was removed."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.PERMISSION_DENIED


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
