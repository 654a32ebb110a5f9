"""Client of etcd: the calls that Rota needs, with failover from member to member and time limits. [I/O]

Reads and idempotent calls are tried on one member after another. A write is sent once to one member, since
only the caller can tell whether repeating it is safe.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from rota.model.errors import Transient, Unavailable
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.generated import etcd_pb2_grpc as pb_grpc

CALL_SECONDS = 1.0  # for one call to one member: a slower one counts as hanging
_TIMEOUT_CALLS = 1.8  # times that for all members together, so that callers get an answer within two seconds
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
    ("grpc.enable_retries", 0),  # the channel cannot know whether a write may be repeated
]
_HAS_LEADER = ("hasleader", "true")  # a member without quorum fails immediately instead of waiting
_STALE_TOKEN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT)
_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)


class Exhausted(Unavailable):
    """etcd rejected a request as RESOURCE_EXHAUSTED: its quota is used up, or it has too many requests."""


class Compacted(Unavailable):
    """The requested revision of etcd was compacted."""


@dataclass(frozen=True)
class EtcdAccess:
    """Endpoints of etcd, and the credentials for them."""

    endpoints: tuple[str, ...]
    ca_pem: bytes | None = None  # None: without TLS
    cert_pem: bytes | None = None
    key_pem: bytes | None = field(default=None, repr=False)
    user: str | None = None
    password: str = field(default="", repr=False)
    call_seconds: float = CALL_SECONDS

    @property
    def timeout_seconds(self) -> float:
        return self.call_seconds * _TIMEOUT_CALLS


class EtcdMember:
    """One server of etcd, with its channel and stubs."""

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

    # ---- idempotent calls

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        return await self._ask(
            lambda member, metadata, seconds: member.kv.Range(request, timeout=seconds, metadata=metadata)
        )

    async def read_transaction(
        self, request: pb.TxnRequest, timeout_seconds: float | None = None
    ) -> pb.TxnResponse:
        """A transaction that only reads."""
        return await self._ask(
            lambda member, metadata, seconds: member.kv.Txn(request, timeout=seconds, metadata=metadata),
            timeout_seconds,
        )

    async def grant_lease(self, ttl_seconds: int) -> pb.LeaseGrantResponse:
        request = pb.LeaseGrantRequest(TTL=ttl_seconds)
        return await self._ask(
            lambda member, metadata, seconds: member.lease.LeaseGrant(
                request, timeout=seconds, metadata=metadata
            )
        )

    async def revoke_lease(self, lease: int) -> None:
        request = pb.LeaseRevokeRequest(ID=lease)
        await self._ask(
            lambda member, metadata, seconds: member.lease.LeaseRevoke(
                request, timeout=seconds, metadata=metadata
            )
        )

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease; returns its remaining seconds, 0 if it has expired."""

        async def once(member: EtcdMember, metadata: list[tuple[str, str]], seconds: float) -> int:
            stream = member.lease.LeaseKeepAlive(timeout=seconds, metadata=metadata)
            await stream.write(pb.LeaseKeepAliveRequest(ID=lease))
            answer = await stream.read()
            stream.cancel()
            if not isinstance(answer, pb.LeaseKeepAliveResponse):
                self._rotate_from(member)
                raise Unavailable(f"etcd at {member.endpoint} closed the connection")
            return int(answer.TTL)

        return await self._ask(once)

    async def compact(self, revision: int) -> None:
        request = pb.CompactionRequest(revision=revision)
        await self._ask(
            lambda member, metadata, seconds: member.kv.Compact(request, timeout=seconds, metadata=metadata)
        )

    async def is_full(self) -> bool:
        request = pb.AlarmRequest(alarm=pb.NOSPACE)
        raised = await self._ask(
            lambda member, metadata, seconds: member.maintenance.Alarm(
                request, timeout=seconds, metadata=metadata
            )
        )
        return any(member.alarm == pb.NOSPACE for member in raised.alarms)

    async def status(self) -> pb.StatusResponse:
        return await self._ask(
            lambda member, metadata, seconds: member.maintenance.Status(
                pb.StatusRequest(), timeout=seconds, metadata=metadata
            )
        )

    # ---- writes

    async def write(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """Send a transaction once, to one member. After `Unavailable` it may be applied now or later."""
        return await self._once(
            lambda member, metadata, seconds: member.kv.Txn(request, timeout=seconds, metadata=metadata),
            self._access.call_seconds,
        )

    # ---- streams

    async def watch(self, create: pb.WatchCreateRequest) -> AsyncGenerator[pb.WatchResponse, None]:
        """Responses of a watch until the member ends it, which raises `Unavailable`."""
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

    async def _ask(self, call: MemberCall[T], timeout_seconds: float | None = None) -> T:
        """Call one member after another until one answers, within the timeout for all of them."""
        loop = asyncio.get_running_loop()
        call_seconds = self._access.call_seconds
        timeout_seconds = timeout_seconds or self._access.timeout_seconds
        # A deadline for all members together: with one timeout
        # each, a caller would wait for as many as there are.
        deadline = loop.time() + timeout_seconds
        seconds = min(call_seconds, timeout_seconds)
        for _ in self._members[1:]:
            # Only idempotent calls come here, so trying another member cannot apply anything twice.
            with contextlib.suppress(Unavailable):
                return await self._once(call, seconds)
            seconds = min(call_seconds, max(_LEAST_SECONDS, deadline - loop.time()))
        return await self._once(call, seconds)

    async def _once(self, call: MemberCall[T], seconds: float) -> T:
        member = self._members[0]
        try:
            return await call(member, await self._metadata(member), seconds)
        except grpc.aio.AioRpcError as error:
            if self._token is None or error.code() not in _STALE_TOKEN:
                if error.code() in _TRANSIENT:
                    self._rotate_from(member)
                raise _translate_error(error, member) from error
            self._token = None
        # Safe also for a write: the first call was rejected for its token, before anything was applied.
        try:
            return await call(member, await self._metadata(member), seconds)
        except grpc.aio.AioRpcError as error:
            raise _translate_error(error, member) from error

    def _rotate_from(self, member: EtcdMember) -> None:
        """Make the next member the first, unless a concurrent call has done that already."""
        # Race: several calls may fail on the same member at
        # once. Rotating for each would skip healthy ones.
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
    details: Any = error.details() or error.code().name.lower()
    match error.code():
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Exhausted(f"etcd at {member.endpoint}: {details}")
        case grpc.StatusCode.OUT_OF_RANGE:
            return Compacted(f"etcd at {member.endpoint}: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(f"etcd at {member.endpoint} does not answer")
        case _:
            return Unavailable(f"etcd at {member.endpoint}: {details}")
