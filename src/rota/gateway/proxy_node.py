"""ProxyNode: the agent's side of agent.proto for a worker that knows nothing of it. [I/O]

The node is alive as long as its worker answers. Its state is in memory only: after a restart of the server it
is rebuilt from the stored status of its attempts, by the ids that the worker gave them.
"""

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
from rota.wire.agent import hello_to_wire, orders_from_wire, reports_to_wire
from rota.wire.generated import agent_pb2 as pb

_PROBE_SECONDS = WORKER_PROBE_MS / 1000
VERSION = "dialled"
OutgoingQueue = asyncio.Queue[pb.FromNode | None]  # None: disconnect
log = structlog.get_logger("rota.gateway")


class GatewayOutbound(Protocol):
    """The sending half of a session, as the watcher sees it."""

    async def write(self, message: pb.ToNode) -> None: ...
    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...


class NodeService(Protocol):
    """The service that agents call, called from within this process."""

    async def serve_session(
        self, node: NodeId, messages: AsyncIterator[pb.FromNode], outbound: GatewayOutbound, /
    ) -> None:
        """Serve a session until one side ends it."""

    async def relay_log(self, node: NodeId, chunks: AsyncIterator[pb.LogChunk]) -> None: ...
    async def leave(self, node: NodeId, reason: str) -> None: ...


class HandshakeRefused(Exception):
    """The server refused the handshake of this node."""


class ProxyNode:
    """The node of one registered worker."""

    def __init__(
        self, engine: Engine, service: NodeService, node: NodeId, dialled: Dialled, worker: Worker
    ) -> None:
        self._engine = engine
        self._service = service
        self._node = node
        self._dialled = dialled
        self._worker = worker
        self._attempts = RemoteAttemptTracker()
        self._remote_attempts: dict[Name, RemoteAttempt] = {}
        self._templates: dict[JobId, TaskTemplate] = {}
        self._log_readers: dict[int, asyncio.Task[None]] = {}
        self._n = 0  # sequence number of the last message

    async def run(self) -> None:
        """Run until cancelled, with a session whenever the worker is reachable."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            # Read once, before the first session: the hello must
            # list what the worker runs since before this process.
            for remote in await self._engine.read(self._resume_attempts):
                self._watch(remote)
            while True:
                if await self._worker.is_reachable():
                    await self._session()
                await asyncio.sleep(_PROBE_SECONDS)

    def _resume_attempts(self, view: View) -> list[RemoteAttempt]:
        """The attempts that run on the worker since before this process, by the worker's ids of them."""
        found: list[RemoteAttempt] = []
        for (job_id, index), attempt in view.nodes[self._node].assigned.items():
            job = view.jobs[job_id]
            block, position = divmod(index, BLOCK_TASKS)
            status = job.statuses.get(block)
            handle = "" if status is None else status.handles.get(position, "")
            # The handle has to be of this very attempt: a status may still be that of the one before.
            if status is not None and handle and ints(status, "number")[position] == attempt:
                remote = RemoteAttempt(
                    (job_id, index, attempt), task_template(job.spec), self._worker, self._attempts.record
                )
                found.append(remote.resume(handle, ints(status, "started_at_ms")[position]))
        return found

    # ---- one session with the server

    async def _session(self) -> None:
        outgoing: OutgoingQueue = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            senders = [
                tasks.create_task(self._send_heartbeats(outgoing)),
                tasks.create_task(self._send_reports(outgoing)),
            ]
            try:
                await self._service.serve_session(self._node, self._messages(outgoing), self)
            except HandshakeRefused as reason:
                log.info("worker handshake refused", node=self._node, reason=str(reason))
            finally:
                # The reports stay in the tracker: the next session's hello has them in its inventory.
                for sender in senders:
                    sender.cancel()

    async def _messages(self, outgoing: OutgoingQueue) -> AsyncIterator[pb.FromNode]:
        # A new session numbers its messages from 1. The hello has the whole inventory, so that reports which
        # the previous session did not deliver are not lost.
        self._n = 1
        yield pb.FromNode(n=1, hello=hello_to_wire(self._hello()))
        while (message := await outgoing.get()) is not None:
            yield message

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

    async def _send_heartbeats(self, outgoing: OutgoingQueue) -> None:
        """Send a heartbeat after each probe that the worker answers; disconnect after two unanswered ones."""
        unanswered = 0
        while unanswered < 2:
            await asyncio.sleep(_PROBE_SECONDS)
            if await self._worker.is_reachable():
                unanswered = 0
                outgoing.put_nowait(self._next_message(beat=pb.Beat()))
            else:
                unanswered += 1
        outgoing.put_nowait(None)

    async def _send_reports(self, outgoing: OutgoingQueue) -> None:
        while True:
            await self._attempts.changed.wait()
            message = self._next_message()
            reports = self._attempts.drain_changes(message.n)
            if reports:
                message.report.CopyFrom(pb.Report(jobs=reports_to_wire(reports)))
                outgoing.put_nowait(message)

    def _next_message(self, **content: Any) -> pb.FromNode:
        self._n += 1
        return pb.FromNode(n=self._n, **content)

    # ---- messages of the server; the names of these two methods are those of a gRPC context

    async def write(self, message: pb.ToNode) -> None:
        match message.WhichOneof("word"):
            case "orders":
                self._apply_orders(message.orders)
            case "open_log":
                self._send_log(message.open_log)
            case "open_outputs":
                refusal = error_chunk(message.open_outputs.id, "a dialled worker keeps no output files")
                self._tasks.create_task(self._service.relay_log(self._node, refusal))
            case "close_log":
                reader = self._log_readers.pop(message.close_log.id, None)
                if reader is not None:
                    reader.cancel()
            case _:
                pass  # report interval and addresses of servers: of no use to a worker

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise HandshakeRefused(f"{code.name}: {details}")

    def _apply_orders(self, orders: pb.Orders) -> None:
        for job_orders in map(orders_from_wire, orders.jobs):
            if job_orders.work is not None:
                self._templates[job_orders.job] = job_orders.work
            self._apply_job_orders(job_orders)
        # `stored` is the watermark: reports of ends up to it are durable, and need not be sent again.
        self._attempts.on_durable(orders.stored)
        for job in orders.forget:
            self._templates.pop(JobId(job), None)

    def _apply_job_orders(self, orders: JobOrders) -> None:
        for start in orders.start:
            name = (orders.job, start.index, start.attempt)
            # Otherwise the order was sent again after a reconnect, and the job would be started twice.
            if name not in self._remote_attempts:
                template = self._templates[orders.job]
                self._watch(RemoteAttempt(name, template, self._worker, self._attempts.record))
        for stop in orders.stop:
            remote = self._remote_attempts.get((orders.job, stop.index, stop.attempt))
            if remote is not None and stop.how is not StopMode.IF_QUEUED:
                remote.stop()

    def _watch(self, remote: RemoteAttempt) -> None:
        self._remote_attempts[remote.name] = remote
        watching = self._tasks.create_task(remote.run())
        # Removed when it ends: its report stays in the tracker until it is durable.
        watching.add_done_callback(lambda _: self._remote_attempts.pop(remote.name, None))

    def _send_log(self, request: pb.OpenLog) -> None:
        name = (JobId(request.job), request.index, request.attempt)
        handle = partial(self._handle, name, follow=request.follow)
        source = WorkerLogSource(self._worker, handle, self._tasks, lambda: name in self._remote_attempts)
        sending = self._service.relay_log(self._node, chunks_of(source, request))
        reader = self._log_readers[request.id] = self._tasks.create_task(sending)
        reader.add_done_callback(lambda _: self._log_readers.pop(request.id, None))

    async def _handle(self, name: Name, *, follow: bool) -> str:
        """The worker's id of an attempt; empty if it has none, or is not known here any more."""
        job_id, index, attempt = name
        remote = self._remote_attempts.get(name)
        if remote is not None:
            return await remote.handle_once_started() if follow else remote.handle
        job = self._engine.mirror.jobs.get(job_id)
        block, position = divmod(index, BLOCK_TASKS)
        status = None if job is None else job.statuses.get(block)
        if status is None or ints(status, "number")[position] != attempt:
            return ""
        return status.handles.get(position, "")
