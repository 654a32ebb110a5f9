"""Log and output streams that the server has requested: each one is pushed in a call of its own. [I/O]"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc

from rota.agent.dial import reason_of
from rota.agent.output import files, logs
from rota.model.ids import JobId
from rota.runtimes.protocol import AttemptName
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

Warn = Callable[..., object]


class OutputStreams:
    def __init__(
        self, directory: Path, output_bytes: int, is_live: Callable[[AttemptName], bool], warn: Warn
    ) -> None:
        self._directory = directory
        self._output_bytes = output_bytes
        self._is_live = is_live
        self._warn = warn
        self._open: dict[int, asyncio.Task[None]] = {}

    def handle(self, stub: pb_grpc.AgentStub, message: pb.ToNode, tasks: asyncio.TaskGroup) -> None:
        """Open or close a stream, as a message of the server requests."""
        match message.WhichOneof("word"):
            case "open_log":
                self._open[message.open_log.id] = tasks.create_task(self._push_log(stub, message.open_log))
            case "open_outputs":
                request = message.open_outputs
                self._open[request.id] = tasks.create_task(self._push_outputs(stub, request))
            case "close_log":
                # Popped here as well: a close may arrive before the stream has ended by itself.
                stream = self._open.pop(message.close_log.id, None)
                if stream is not None:
                    stream.cancel()
            case _:
                self._warn("unknown message")

    async def _push_log(self, stub: pb_grpc.AgentStub, request: pb.OpenLog) -> None:
        name = AttemptName(JobId(request.job), request.index, request.attempt)

        async def chunks() -> AsyncIterator[pb.LogChunk]:
            async for chunk in logs.read(self._directory, request, lambda: self._is_live(name)):
                yield chunk

        try:
            await stub.PushLog(chunks())
        except grpc.aio.AioRpcError as error:
            self._warn("log not sent", attempt=name, reason=reason_of(error))
        finally:
            self._open.pop(request.id, None)

    async def _push_outputs(self, stub: pb_grpc.AgentStub, request: pb.OpenOutputs) -> None:
        try:
            await stub.PushLog(files.read(self._directory, request, self._output_bytes))
        except grpc.aio.AioRpcError as error:
            self._warn("outputs not sent", job=request.job, reason=reason_of(error))
        finally:
            self._open.pop(request.id, None)
