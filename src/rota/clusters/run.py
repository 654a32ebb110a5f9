"""Asks providers for the machines that are wanted, and tells the engine what became of it. [I/O]"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from rota.clusters.calls import Calls, Engine, Failed, Join
from rota.engine.mirror import Mirror
from rota.model.cluster import ClusterWish, Machine
from rota.model.errors import RotaError
from rota.model.lifecycle import MachineState
from rota.model.limits import PROVIDER_AT_ONCE, PROVIDER_LIST_SECONDS
from rota.providers.protocol import Provider

log = structlog.get_logger("rota.clusters")

_LOOK_SECONDS = 1.0


class Due(NamedTuple):
    """A machine about which its provider has to be asked."""

    machine: Machine
    wish: ClusterWish


class Procurement:
    """One call at a time for each machine; a provider that hangs holds up no other cluster."""

    def __init__(
        self,
        engine: Engine,
        providers: Mapping[str, Provider],
        join: Join,
        warn: Callable[..., object] = log.warning,
    ) -> None:
        self._engine = engine
        self._providers = providers
        self._warn = warn
        self._calls = Calls(engine, providers, join)
        self._busy: set[str] = set()
        self._not_before: dict[str, float] = {}  # by what is asked about, on the loop's clock
        self._failures: dict[str, int] = {}  # in a row, by the same
        self._gates: dict[str, asyncio.Semaphore] = {}  # by cluster
        self._news = asyncio.Event()

    async def run(self) -> None:
        self._engine.listen(lambda _: self._news.set())
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news.clear()
                try:
                    await self._look(tasks)
                except RotaError as error:  # the store is away, or somebody else leads
                    self._warn("machines are not looked after", error=str(error))
                await self._rest()

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        for due in await self._engine.read(self._due):
            self._begin(tasks, due.machine.name, due.wish, partial(self._see_to, due))
        for wish in await self._engine.read(self._listed):
            self._begin(tasks, _list_of(wish), wish, partial(self._list, wish))

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._news.wait()
        except TimeoutError:
            pass  # something may be due by now that nobody tells

    def _due(self, mirror: Mirror) -> list[Due]:
        asking = (MachineState.WANTED, MachineState.LEAVING)
        wishes = mirror.cluster_wishes
        return [
            Due(machine, wishes[machine.cluster])
            for machine in mirror.machines.values()
            if machine.state in asking
            and machine.cluster in wishes
            and machine.name not in self._calls.removed
        ]

    def _listed(self, mirror: Mirror) -> list[ClusterWish]:
        """Also where none is left: what a provider has not removed, though it said so, is found."""
        wishes = mirror.cluster_wishes
        return [wishes[one.name] for one in mirror.clusters.values() if one.made and one.name in wishes]

    def _begin(
        self, tasks: asyncio.TaskGroup, what: str, wish: ClusterWish, call: Callable[[], Awaitable[None]]
    ) -> None:
        now = asyncio.get_running_loop().time()
        if (
            what in self._busy
            or self._not_before.get(what, 0.0) > now
            or wish.provider not in self._providers
        ):
            return
        self._busy.add(what)
        tasks.create_task(self._guarded(what, wish, call))

    async def _guarded(self, what: str, wish: ClusterWish, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Failed:  # and told: it is asked again, ever more rarely
            self._pause(what, wish)
        except (RotaError, OSError) as error:  # no store, no disk, or somebody else leads: it is asked again
            self._warn("machines are not looked after", what=what, error=str(error))
            self._pause(what, wish)
        else:
            self._failures.pop(what, None)
        finally:
            self._busy.discard(what)
            self._news.set()

    def _pause(self, what: str, wish: ClusterWish) -> None:
        failures = self._failures.get(what, 0)
        self._failures[what] = failures + 1
        self._not_before[what] = asyncio.get_running_loop().time() + wish.pause_ms(failures) / 1000

    async def _see_to(self, due: Due) -> None:
        """As it is wanted now: it may have waited for its turn."""
        name, wish = due.machine.name, due.wish
        async with self._gates.setdefault(wish.name, asyncio.Semaphore(PROVIDER_AT_ONCE)):
            machine = await self._engine.read(lambda mirror: mirror.machines.get(name))
            if machine is None or machine.state is not due.machine.state:
                return
            await (self._calls.remove if machine.goes else self._calls.create)(machine, wish)
        if _list_of(wish) not in self._failures:
            self._not_before.pop(_list_of(wish), None)  # a look shows whether it is true

    async def _list(self, wish: ClusterWish) -> None:
        what = _list_of(wish)
        self._not_before[what] = asyncio.get_running_loop().time() + PROVIDER_LIST_SECONDS
        for name in await self._calls.list(wish):
            self._pause(name, wish)


def _list_of(wish: ClusterWish) -> str:
    return f"list of {wish.name}"
