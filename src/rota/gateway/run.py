"""Gateway: runs a ProxyNode for each registered worker, independent of the others. [I/O]"""

import asyncio
from dataclasses import dataclass

import structlog

from rota.engine.run import Committed, Engine
from rota.gateway import registration
from rota.gateway.proxy_node import NodeService, ProxyNode
from rota.gateway.worker import Worker
from rota.model.ids import NodeId
from rota.model.limits import WORKER_START_PROBE_MS
from rota.model.node import Dialled, NodeSpec

log = structlog.get_logger("rota.gateway")

_RESTART_SECONDS = 5.0  # after a proxy node has failed


@dataclass(frozen=True)
class DialledWorker:
    """A registered worker, the connection to it, and the task that runs its proxy node."""

    dialled: Dialled
    worker: Worker
    task: asyncio.Task[None]


class Gateway:
    """Follows the registrations in the mirror and keeps one proxy node running for each."""

    def __init__(self, engine: Engine, service: NodeService, trusted: bytes | None) -> None:
        self._engine = engine
        self._service = service
        self._trusted = trusted
        self._changed = asyncio.Event()
        self._dialled: dict[NodeId, DialledWorker] = {}
        engine.on_commit(self._on_commit)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                # Before the read: a change during it sets the event again and is seen in the next round.
                self._changed.clear()
                registered = await self._engine.read(registration.registered)
                # Ordering: the proxy of an earlier registration ends before the new one starts.
                await self._drop_unregistered(registered)
                for node, dialled in registered.items():
                    if node not in self._dialled:
                        worker = Worker(dialled.address, self._trusted)
                        task = tasks.create_task(self._serve_worker(node, dialled, worker))
                        self._dialled[node] = DialledWorker(dialled, worker, task)
                await self._changed.wait()

    async def is_responsive(self, node: NodeId) -> bool:
        """Whether the worker of a node answers a call now; True if it registered only a moment ago."""
        dialled = self._dialled.get(node)
        return dialled is None or await dialled.worker.is_reachable(WORKER_START_PROBE_MS / 1000)

    async def _drop_unregistered(self, registered: dict[NodeId, Dialled]) -> None:
        """End the proxy nodes of workers that deregistered, or registered again with another id."""
        dropped = [node for node, running in self._dialled.items() if registered.get(node) != running.dialled]
        tasks = [self._dialled.pop(node).task for node in dropped]
        for task in tasks:
            task.cancel()
        # Waited for, so that a node never has two proxies: both would poll and report the same attempts.
        if tasks:
            await asyncio.wait(tasks)

    async def _serve_worker(self, node: NodeId, dialled: Dialled, worker: Worker) -> None:
        try:
            while True:
                try:
                    await ProxyNode(self._engine, self._service, node, dialled, worker).run()
                except Exception as error:
                    log.error("proxy node failed", node=node, exc_info=error)
                await asyncio.sleep(_RESTART_SECONDS)
        finally:
            await worker.close()

    def _on_commit(self, committed: Committed) -> None:
        decided = committed.decided
        changed = any(isinstance(record, NodeSpec) for record in decided.puts.values())
        # Nothing written means a full reload, after which every registration may have changed.
        if changed or any(key.startswith("node/") for key in decided.deletes) or not decided.puts:
            self._changed.set()
