"""gRPC calls that a standby forwards to the leader, whatever their methods and messages. [I/O]

A call is a stream of bytes in each direction, with metadata before and a status after it, for unary methods
too: so a new method of a service needs nothing here. The leader is called at its agent port by mutual TLS.
The caller's token travels with the call and is checked there.

A call waits for a connected leader before its first message is forwarded, so a caller with a deadline of some
seconds does not notice that the leader changes. Once it was forwarded, the standby cannot know what came of
it: it ends with UNAVAILABLE, and the caller repeats it, at the same standby or another server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc

from rota.identity.authority import SERVER_NAME, KeyPair
from rota.wire import forwarding
from rota.wiring.leadership.following import Following

_TIMEOUT_SECONDS = 20.0  # for a leader: longer than an election with the default lease takes
_OPTIONS = [
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The proxy cannot know whether a call may be repeated; the client does, and gets UNAVAILABLE.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
Context = grpc.aio.ServicerContext[Any, Any]
Admit = Callable[[str, str], bool]  # (service, authorization) -> whether the call is forwarded at all
Attest = Callable[[Context], forwarding.Metadata]


class LeaderNotReached(Exception):
    """No leader could be connected in time, or the server that was called is no longer the leader."""


def channel_to(server: str, pair: KeyPair) -> grpc.aio.Channel:
    """A channel to the agent port of a server, with the certificate of a server or a watcher."""
    credentials = grpc.ssl_channel_credentials(pair.ca_pem, pair.key_pem, pair.cert_pem)
    return grpc.aio.secure_channel(server, credentials, options=_OPTIONS)


class LeaderRoute(Protocol):
    """How the leader is reached."""

    def leader(self) -> str | None: ...

    async def changed(self, known: str | None) -> None:
        """Wait until `leader` may return something else than `known`."""

    def reached(
        self, timeout_seconds: float
    ) -> contextlib.AbstractAsyncContextManager[tuple[str, grpc.aio.Channel]]:
        """A connected channel without any message on it, and its server. Raises LeaderNotReached."""


class LeaderChannel:
    """A channel to the leader, replaced when the leader changes or the certificate is renewed."""

    def __init__(self, following: Following, own_address: str, pair: Callable[[], KeyPair]) -> None:
        self._following = following
        self._own_address = own_address
        self._pair = pair
        self._channel: grpc.aio.Channel | None = None
        self._made_for: tuple[str, KeyPair] | None = None
        self._calls: dict[grpc.aio.Channel, int] = {}

    def leader(self) -> str | None:
        """The agent address of the leader; None if that is this server, whose leadership has just ended."""
        record = self._following.leader_record()
        return None if record is None or record.agent == self._own_address else record.agent

    async def changed(self, known: str | None) -> None:
        """Wait until `leader` may return something else than `known`."""
        await self._following.leader_changes(lambda: self.leader() != known)

    @contextlib.asynccontextmanager
    async def reached(self, timeout_seconds: float) -> AsyncIterator[tuple[str, grpc.aio.Channel]]:
        """The address of the leader and a connected channel to it. Raises LeaderNotReached."""
        try:
            async with asyncio.timeout(timeout_seconds):
                leader, channel = await self._connected()
        except TimeoutError:
            raise LeaderNotReached(f"this server stands by, and {self.leader() or 'nobody'} leads") from None
        # Counted before the yield: a channel that is replaced meanwhile stays open for this call.
        self._calls[channel] = self._calls.get(channel, 0) + 1
        try:
            yield leader, channel
        finally:
            self._calls[channel] -= 1
            if not self._calls[channel] and channel is not self._channel:
                del self._calls[channel]
                await channel.close()

    async def _connected(self) -> tuple[str, grpc.aio.Channel]:
        while True:
            leader = self.leader()
            if leader is None:
                await self.changed(None)
                continue
            channel = await self._channel_to(leader)
            if channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                return leader, channel
            async with asyncio.TaskGroup() as tasks:
                ready = tasks.create_task(channel.channel_ready())
                # The leader may change while the connection is tried;
                # waiting for a dead one would use up the caller's deadline.
                other = tasks.create_task(self.changed(leader))
                await asyncio.wait((ready, other), return_when=asyncio.FIRST_COMPLETED)
                is_ready = ready.done()
                ready.cancel()
                other.cancel()
            if is_ready:
                return leader, channel

    async def _channel_to(self, leader: str) -> grpc.aio.Channel:
        pair = self._pair()
        if self._channel is None or self._made_for != (leader, pair):
            # Before the await below: a concurrent call must find the new channel and not make another one.
            before, self._made_for = self._channel, (leader, pair)
            self._channel = channel_to(leader, pair)
            # A channel with calls on it is closed by the last of them, which still counts itself off.
            if before is not None and not self._calls.get(before):
                self._calls.pop(before, None)
                await before.close()
        return self._channel

    async def close(self) -> None:
        channels = {*self._calls, *([self._channel] if self._channel is not None else [])}
        for channel in channels:
            await channel.close()


class LeaderProxy(grpc.GenericRpcHandler):
    """Forwards every method of `services`.

    `admit` decides which calls are forwarded; `attest` returns metadata by which the leader knows the caller.
    """

    def __init__(
        self,
        services: Collection[str],
        channel: LeaderRoute,
        admit: Admit = lambda *_: True,
        attest: Attest = lambda _: (),
    ) -> None:
        self._services = services
        self._channel = channel
        self._admit = admit
        self._attest = attest
        self._closing = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        service = handler_call_details.method.rpartition("/")[0].lstrip("/")
        if service not in self._services:
            return None
        return grpc.stream_stream_rpc_method_handler(
            partial(self._forward, service, handler_call_details.method)
        )

    def close(self) -> None:
        """End every call with a status that callers repeat it on."""
        self._closing.set()

    async def _forward(
        self, service: str, method: str, requests: AsyncIterator[bytes], context: Context
    ) -> None:
        metadata = dict(context.invocation_metadata() or ())
        if not self._admit(service, str(metadata.get("authorization", ""))):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "off loopback this needs a token")
        try:
            # Two standbys that each take the other for the leader would forward a call in a circle.
            if forwarding.FORWARDED in metadata:
                raise LeaderNotReached("this server stands by: a forwarded call is not forwarded again")
            async with self._channel.reached(_timeout_seconds(context)) as (leader, channel):
                await self._call(channel.stream_stream(method), leader, requests, context)
        except LeaderNotReached as reason:
            await self._abort(context, str(reason))

    async def _call(self, method: Any, leader: str, requests: AsyncIterator[bytes], context: Context) -> None:
        metadata = forwarding.forwarded(context.invocation_metadata(), context.peer())
        call = method(metadata=(*metadata, *self._attest(context)), timeout=context.time_remaining())
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(_send(requests, call))
                answering = tasks.create_task(_answer(call, context))
                ending = [
                    tasks.create_task(self._channel.changed(leader)),
                    tasks.create_task(self._closing.wait()),
                ]
                # The call also ends when the leader changes: the old
                # leader could hold it open without ever answering.
                await asyncio.wait((answering, *ending), return_when=asyncio.FIRST_COMPLETED)
                # Read before the tasks are cancelled, which makes all of them done.
                is_answered = answering.done()
                for task in (sending, answering, *ending):
                    task.cancel()
        finally:
            call.cancel()
        if not is_answered:
            raise LeaderNotReached(f"the call was forwarded to {leader}, which no longer leads: repeat it")
        await self._end_as(call, context)

    async def _end_as(self, call: Any, context: Context) -> None:
        """End the call with the status and the trailing metadata of the forwarded one."""
        code, trailing = await call.code(), tuple(await call.trailing_metadata() or ())
        if code is grpc.StatusCode.OK:
            context.set_trailing_metadata(trailing)
            return
        # A server's own status has metadata: without it the connection is broken, and the outcome unknown.
        if code in _BROKEN and not trailing:
            await self._abort(context, "the leader was lost during the call: repeat it")
        await context.abort(code, await call.details() or "", trailing)

    async def _abort(self, context: Context, reason: str) -> NoReturn:
        leader = self._channel.leader()
        trailing = () if leader is None else ((forwarding.LEADER, leader),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, reason, trailing)
        raise AssertionError("abort has raised")


def _timeout_seconds(context: Context) -> float:
    left: float | None = context.time_remaining()  # None: the caller has set no deadline
    return _TIMEOUT_SECONDS if left is None else min(_TIMEOUT_SECONDS, left)


async def _send(requests: AsyncIterator[bytes], call: Any) -> None:
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
        pass  # the call has ended: its status says why


async def _answer(call: Any, context: Context) -> None:
    try:
        initial = await call.initial_metadata()
        await context.send_initial_metadata(tuple(initial or ()))
        async for answer in call:
            await context.write(answer)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # the call has ended: its status says why
