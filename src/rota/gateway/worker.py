"""A worker as we dial it: calls that end, and say whether it was there. [I/O]"""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import grpc

from rota.gateway.generated import jobscheduler_pb2 as pb
from rota.gateway.generated import jobscheduler_pb2_grpc as pb_grpc
from rota.model.errors import BadField
from rota.model.limits import WORKER_ANSWER_MS
from rota.wire import bounds

_ANSWER_SECONDS = WORKER_ANSWER_MS / 1000
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 20_000),  # a connection that died in silence is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),  # no worker shares a connection with another
]


class WorkerUnreachable(Exception):
    """Nobody answers there."""


class WorkerRefused(Exception):
    """The worker says no."""


class WorkerReply(NamedTuple):
    done: bool
    error: bool
    text: str


class Worker:
    """`trusted`: whose certificates are believed; None: plain text."""

    def __init__(self, address: str, trusted: bytes | None) -> None:
        if trusted is None:
            self._channel = grpc.aio.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(trusted), _OPTIONS)
        self._stub: Any = pb_grpc.WorkerStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    async def close(self) -> None:
        await self._channel.close()

    async def is_reachable(self, seconds: float = _ANSWER_SECONDS) -> bool:
        """Whatever a worker says of a job that nobody has: it says something."""
        try:
            await self.query("", seconds)
        except WorkerUnreachable:
            return False
        except WorkerRefused:
            pass
        return True

    async def start(self, command: str, path: str) -> str:
        """For as long as it takes: what is given up here might run there all the same."""
        answer = await self._call("StartJob", pb.StartJobRequest(command=command, path=path), None)
        return str(answer.jobID)

    async def stop(self, job: str) -> None:
        await self._call("StopJob", pb.StopJobRequest(jobID=job), _ANSWER_SECONDS)

    async def query(self, job: str, seconds: float = _ANSWER_SECONDS) -> WorkerReply:
        said = await self._call("QueryJob", pb.QueryJobRequest(jobID=job), seconds)
        return WorkerReply(said.done, said.error, said.errorText)

    async def stream(self, job: str) -> AsyncIterator[bytes]:
        call = self._stub.StreamJob(pb.StreamJobRequest(path=job))
        try:
            async for piece in call:
                yield piece.output
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # the rest of the contract it may well know
                raise WorkerRefused("it does not implement StreamJob") from None
            raise _told(error) from None
        finally:
            call.cancel()

    async def _call(self, method: str, request: Any, seconds: float | None) -> Any:
        try:
            answer = await getattr(self._stub, method)(request, timeout=seconds)
            bounds.check(answer)
        except grpc.aio.AioRpcError as error:
            raise _told(error) from None
        except BadField as nonsense:
            raise WorkerRefused(f"it answers what cannot be: {nonsense}") from None
        return answer


def _told(error: grpc.aio.AioRpcError) -> Exception:
    text = (error.details() or error.code().name.lower())[:500]
    away = error.code() in _AWAY or error.code() is grpc.StatusCode.UNIMPLEMENTED  # that is no worker
    return WorkerUnreachable(text) if away else WorkerRefused(text)
