"""One node's connection: its sequence numbers, and what is still to be sent on it. [I/O]

Theory of operation of node sessions
====================================

A session is one `Connect` stream of agent.proto, from the node's hello to the end of the stream. Nothing of a
session is stored and nothing of it is resumed: a node that reconnects says hello again with everything it
holds, and that hello repairs whatever the last session lost.

Parts: `NodeSessions` (node_sessions) owns the table of sessions and runs them. `InboundMessages` (inbound)
turns what nodes send into commands and observations of the engine, `DispatchState` (dispatch) computes
orders, `SettingsSender` (node_settings) sends intervals, servers and CAs. Sessions that a watcher relays and
those of the gateway's proxy nodes run through the same code, with another `Outbound`. Everything runs on the
event loop of the engine, so no lock is needed; state can change at an `await` only.

Handshake
    1. The first message must be `Hello`: machine, boot id, capacity, labels, and the inventory (every attempt
       on the node, and every result that no server has acknowledged).
    2. `node_messages.why_refused` refuses a node that has seen a higher epoch, another machine under the same
       name while the first one answers, a revoked node, and a rebooted one whose run leases may still be
       held.
    3. The session enters the table and the node counts as connected, before the hello is decided. Otherwise a
       node back from a long silence would be declared lost because of that silence.
    4. With a store in memory, jobs of the inventory that the server does not know are asked for and adopted
       (`Resubmit`), before the hello is applied: applied first, it would have the node stop that work.
    5. `node_messages.on_hello` is committed. Only then is `hello_durable` set and are orders computed: until
       then, attempts that the node's restart has ended still look assigned and would be started again.
    6. `Welcome` is sent, then the servers and CAs; the hello's number becomes the watermark.

Sequence numbers
    Each message of a node carries n, counted from 1 within the session. Three of them are kept:

        received_n   the highest n received; sent back as `Orders.echo`
        durable_n    the watermark: every report up to it is committed; sent back as `Orders.stored`
        acked_n      the watermark that was last sent

    acked_n <= durable_n <= received_n. An agent refuses orders whose echo answers a message older than 5 s
    while it has sent newer ones, so orders of a server or watcher that was suspended start nothing. Run
    leases count from when the echoed message was sent, therefore `echo_due` has it sent soon.

What is durable before what is acknowledged
    A report is committed, then durable_n rises, then `Orders.stored` is sent. On it the node deletes results
    up to that n, and starts attempts that wait for a durable accept (at_most_once, one_at_a_time). If the
    commit fails, the session ends without an acknowledgement and the reports come back with the next hello.
    If the server crashes between commit and acknowledgement, they come back as well and change nothing: a
    report on an ended attempt is ignored. Orders are computed from committed state only, in the commit hook,
    so a node never sees a decision that a crash could undo.

Disconnect
    The end of a stream makes its node suspect immediately: it gets no new work, and what runs there goes on.
    Exceptions: a node that announced it will reconnect (`Again`, after renewing its certificate), and the
    sessions of a lost watcher, which says nothing about their nodes. Their silence counts from that moment.
    `end()` lets the message that is being written finish, within LAST_MESSAGE_SECONDS: cancelling a write
    would keep the final status from being sent, and a node that reads nothing would hold the stream forever.

Superseded streams
    The newest session of a node wins: the handshake ends the previous one. A node numbers its connections
    within a boot, because a hello may be delayed at a watcher: a hello with a lower number than the session
    in the table is refused with ABORTED. An old session ends after the new one has entered the table, so
    `NodeSessions` touches the table and the node's connection state only if the session is still the current
    one (compare by identity). Likewise relayed heartbeats count only for the stream they arrived on.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import grpc

from rota.model.errors import BadField
from rota.model.ids import JobId, NodeId
from rota.model.messages import JobOrders
from rota.watcher.dispatch import DispatchState
from rota.wire.generated import agent_pb2 as pb

LAST_MESSAGE_SECONDS = 3.0  # for a node to read the message being written when its session is ended
_COALESCE_SECONDS = 0.1  # delay of a bare acknowledgement; it costs the node some memory only


class Outbound(Protocol):
    """The sending half of a session: a gRPC call, a session relayed by a watcher, or a proxy node."""

    async def write(self, message: pb.ToNode) -> None: ...
    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...


class SessionOver(Exception):
    """Ends both halves of a session."""


@dataclass(eq=False)
class NodeSession:
    """One node's connection. Compared by identity: a node may have an old and a new one for a moment."""

    node: NodeId
    dispatch: DispatchState
    outbound: Outbound | None = None
    boot_id: str = ""
    number: int = 0  # of this connection, as the node counts them within a boot
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    orders: list[JobOrders] = field(default_factory=list)
    forget: list[JobId] = field(default_factory=list)  # deleted jobs, whose output the node deletes
    messages: list[pb.ToNode] = field(default_factory=list)
    received_n: int = 0
    durable_n: int = 0
    acked_n: int = 0
    report_ms: int = 0  # load report interval last sent
    spread_ms: int = 0  # reconnect spread last sent
    servers: list[str] = field(default_factory=list)  # addresses last sent
    certificate: bytes = b""  # shown by the node; empty for a proxy node
    ca: bytes = b""  # CA bundle last sent
    calls_again: bool = False  # the node announced a reconnect: its disconnect does not make it suspect
    echo_due: bool = False  # the node holds run leases, which are renewed by the echo
    hello_durable: bool = False  # orders may be computed; see step 5 of the handshake
    over: bool = False
    limit: asyncio.Timeout | None = None  # of the running session; end() gives it a deadline
    refusal: str | None = None  # why this server ended it, if the node may not reconnect
    invalid_message: BadField | None = None  # why this server ended it, if the node broke the protocol

    def send(self, message: pb.ToNode) -> None:
        self.messages.append(message)
        self.wake.set()

    def on_message(self, message: pb.FromNode) -> None:
        # A batch of relayed heartbeats may have overtaken this message: never go back.
        self.received_n = max(self.received_n, message.n)
        if message.holds_leases:
            self.echo_due = True
            self.wake.set()

    def is_newer_than(self, boot_id: str, number: int) -> bool:
        """Whether a hello of that boot and connection number was delayed behind this session's own."""
        return self.boot_id == boot_id and 0 < number < self.number

    async def has_pending(self) -> None:
        """Wait for something to send; an acknowledgement alone is held back briefly to be coalesced."""
        await self.wake.wait()
        # Cleared before the buffers are read: what is queued
        # after this sets the event again, so no wakeup is lost.
        self.wake.clear()
        if not (self.messages or self.orders or self.forget or self.over):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_COALESCE_SECONDS):
                    await self.wake.wait()
            self.wake.clear()

    def end(self) -> None:
        """End the session after the message being written, and within LAST_MESSAGE_SECONDS in any case.

        A node that reads nothing would otherwise block the write, and with it the stream, forever.
        """
        self.over = True
        self.wake.set()
        # Only the first deadline counts: repeated calls must not postpone the end of the session.
        if self.limit is not None and self.limit.when() is None:
            self.limit.reschedule(asyncio.get_running_loop().time() + LAST_MESSAGE_SECONDS)
