"""The agent's session with a server: its stream, sequence numbers and liveness of the server. [I/O]"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc

from rota.agent.host.termination_notice import Termination
from rota.agent.sequence import MessageSequence
from rota.model.limits import BEAT_MS, SERVER_SILENT_MS
from rota.wire.generated import agent_pb2 as pb

Stream = grpc.aio.StreamStreamCall[Any, Any]


class ConnectionOver(Exception):
    """This connection is to be closed; the text, if any, is the reason to log."""


class ServerGone(ConnectionOver):
    """The server closed the connection or went silent; back off with jitter, as other nodes lost it, too."""


class AgentSession:
    """One connection from its hello to its end."""

    def __init__(self, stream: Stream, leads_alone: Callable[[], bool] = lambda: True) -> None:
        """`leads_alone`: there is no other server. If there is one, a silent server is left for it."""
        self.stream = stream
        self._leads_alone = leads_alone
        self._received_at_ms = now_ms()
        self.sequence = MessageSequence()
        self.beat_seconds = BEAT_MS / 1000
        self.welcomed = asyncio.Event()
        self.departure: Termination | None = None  # the termination that the server was last sent
        self.ends = False  # a planned reconnect is near: nothing more is started on this connection
        self.holds_leases = False  # run leases depend on the echoes of what is sent from here on

    def receive(self) -> None:
        self._received_at_ms = now_ms()

    async def send(self, message: pb.FromNode) -> None:
        # With a single server there is no other to go to, so its silence is waited out.
        silent_ms = 0 if self._leads_alone() else now_ms() - self._received_at_ms
        if silent_ms > SERVER_SILENT_MS:
            raise ServerGone(f"the server has been silent for {silent_ms / 1000:.0f} s")
        message.n = self.sequence.next_number(now_ms())
        message.wants_sign = not self.holds_leases and silent_ms > SERVER_SILENT_MS // 3
        message.holds_leases = self.holds_leases or message.wants_sign
        try:
            await self.stream.write(message)
        except asyncio.InvalidStateError:  # the server has ended the call; the reading side gets the reason
            raise ServerGone from None

    def start(self) -> None:
        # By then the server may have declared this node suspect and withdrawn its offers.
        if not self.sequence.on_welcome(now_ms()):
            raise ConnectionOver("welcomed too late")
        self.welcomed.set()

    def refuse_stale(self, echo: int) -> None:
        """End the connection on stale orders: the next hello brings current ones."""
        waited_ms = self.sequence.stale_ms(echo, now_ms())
        if waited_ms is not None:
            raise ConnectionOver(f"stale orders refused: they took {waited_ms / 1000:.1f} s")


def now_ms() -> int:
    """The boot-time clock, which includes suspend: messages age while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
