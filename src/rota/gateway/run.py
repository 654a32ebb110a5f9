"""Which workers are registered -> a stand-in for each; none waits for another. [I/O]"""

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

_AGAIN_SECONDS = 5.0  # after a stand-in has failed


@dataclass(frozen=True)
class DialledWorker:
    dialled: Dialled
    worker: Worker
    by: asyncio.Task[None]


class Gateway:
    def __init__(self, engine: Engine, door: NodeService, trusted: bytes | None) -> None:
        self._engine = engine
        self._door = door
        self._trusted = trusted
        self._changed = asyncio.Event()
        self._dialled: dict[NodeId, DialledWorker] = {}
        engine.on_commit(self._on_commit)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                wanted = await self._engine.read(registration.registered)
                await self._drop_unregistered(wanted)
                for node, dialled in wanted.items():
                    if node not in self._dialled:
                        worker = Worker(dialled.address, self._trusted)
                        task = tasks.create_task(self._serve_worker(node, dialled, worker))
                        self._dialled[node] = DialledWorker(dialled, worker, task)
                await self._changed.wait()

    async def is_responsive(self, node: NodeId) -> bool:
        """Whether the worker of a node answers a call now; True if it registered only a moment ago."""
        attended = self._dialled.get(node)
        return attended is None or await attended.worker.is_reachable(WORKER_START_PROBE_MS / 1000)

    async def _drop_unregistered(self, wanted: dict[NodeId, Dialled]) -> None:
        """Of who said goodbye, or is registered anew."""
        over = [node for node, one in self._dialled.items() if wanted.get(node) != one.dialled]
        ending = [self._dialled.pop(node).by for node in over]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    async def _serve_worker(self, node: NodeId, dialled: Dialled, worker: Worker) -> None:
        try:
            while True:
                try:
                    await ProxyNode(self._engine, self._door, node, dialled, worker).run()
                except Exception as error:
                    log.error("a stand-in failed", node=node, exc_info=error)
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            await worker.close()

    def _on_commit(self, committed: Committed) -> None:
        decided = committed.decided
        changed = any(isinstance(record, NodeSpec) for record in decided.puts.values())
        if changed or any(key.startswith("node/") for key in decided.deletes) or not decided.puts:
            self._changed.set()
