"""The agents' side of a watcher: their streams, and answers to their beats. [I/O]

Orders pass through as the bytes that the leader made. So the epoch, the echo and the acknowledgements in them
are the leader's own, and an agent judges them as if it were connected to it. A watcher can delay an order,
and the agent then refuses it as stale; it cannot make an old order look new.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from rota.model.errors import BadField
from rota.watcher.session import SessionOver
from rota.watcher.uplink import LeaderUnreachable, RelayedSession, Uplink
from rota.wire import bounds, service_names
from rota.wire.forwarding import shown_certificate
from rota.wire.generated import agent_pb2 as pb

log = structlog.get_logger("rota.watcher")

_CONNECT = f"/{service_names.AGENT}/Connect"
_LAST_MESSAGE_SECONDS = 5.0  # for the agent to take what it is being told, before its call ends
Context = grpc.aio.ServicerContext[Any, Any]


class AgentEdge(grpc.GenericRpcHandler):
    """Serves `Connect` of agent.proto; what is written back is bytes."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != _CONNECT:
            return None
        return grpc.stream_stream_rpc_method_handler(
            self._connect, request_deserializer=pb.FromNode.FromString
        )

    async def _connect(self, requests: AsyncIterator[pb.FromNode], context: Context) -> None:
        words = aiter(requests)
        try:
            first = await anext(words)
            bounds.check(first)
            if first.WhichOneof("word") != "hello":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first word must be hello")
            session = self._uplink.open(shown_certificate(context), first, context.peer())
        except StopAsyncIteration:
            return
        except BadField as nonsense:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{nonsense} ({nonsense.hint})")
        except LeaderUnreachable as reason:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(reason))
        try:
            async with asyncio.TaskGroup() as halves:
                halves.create_task(self._receive_loop(session, words))
                halves.create_task(_send_loop(session, context))
        except* SessionOver:
            pass
        finally:
            self._uplink.close(session)
        if session.end is not None and session.end[0] is not grpc.StatusCode.OK:
            await context.abort(*session.end)

    async def _receive_loop(self, session: RelayedSession, words: AsyncIterator[pb.FromNode]) -> None:
        try:
            async for word in words:
                bounds.check(word)
                self._receive(session, word)
        except BadField as nonsense:
            log.error("a node says what cannot be", reason=str(nonsense))
            session.finish(grpc.StatusCode.INVALID_ARGUMENT, f"{nonsense} ({nonsense.hint})")
            # A write that is cancelled halfway keeps the status from being sent: the other half ends it.
            await asyncio.sleep(_LAST_MESSAGE_SECONDS)
        raise SessionOver

    def _receive(self, session: RelayedSession, word: pb.FromNode) -> None:
        if word.wants_sign:
            alive = pb.Alive(echo=session.acknowledged_n)
            session.push(pb.ToNode(epoch=self._uplink.epoch, alive=alive).SerializeToString())
        if word.WhichOneof("word") != "beat":
            self._uplink.send(session, word)
            return
        self._uplink.acknowledge(session, word.n, holds_leases=word.holds_leases and not word.wants_sign)
        if word.beat.HasField("load"):
            self._uplink.measure(session, word.beat.load)


async def _send_loop(session: RelayedSession, context: Context) -> None:
    while words := await session.next_messages():
        for word in words:
            await context.write(word)
    raise SessionOver
