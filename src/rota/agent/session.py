"""One connection to the control plane: its stream, and what was said on it when. [I/O]"""

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
    """This connection is done with; where that is odd, the text says why."""


class ServerGone(ConnectionOver):
    """By the server: other nodes may have lost it, too."""


class AgentSession:
    """One connection: its stream, and what was said on it."""

    def __init__(self, stream: Stream, leads_alone: Callable[[], bool] = lambda: True) -> None:
        """Where others may lead, a server that has fallen silent is left for them."""
        self.stream = stream
        self._leads_alone = leads_alone
        self._received_at_ms = now_ms()
        self.sequence = MessageSequence()
        self.beat_seconds = BEAT_MS / 1000
        self.welcomed = asyncio.Event()
        self.departure: Termination | None = None  # of which the server was told
        self.ends = False  # soon, by our own will: nothing more is started on it
        self.holds_leases = False  # what is said from here on is to be echoed

    def receive(self) -> None:
        self._received_at_ms = now_ms()

    async def send(self, word: pb.FromNode) -> None:
        silent_ms = 0 if self._leads_alone() else now_ms() - self._received_at_ms
        if silent_ms > SERVER_SILENT_MS:
            raise ServerGone(f"the server has said nothing for {silent_ms / 1000:.0f} s")
        word.n = self.sequence.next_number(now_ms())
        word.wants_sign = not self.holds_leases and silent_ms > SERVER_SILENT_MS // 3
        word.holds_leases = self.holds_leases or word.wants_sign
        try:
            await self.stream.write(word)
        except asyncio.InvalidStateError:  # the server has ended the call; whoever reads from it may hear why
            raise ServerGone from None

    def start(self) -> None:
        if not self.sequence.on_welcome(now_ms()):
            raise ConnectionOver("welcomed too late")
        self.welcomed.set()

    def refuse_stale(self, echo: int) -> None:
        """Hear all anew instead."""
        waited_ms = self.sequence.stale_ms(echo, now_ms())
        if waited_ms is not None:
            raise ConnectionOver(f"stale orders are refused: they took {waited_ms / 1000:.1f} s")


def now_ms() -> int:
    """Sleep of the machine included: it is time that the server's word took, too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
