"""Logs and outputs that somebody reads: each goes in a call of its own, until it is not wanted. [I/O]"""

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

Warn = Callable[..., object]  # what happened, and of what


class OutputStreams:
    def __init__(
        self, directory: Path, output_bytes: int, is_live: Callable[[AttemptName], bool], warn: Warn
    ) -> None:
        self._directory = directory
        self._output_bytes = output_bytes
        self._is_live = is_live
        self._warn = warn
        self._open: dict[int, asyncio.Task[None]] = {}

    def handle(self, stub: pb_grpc.AgentStub, word: pb.ToNode, tasks: asyncio.TaskGroup) -> None:
        """One is begun, or no longer wanted."""
        match word.WhichOneof("word"):
            case "open_log":
                self._open[word.open_log.id] = tasks.create_task(self._push_log(stub, word.open_log))
            case "open_outputs":
                asked = word.open_outputs
                self._open[asked.id] = tasks.create_task(self._push_outputs(stub, asked))
            case "close_log":
                reading = self._open.pop(word.close_log.id, None)
                if reading is not None:
                    reading.cancel()
            case _:
                self._warn("a word this version does not know")

    async def _push_log(self, stub: pb_grpc.AgentStub, request: pb.OpenLog) -> None:
        name = AttemptName(JobId(request.job), request.index, request.attempt)

        async def chunks() -> AsyncIterator[pb.LogChunk]:
            async for chunk in logs.read(self._directory, request, lambda: self._is_live(name)):
                yield chunk

        try:
            await stub.PushLog(chunks())
        except grpc.aio.AioRpcError as error:
            self._warn("a log could not be sent", attempt=name, reason=reason_of(error))
        finally:
            self._open.pop(request.id, None)

    async def _push_outputs(self, stub: pb_grpc.AgentStub, request: pb.OpenOutputs) -> None:
        try:
            await stub.PushLog(files.read(self._directory, request, self._output_bytes))
        except grpc.aio.AioRpcError as error:
            self._warn("outputs could not be sent", job=request.job, reason=reason_of(error))
        finally:
            self._open.pop(request.id, None)
