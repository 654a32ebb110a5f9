"""The real procurement of machines on a simulated server: its coroutines in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from rota.clusters.run import MachineProvisioner
from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.sim.coroutines import Coroutines
from rota.sim.engine import SimEngine
from rota.sim.provider import NAME, SimProvider
from rota.sim.server import SimServer

T = TypeVar("T")


def procure(server: SimServer, provider: SimProvider) -> None:
    """From here on, until it dies."""

    def warn(words: str, **about: object) -> None:
        server.trace(f"{words}: {', '.join(map(str, about.values()))}")

    procurement = MachineProvisioner(_CoroutineEngine(server), {NAME: provider}, provider.join_line, warn)
    Coroutines(server).begin(procurement.run())


class _CoroutineEngine:
    """A simulated engine, asked by coroutines."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine

    def on_commit(self, hook: Callable[[Any], None]) -> None:
        self._engine.heard.append(lambda: hook(None))

    async def read(self, look: Callable[[Mirror], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if not future.done():
                future.set_result(look(self._engine.mirror))

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
