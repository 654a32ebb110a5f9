"""Runs the production MachineProvisioner on a simulated server, its coroutines in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from rota.clusters.run import MachineProvisioner
from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.sim.cluster.engine import SimEngine
from rota.sim.cluster.provider import NAME, SimProvider
from rota.sim.cluster.server import SimServer
from rota.sim.world.coroutines import Coroutines

T = TypeVar("T")


def provision(server: SimServer, provider: SimProvider) -> None:
    """Start provisioning on this server; it ends when the server does."""

    def warn(text: str, **fields: object) -> None:
        server.trace(f"{text}: {', '.join(map(str, fields.values()))}")

    provisioner = MachineProvisioner(_CoroutineEngine(server), {NAME: provider}, provider.join_line, warn)
    Coroutines(server).start(provisioner.run())


class _CoroutineEngine:
    """Adapts SimEngine's callbacks to the awaitable interface that the provisioner expects."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine

    def on_commit(self, hook: Callable[[Any], None]) -> None:
        self._engine.commit_hooks.append(lambda: hook(None))

    async def read(self, query: Callable[[Mirror], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            # Cancelled with its task when the server ended: a late answer of the engine has no reader.
            if not future.done():
                future.set_result(query(self._engine.mirror))

        self._engine.read(run)
        return await future

    async def ask(self, owner: str, command: Command[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def answered(answer: T) -> None:
            if not future.done():
                future.set_result(answer)

        def refused(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        self._engine.ask(owner, command, answered, refused)
        return await future
