"""Worker: the client of one worker's gRPC service; tells unreachable workers from those that refuse. [I/O]"""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import grpc

from rota.gateway.generated import jobscheduler_pb2 as pb
from rota.gateway.generated import jobscheduler_pb2_grpc as pb_grpc
from rota.model.errors import BadField
from rota.model.limits import WORKER_ANSWER_MS
from rota.wire import bounds

_ANSWER_SECONDS = WORKER_ANSWER_MS / 1000
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 20_000),  # detects a connection that died silently
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),  # no two workers share a connection
]


class WorkerUnreachable(Exception):
    """The worker did not answer; for a call that changes something, whether it was done is not known."""


class WorkerRefused(Exception):
    """The worker answered with an error."""


class WorkerReply(NamedTuple):
    """The state of a job as its worker reports it."""

    done: bool
    error: bool
    text: str


class Worker:
    """`trusted`: PEM of the CAs that may sign the worker's certificate; None: without TLS."""

    def __init__(self, address: str, trusted: bytes | None) -> None:
        if trusted is None:
            self._channel = grpc.aio.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(trusted), _OPTIONS)
        self._stub: Any = pb_grpc.WorkerStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    async def close(self) -> None:
        await self._channel.close()

    async def is_reachable(self, seconds: float = _ANSWER_SECONDS) -> bool:
        """Whether the worker answers a query, even with an error: the queried job does not exist."""
        try:
            await self.query("", seconds)
        except WorkerUnreachable:
            return False
        except WorkerRefused:
            pass
        return True

    async def start(self, command: str, path: str) -> str:
        """Start a job; the worker's id of it. No timeout: a start that is given up here might run there."""
        reply = await self._call("StartJob", pb.StartJobRequest(command=command, path=path), None)
        return str(reply.jobID)

    async def stop(self, job: str) -> None:
        await self._call("StopJob", pb.StopJobRequest(jobID=job), _ANSWER_SECONDS)

    async def query(self, job: str, seconds: float = _ANSWER_SECONDS) -> WorkerReply:
        reply = await self._call("QueryJob", pb.QueryJobRequest(jobID=job), seconds)
        return WorkerReply(reply.done, reply.error, reply.errorText)

    async def stream(self, job: str) -> AsyncIterator[bytes]:
        call = self._stub.StreamJob(pb.StreamJobRequest(path=job))
        try:
            async for message in call:
                yield message.output
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # this method is optional
                raise WorkerRefused("it does not implement StreamJob") from None
            raise _to_worker_error(error) from None
        finally:
            call.cancel()

    async def _call(self, method: str, request: Any, seconds: float | None) -> Any:
        try:
            reply = await getattr(self._stub, method)(request, timeout=seconds)
            bounds.check(reply)
        except grpc.aio.AioRpcError as error:
            raise _to_worker_error(error) from None
        except BadField as error:
            raise WorkerRefused(f"its answer is invalid: {error}") from None
        return reply


def _to_worker_error(error: grpc.aio.AioRpcError) -> Exception:
    text = (error.details() or error.code().name.lower())[:500]
    # Without the method, another program listens at this address.
    unreachable = error.code() in _UNREACHABLE or error.code() is grpc.StatusCode.UNIMPLEMENTED
    return WorkerUnreachable(text) if unreachable else WorkerRefused(text)
