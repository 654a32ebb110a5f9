"""Asks providers for the machines that are wanted, and tells the engine what became of it. [I/O]"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from rota.clusters import machines
from rota.engine.mirror import Mirror
from rota.engine.reconciler import Command
from rota.engine.run import Engine
from rota.model.cluster import ClusterWish, Machine
from rota.model.errors import RotaError
from rota.model.lifecycle import MachineState
from rota.model.limits import (
    PROVIDER_AT_ONCE,
    PROVIDER_CALL_SECONDS,
    PROVIDER_LIST_SECONDS,
    PROVIDER_PAUSE_FIRST_MS,
)
from rota.providers.protocol import Order, Provider, ProviderFailed

Join = Callable[[Machine, ClusterWish], Awaitable[str]]
log = structlog.get_logger("rota.clusters")

_LOOK_SECONDS = 1.0


class Due(NamedTuple):
    """A machine about which its provider has to be asked."""

    machine: Machine
    wish: ClusterWish


class Procurement:
    """One call at a time for each machine; a provider that hangs holds up nobody else."""

    def __init__(self, engine: Engine, providers: Mapping[str, Provider], join: Join) -> None:
        self._engine = engine
        self._providers = providers
        self._join = join
        self._busy: set[str] = set()
        self._not_before: dict[str, float] = {}  # by what is asked about, on the loop's clock
        self._absent: dict[str, frozenset[str]] = {}  # by cluster: what its last list did not name
        self._gates = {name: asyncio.Semaphore(PROVIDER_AT_ONCE) for name in providers}
        self._news = asyncio.Event()

    async def run(self) -> None:
        self._engine.listen(lambda _: self._news.set())
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news.clear()
                try:
                    await self._look(tasks)
                except RotaError as error:  # the store is away, or somebody else leads
                    log.warning("machines are not looked after", error=str(error))
                await self._rest()

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        for due in await self._engine.read(self._due):
            self._begin(tasks, due.machine.name, due.wish, partial(self._see_to, due))
        for wish in await self._engine.read(self._listed):
            self._begin(tasks, f"list of {wish.name}", wish, partial(self._list, wish))

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
            if machine.state in asking and machine.cluster in wishes
        ]

    def _listed(self, mirror: Mirror) -> list[ClusterWish]:
        there = {machine.cluster for machine in mirror.machines.values()}
        return [wish for wish in mirror.cluster_wishes.values() if wish.name in there]

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
            async with self._gates[wish.provider]:
                await call()
        except RotaError as error:  # the store is away, or somebody else leads: it is asked again
            log.warning("machines are not looked after", what=what, error=str(error))
            self._pause(what, PROVIDER_PAUSE_FIRST_MS / 1000)
        finally:
            self._busy.discard(what)
            self._news.set()

    def _pause(self, what: str, seconds: float) -> None:
        self._not_before[what] = asyncio.get_running_loop().time() + seconds

    async def _see_to(self, due: Due) -> None:
        """As it is wanted now: it may have waited for its turn."""
        machine = await self._engine.read(lambda mirror: mirror.machines.get(due.machine.name))
        if machine is None or machine.state is not due.machine.state:
            return
        await (self._remove if machine.goes else self._create)(machine, due.wish)

    async def _create(self, machine: Machine, wish: ClusterWish) -> None:
        name = machine.name
        try:
            async with asyncio.timeout(min(PROVIDER_CALL_SECONDS, wish.join_seconds)):
                line = await self._join(machine, wish)
                order = Order(name, wish.name, line, wish.capacity, wish.node_labels, wish.settings)
                await self._providers[wish.provider].create(order)
        except (ProviderFailed, TimeoutError) as error:
            why = str(error) or f"provider {wish.provider} does not answer"
            await self._tell(lambda view, now: machines.not_made(view, name, why, now))
        else:
            await self._tell(lambda view, now: machines.made(view, name, now))

    async def _remove(self, machine: Machine, wish: ClusterWish) -> None:
        name = machine.name
        try:
            async with asyncio.timeout(PROVIDER_CALL_SECONDS):
                await self._providers[wish.provider].remove(wish.name, name, wish.settings)
        except (ProviderFailed, TimeoutError) as error:
            self._pause(name, PROVIDER_PAUSE_FIRST_MS / 1000)
            why = str(error) or f"provider {wish.provider} does not answer"
            await self._tell(lambda view, _: machines.not_removed(view, name, why))
        else:
            self._not_before.pop(name, None)
            await self._tell(lambda view, now: machines.gone(view, name, now))

    async def _list(self, wish: ClusterWish) -> None:
        """What was not there twice is gone; what is there twice over, or after its end, goes."""
        self._pause(f"list of {wish.name}", PROVIDER_LIST_SECONDS)
        provider = self._providers[wish.provider]
        try:
            async with asyncio.timeout(PROVIDER_CALL_SECONDS):
                there = await provider.list(wish.name, wish.settings)
                for stranger in await self._engine.read(lambda mirror: strangers(mirror, wish, there)):
                    await provider.remove(wish.name, stranger, wish.settings)
        except (ProviderFailed, TimeoutError) as error:
            log.warning("machines cannot be listed", cluster=wish.name, error=str(error) or "no answer")
            return
        known = await self._engine.read(lambda mirror: frozenset(mirror.machines))
        absent = known - there
        gone = self._absent.get(wish.name, frozenset()) & absent
        self._absent[wish.name] = absent
        await self._tell(lambda view, now: machines.seen(view, wish.name, known - gone, now))

    async def _tell(self, command: Command) -> None:
        await self._engine.ask("clusters", command)


def strangers(mirror: Mirror, wish: ClusterWish, there: frozenset[str]) -> list[str]:
    """Machines under numbers that were given out here, and of which nothing is known any more."""
    cluster = mirror.clusters.get(wish.name)
    given = range(1, 1 + (0 if cluster is None else cluster.made))
    found = [name for name in there if name not in mirror.machines]
    return [
        name
        for name in found
        if (number := name.removeprefix(f"{wish.name}-")).isdecimal() and int(number) in given
    ]
