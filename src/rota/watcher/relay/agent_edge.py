"""The agents' side of a watcher: streams of agents, and answers to their heartbeats. [I/O]

Orders pass through as the bytes that the leader sent. Epoch, echo and watermark in them are the leader's own,
and the agent checks them as if it were connected to the leader directly. A watcher can delay an order, and
the agent then refuses it as stale; it cannot make an old order look new.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from rota.model.errors import BadField
from rota.watcher.relay.uplink import LeaderUnreachable, RelayedSession, Uplink
from rota.watcher.session import SessionOver
from rota.wire import bounds, service_names
from rota.wire.forwarding import shown_certificate
from rota.wire.generated import agent_pb2 as pb

log = structlog.get_logger("rota.watcher")

_CONNECT = f"/{service_names.AGENT}/Connect"
_LAST_MESSAGE_SECONDS = 5.0  # for the agent to read the message being written, before its call ends
Context = grpc.aio.ServicerContext[Any, Any]


class AgentEdge(grpc.GenericRpcHandler):
    """Serves `Connect` of agent.proto; writes serialized messages, as they came from the leader."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != _CONNECT:
            return None
        return grpc.stream_stream_rpc_method_handler(
            self._connect, request_deserializer=pb.FromNode.FromString
        )

    async def _connect(self, requests: AsyncIterator[pb.FromNode], context: Context) -> None:
        messages = aiter(requests)
        try:
            first = await anext(messages)
            bounds.check(first)
            if first.WhichOneof("word") != "hello":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be hello")
            session = self._uplink.open(shown_certificate(context), first, context.peer())
        except StopAsyncIteration:
            return
        except BadField as invalid:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{invalid} ({invalid.hint})")
        except LeaderUnreachable as reason:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(reason))
        try:
            async with asyncio.TaskGroup() as halves:
                halves.create_task(self._receive_loop(session, messages))
                halves.create_task(_send_loop(session, context))
        except* SessionOver:
            pass
        finally:
            # Also after a failure: the leader would keep the session until the watcher's connection ends.
            self._uplink.close(session)
        if session.end is not None and session.end[0] is not grpc.StatusCode.OK:
            await context.abort(*session.end)

    async def _receive_loop(self, session: RelayedSession, messages: AsyncIterator[pb.FromNode]) -> None:
        try:
            async for message in messages:
                bounds.check(message)
                self._receive(session, message)
        except BadField as invalid:
            log.error("invalid message from node", reason=str(invalid))
            session.finish(grpc.StatusCode.INVALID_ARGUMENT, f"{invalid} ({invalid.hint})")
            # Cancelling the other half in the middle of a write would keep the status from being sent.
            await asyncio.sleep(_LAST_MESSAGE_SECONDS)
        raise SessionOver

    def _receive(self, session: RelayedSession, message: pb.FromNode) -> None:
        if message.wants_sign:
            # What the leader has acknowledged, not what was received
            # here: the agent must not take this watcher for the leader.
            alive = pb.Alive(echo=session.acknowledged_n)
            session.push(pb.ToNode(epoch=self._uplink.epoch, alive=alive).SerializeToString())
        if message.WhichOneof("word") != "beat":
            self._uplink.send(session, message)
            return
        # With wants_sign the echo was asked for as a sign of life only, and that is sent above.
        holds_leases = message.holds_leases and not message.wants_sign
        self._uplink.acknowledge(session, message.n, holds_leases=holds_leases)
        if message.beat.HasField("load"):
            self._uplink.measure(session, message.beat.load)


async def _send_loop(session: RelayedSession, context: Context) -> None:
    while messages := await session.next_messages():
        for message in messages:
            await context.write(message)
    raise SessionOver
