"""The calls of etcd that are needed: its members are asked one after the other, each for so long. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from rota.model.errors import Transient, Unavailable
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.generated import etcd_pb2_grpc as pb_grpc

CALL_SECONDS = 1.0  # one member, one call: more and it counts as hanging
_TIMEOUT_CALLS = 1.8  # times that for all members together, so that whoever waits is told within two seconds
_LEAST_SECONDS = 0.2
T = TypeVar("T")

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.enable_retries", 0),  # whether a write may be repeated is not for the channel to say
]
_HAS_LEADER = ("hasleader", "true")  # a member that is cut off from the others says so at once
_STALE_TOKEN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT)
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)


class Exhausted(Unavailable):
    """etcd has no room for it: its space is used up, or more comes in than it takes."""


class Compacted(Unavailable):
    """What was to be read is no longer kept."""


@dataclass(frozen=True)
class EtcdAccess:
    """Where etcd is, and as whom it is asked."""

    endpoints: tuple[str, ...]
    ca_pem: bytes | None = None  # with it TLS is spoken
    cert_pem: bytes | None = None
    key_pem: bytes | None = field(default=None, repr=False)
    user: str | None = None
    password: str = field(default="", repr=False)
    call_seconds: float = CALL_SECONDS

    @property
    def timeout_seconds(self) -> float:
        return self.call_seconds * _TIMEOUT_CALLS


class EtcdMember:
    """One of etcd's servers."""

    def __init__(self, endpoint: str, access: EtcdAccess) -> None:
        self.endpoint = endpoint
        if access.ca_pem is None:
            self.channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(access.ca_pem, access.key_pem, access.cert_pem)
            self.channel = grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)
        self.kv = pb_grpc.KVStub(self.channel)  # type: ignore[no-untyped-call]  # generated
        self.lease = pb_grpc.LeaseStub(self.channel)  # type: ignore[no-untyped-call]  # generated
        self.watch = pb_grpc.WatchStub(self.channel)  # type: ignore[no-untyped-call]  # generated
        self.maintenance = pb_grpc.MaintenanceStub(self.channel)  # type: ignore[no-untyped-call]  # generated
        self.auth = pb_grpc.AuthStub(self.channel)  # type: ignore[no-untyped-call]  # generated


MemberCall = Callable[[EtcdMember, list[tuple[str, str]], float], Awaitable[T]]  # metadata, seconds


class EtcdClient:
    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._members = [EtcdMember(endpoint, access) for endpoint in access.endpoints]
        self._token: str | None = None

    async def close(self) -> None:
        for member in self._members:
            await member.channel.close()

    # ---- what may be asked again and again

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        return await self._ask(lambda one, said, s: one.kv.Range(request, timeout=s, metadata=said))

    async def read_transaction(
        self, request: pb.TxnRequest, timeout_seconds: float | None = None
    ) -> pb.TxnResponse:
        """A transaction that only reads."""
        return await self._ask(
            lambda one, said, s: one.kv.Txn(request, timeout=s, metadata=said), timeout_seconds
        )

    async def grant_lease(self, ttl_seconds: int) -> pb.LeaseGrantResponse:
        request = pb.LeaseGrantRequest(TTL=ttl_seconds)
        return await self._ask(lambda one, said, s: one.lease.LeaseGrant(request, timeout=s, metadata=said))

    async def revoke_lease(self, lease: int) -> None:
        request = pb.LeaseRevokeRequest(ID=lease)
        await self._ask(lambda one, said, s: one.lease.LeaseRevoke(request, timeout=s, metadata=said))

    async def keep_alive(self, lease: int) -> int:
        """For how many seconds from now on; 0: there is no such lease any more."""

        async def once(member: EtcdMember, said: list[tuple[str, str]], seconds: float) -> int:
            stream = member.lease.LeaseKeepAlive(timeout=seconds, metadata=said)
            await stream.write(pb.LeaseKeepAliveRequest(ID=lease))
            answer = await stream.read()
            stream.cancel()
            if not isinstance(answer, pb.LeaseKeepAliveResponse):
                self._rotate_from(member)
                raise Unavailable(f"etcd at {member.endpoint} hung up")
            return int(answer.TTL)

        return await self._ask(once)

    async def compact(self, revision: int) -> None:
        request = pb.CompactionRequest(revision=revision)
        await self._ask(lambda one, said, s: one.kv.Compact(request, timeout=s, metadata=said))

    async def is_full(self) -> bool:
        request = pb.AlarmRequest(alarm=pb.NOSPACE)
        raised = await self._ask(
            lambda one, said, s: one.maintenance.Alarm(request, timeout=s, metadata=said)
        )
        return any(member.alarm == pb.NOSPACE for member in raised.alarms)

    async def status(self) -> pb.StatusResponse:
        return await self._ask(
            lambda one, said, s: one.maintenance.Status(pb.StatusRequest(), timeout=s, metadata=said)
        )

    # ---- what may not

    async def write(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """Said once, to one member. After `Unavailable` it is not known whether it was done, or will be."""
        return await self._once(
            lambda one, said, s: one.kv.Txn(request, timeout=s, metadata=said), self._access.call_seconds
        )

    # ---- what goes on

    async def watch(self, create: pb.WatchCreateRequest) -> AsyncGenerator[pb.WatchResponse, None]:
        """Until the member hangs up, which is `Unavailable`."""
        member = self._members[0]
        stream = member.watch.Watch(metadata=await self._metadata(member))
        try:
            await stream.write(pb.WatchRequest(create_request=create))
            async for response in stream:
                yield response
        except grpc.aio.AioRpcError as error:
            self._rotate_from(member)
            raise _translate_error(error, member) from error
        finally:
            stream.cancel()
        self._rotate_from(member)
        raise Unavailable(f"etcd at {member.endpoint} ended a watch")

    # ---- members

    async def _ask(self, act: MemberCall[T], timeout_seconds: float | None = None) -> T:
        loop = asyncio.get_running_loop()
        call_seconds = self._access.call_seconds
        timeout_seconds = timeout_seconds or self._access.timeout_seconds
        give_up_at = loop.time() + timeout_seconds
        seconds = min(call_seconds, timeout_seconds)
        for _ in self._members[1:]:
            with contextlib.suppress(Unavailable):
                return await self._once(act, seconds)
            seconds = min(call_seconds, max(_LEAST_SECONDS, give_up_at - loop.time()))
        return await self._once(act, seconds)

    async def _once(self, act: MemberCall[T], seconds: float) -> T:
        member = self._members[0]
        try:
            return await act(member, await self._metadata(member), seconds)
        except grpc.aio.AioRpcError as error:
            if self._token is None or error.code() not in _STALE_TOKEN:
                if error.code() in _PASSING:
                    self._rotate_from(member)
                raise _translate_error(error, member) from error
            self._token = None
        try:  # the first one was refused before anything was done
            return await act(member, await self._metadata(member), seconds)
        except grpc.aio.AioRpcError as error:
            raise _translate_error(error, member) from error

    def _rotate_from(self, member: EtcdMember) -> None:
        """The next call goes to the next one, unless another call has found that already."""
        if self._members[0] is member:
            self._members.append(self._members.pop(0))

    async def _metadata(self, member: EtcdMember) -> list[tuple[str, str]]:
        access = self._access
        if access.user is None:
            return [_HAS_LEADER]
        if self._token is None:
            request = pb.AuthenticateRequest(name=access.user, password=access.password)
            answer = await member.auth.Authenticate(
                request, timeout=access.call_seconds, metadata=[_HAS_LEADER]
            )
            self._token = str(answer.token)
        return [_HAS_LEADER, ("token", self._token)]


def _translate_error(error: grpc.aio.AioRpcError, member: EtcdMember) -> Transient:
    said: Any = error.details() or error.code().name.lower()
    match error.code():
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Exhausted(f"etcd at {member.endpoint}: {said}")
        case grpc.StatusCode.OUT_OF_RANGE:
            return Compacted(f"etcd at {member.endpoint}: {said}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(f"etcd at {member.endpoint} does not answer")
        case _:
            return Unavailable(f"etcd at {member.endpoint}: {said}")
