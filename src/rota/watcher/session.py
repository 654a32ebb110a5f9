"""One node's connection: what it said last, and what it is still to be told."""

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

LAST_MESSAGE_SECONDS = 3.0  # that a node has to take what is being said to it when its connection is ended
_COALESCE_SECONDS = 0.1  # of an acknowledgement: until then the node remembers a result, no more


class Outbound(Protocol):
    """What is said into: a call of an agent, or of whoever stands in for one."""

    async def write(self, message: pb.ToNode) -> None: ...
    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...


class SessionOver(Exception):
    """The connection is done with."""


@dataclass(eq=False)
class NodeSession:
    """One node's connection."""

    node: NodeId
    dispatch: DispatchState
    outbound: Outbound | None = None  # where it is spoken to
    boot_id: str = ""
    number: int = 0  # of its connection, as the node counts them
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    orders: list[JobOrders] = field(default_factory=list)
    forget: list[JobId] = field(default_factory=list)
    messages: list[pb.ToNode] = field(default_factory=list)
    received_n: int = 0
    durable_n: int = 0
    acked_n: int = 0
    report_ms: int = 0  # how often it was told to say how busy it is
    spread_ms: int = 0  # over how long it was told to call when the server is lost
    servers: list[str] = field(default_factory=list)  # of which it was told
    certificate: bytes = b""  # that the node has shown; a worker that is dialled has none
    ca: bytes = b""  # the authorities of which it was told
    calls_again: bool = False  # at once, by its own word: that it hangs up says nothing of its health
    echo_due: bool = False  # it holds run leases, which count from what we have heard
    hello_durable: bool = False  # its hello is on disk: before, what its restart has ended counts as assigned
    over: bool = False
    limit: asyncio.Timeout | None = None  # of the conversation, while it lasts
    refusal: str | None = None  # why this server ended it, if the node may not come back
    invalid_message: BadField | None = None  # what ended it, if the node said what cannot be

    def send(self, word: pb.ToNode) -> None:
        self.messages.append(word)
        self.wake.set()

    def on_message(self, word: pb.FromNode) -> None:
        self.received_n = max(self.received_n, word.n)  # a watcher may have told of a later one before
        if word.holds_leases:
            self.echo_due = True
            self.wake.set()

    def is_newer_than(self, boot_id: str, number: int) -> bool:
        """Whether a hello of that boot and connection has come late: the node has called again since."""
        return self.boot_id == boot_id and 0 < number < self.number

    async def has_pending(self) -> None:
        """An acknowledgement alone is not urgent: it waits a moment for company."""
        await self.wake.wait()
        self.wake.clear()
        if not (self.messages or self.orders or self.forget or self.over):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_COALESCE_SECONDS):
                    await self.wake.wait()
            self.wake.clear()

    def end(self) -> None:
        """End the conversation when what is being said has been taken, and soon in any case.

        A node that takes nothing would otherwise hold the write, and with it the connection, for ever.
        """
        self.over = True
        self.wake.set()
        if self.limit is not None and self.limit.when() is None:
            self.limit.reschedule(asyncio.get_running_loop().time() + LAST_MESSAGE_SECONDS)
