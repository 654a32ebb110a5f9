"""A node's side of agent.proto, for a worker that knows nothing of it: alive while that answers. [I/O]"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc
import structlog

from rota.engine.run import Engine
from rota.gateway.attempts import Name, RemoteAttemptTracker
from rota.gateway.log_chunks import WorkerLogSource, chunks_of, error_chunk
from rota.gateway.remote_attempt import RemoteAttempt
from rota.gateway.worker import Worker
from rota.model.columns import ints
from rota.model.ids import JobId, NodeId
from rota.model.limits import BLOCK_TASKS, DIALLED_CPU_MILLI, WORKER_PROBE_MS
from rota.model.messages import Hello, JobOrders, StopMode, TaskTemplate, task_template
from rota.model.node import Dialled
from rota.model.view import View
from rota.wire import agent as wire
from rota.wire.generated import agent_pb2 as pb

_PROBE_SECONDS = WORKER_PROBE_MS / 1000
VERSION = "dialled"
log = structlog.get_logger("rota.gateway")


class GatewayOutbound(Protocol):
    """What the control plane says into."""

    async def write(self, word: pb.ToNode) -> None: ...
    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...


class NodeService(Protocol):
    """The same door at which agents speak, from within this process."""

    async def serve_session(
        self, node: NodeId, words: AsyncIterator[pb.FromNode], line: GatewayOutbound
    ) -> None:
        """Until one side ends it."""

    async def relay_log(self, node: NodeId, chunks: AsyncIterator[pb.LogChunk]) -> None: ...
    async def leave(self, node: NodeId, reason: str) -> None: ...


class HandshakeRefused(Exception):
    """The control plane does not greet it now."""


class ProxyNode:
    def __init__(
        self, engine: Engine, door: NodeService, node: NodeId, dialled: Dialled, worker: Worker
    ) -> None:
        self._engine = engine
        self._door = door
        self._node = node
        self._dialled = dialled
        self._worker = worker
        self._attempts = RemoteAttemptTracker()
        self._remote_attempts: dict[Name, RemoteAttempt] = {}
        self._templates: dict[JobId, TaskTemplate] = {}
        self._readings: dict[int, asyncio.Task[None]] = {}
        self._n = 0

    async def run(self) -> None:
        """For as long as the worker is registered, whether it is there or not."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for ward in await self._engine.read(self._resume_attempts):
                self._watch(ward)
            while True:
                if await self._worker.is_reachable():
                    await self._session()
                await asyncio.sleep(_PROBE_SECONDS)

    def _resume_attempts(self, view: View) -> list[RemoteAttempt]:
        """What the worker was told to run before we were here, by the names it gave."""
        found: list[RemoteAttempt] = []
        for (job_id, index), attempt in view.nodes[self._node].assigned.items():
            job = view.jobs[job_id]
            block, position = divmod(index, BLOCK_TASKS)
            status = job.statuses.get(block)
            handle = "" if status is None else status.handles.get(position, "")
            if status is not None and handle and ints(status, "number")[position] == attempt:
                ward = RemoteAttempt(
                    (job_id, index, attempt), task_template(job.spec), self._worker, self._attempts.record
                )
                found.append(ward.resume(handle, ints(status, "started_at_ms")[position]))
        return found

    # ---- one conversation with the control plane

    async def _session(self) -> None:
        words: asyncio.Queue[pb.FromNode | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as halves:
            speaking = [
                halves.create_task(self._beat(words)),
                halves.create_task(self._report(words)),
            ]
            try:
                await self._door.serve_session(self._node, self._messages(words), self)
            except HandshakeRefused as reason:
                log.info("a worker is not greeted", node=self._node, reason=str(reason))
            finally:
                for half in speaking:
                    half.cancel()

    async def _messages(self, words: "asyncio.Queue[pb.FromNode | None]") -> AsyncIterator[pb.FromNode]:
        self._n = 1
        yield pb.FromNode(n=1, hello=wire.hello_to_wire(self._hello()))
        while (word := await words.get()) is not None:
            yield word

    def _hello(self) -> Hello:
        return Hello(
            machine_id=self._dialled.address,
            boot_id=self._dialled.worker_id,
            version=VERSION,
            capacity={"cpu": DIALLED_CPU_MILLI},
            labels={},
            epoch_seen=0,
            inventory=self._attempts.inventory(1),
        )

    async def _beat(self, words: "asyncio.Queue[pb.FromNode | None]") -> None:
        """It lives as long as its worker answers; when nobody does, it falls silent, or hangs up."""
        unanswered = 0
        while unanswered < 2:
            await asyncio.sleep(_PROBE_SECONDS)
            if await self._worker.is_reachable():
                unanswered = 0
                words.put_nowait(self._next_message(beat=pb.Beat()))
            else:
                unanswered += 1
        words.put_nowait(None)

    async def _report(self, words: "asyncio.Queue[pb.FromNode | None]") -> None:
        while True:
            await self._attempts.changed.wait()
            word = self._next_message()
            claims = self._attempts.drain_changes(word.n)
            if claims:
                word.report.CopyFrom(pb.Report(jobs=wire.reports_to_wire(claims)))
                words.put_nowait(word)

    def _next_message(self, **said: Any) -> pb.FromNode:
        self._n += 1
        return pb.FromNode(n=self._n, **said)

    # ---- what the control plane says (gRPC chooses these names)

    async def write(self, word: pb.ToNode) -> None:
        match word.WhichOneof("word"):
            case "orders":
                self._apply_orders(word.orders)
            case "open_log":
                self._send_log(word.open_log)
            case "open_outputs":
                refusal = error_chunk(word.open_outputs.id, "a worker that is dialled keeps no files")
                self._tasks.create_task(self._door.relay_log(self._node, refusal))
            case "close_log":
                reading = self._readings.pop(word.close_log.id, None)
                if reading is not None:
                    reading.cancel()
            case _:
                pass  # how often to report how busy it is, and where else: nothing for a worker

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise HandshakeRefused(f"{code.name}: {details}")

    def _apply_orders(self, orders: pb.Orders) -> None:
        for one in map(wire.orders_from_wire, orders.jobs):
            if one.work is not None:
                self._templates[one.job] = one.work
            self._apply_order(one)
        self._attempts.on_durable(orders.stored)
        for job in orders.forget:
            self._templates.pop(JobId(job), None)

    def _apply_order(self, one: JobOrders) -> None:
        for start in one.start:
            name = (one.job, start.index, start.attempt)
            if name not in self._remote_attempts:
                self._watch(
                    RemoteAttempt(name, self._templates[one.job], self._worker, self._attempts.record)
                )
        for stop in one.stop:
            ward = self._remote_attempts.get((one.job, stop.index, stop.attempt))
            if ward is not None and stop.how is not StopMode.IF_QUEUED:
                ward.stop()

    def _watch(self, ward: RemoteAttempt) -> None:
        self._remote_attempts[ward.name] = ward
        watching = self._tasks.create_task(ward.run())
        watching.add_done_callback(lambda _: self._remote_attempts.pop(ward.name, None))

    def _send_log(self, asked: pb.OpenLog) -> None:
        name = (JobId(asked.job), asked.index, asked.attempt)
        handle = partial(self._handle, name, follow=asked.follow)
        source = WorkerLogSource(self._worker, handle, self._tasks, lambda: name in self._remote_attempts)
        chunks = chunks_of(source, asked)
        taking = self._door.relay_log(self._node, chunks)
        reading = self._readings[asked.id] = self._tasks.create_task(taking)
        reading.add_done_callback(lambda _: self._readings.pop(asked.id, None))

    async def _handle(self, name: Name, *, follow: bool) -> str:
        """What the worker calls it; empty: it has no name there."""
        job_id, index, attempt = name
        ward = self._remote_attempts.get(name)
        if ward is not None:
            return await ward.handle_once_started() if follow else ward.handle
        job = self._engine.mirror.jobs.get(job_id)
        block, position = divmod(index, BLOCK_TASKS)
        status = None if job is None else job.statuses.get(block)
        if status is None or ints(status, "number")[position] != attempt:
            return ""
        return status.handles.get(position, "")
