"""Asks providers for the machines that are wanted, and tells the engine what became of it. [I/O]"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from rota.clusters.provider_calls import CommandSink, JoinLineFor, ProviderCallFailed, ProviderCalls
from rota.engine.state.mirror import Mirror
from rota.model.cluster import ClusterIntent, Machine
from rota.model.errors import RotaError
from rota.model.lifecycle import MachineState
from rota.model.limits import PROVIDER_CALLS_MAX, PROVIDER_LIST_SECONDS
from rota.providers.protocol import Provider

log = structlog.get_logger("rota.clusters")

_POLL_SECONDS = 1.0


class ProviderCall(NamedTuple):
    """A machine about which its provider has to be asked."""

    machine: Machine
    intent: ClusterIntent


class MachineProvisioner:
    """One call at a time for each machine; a provider that hangs holds up no other cluster."""

    def __init__(
        self,
        engine: CommandSink,
        providers: Mapping[str, Provider],
        join_line: JoinLineFor,
        warn: Callable[..., object] = log.warning,
    ) -> None:
        self._engine = engine
        self._providers = providers
        self._warn = warn
        self._calls = ProviderCalls(engine, providers, join_line)
        self._busy: set[str] = set()
        self._not_before: dict[str, float] = {}  # by what is asked about, on the loop's clock
        self._failures: dict[str, int] = {}  # in a row, by the same
        self._call_limits: dict[str, asyncio.Semaphore] = {}  # by cluster
        self._wakeup = asyncio.Event()

    async def run(self) -> None:
        self._engine.on_commit(lambda _: self._wakeup.set())
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wakeup.clear()
                try:
                    await self._start_due_calls(tasks)
                except RotaError as error:  # the store is away, or somebody else leads
                    self._warn("machines are not looked after", error=str(error))
                await self._wait_for_work()

    async def _start_due_calls(self, tasks: asyncio.TaskGroup) -> None:
        for due in await self._engine.read(self._due_calls):
            self._start_call(tasks, due.machine.name, due.intent, partial(self._call_provider, due))
        for wish in await self._engine.read(self._clusters_to_list):
            self._start_call(tasks, _list_key(wish), wish, partial(self._list_machines, wish))

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await self._wakeup.wait()
        except TimeoutError:
            pass  # something may be due by now that nobody tells

    def _due_calls(self, mirror: Mirror) -> list[ProviderCall]:
        asking = (MachineState.WANTED, MachineState.LEAVING)
        wishes = mirror.cluster_intents
        return [
            ProviderCall(machine, wishes[machine.cluster])
            for machine in mirror.machines.values()
            if machine.state in asking
            and machine.cluster in wishes
            and machine.name not in self._calls.removed
        ]

    def _clusters_to_list(self, mirror: Mirror) -> list[ClusterIntent]:
        """Also where none is left: what a provider has not removed, though it said so, is found."""
        wishes = mirror.cluster_intents
        return [wishes[one.name] for one in mirror.clusters.values() if one.made and one.name in wishes]

    def _start_call(
        self, tasks: asyncio.TaskGroup, what: str, intent: ClusterIntent, call: Callable[[], Awaitable[None]]
    ) -> None:
        now = asyncio.get_running_loop().time()
        if (
            what in self._busy
            or self._not_before.get(what, 0.0) > now
            or intent.provider not in self._providers
        ):
            return
        self._busy.add(what)
        tasks.create_task(self._run_call(what, intent, call))

    async def _run_call(self, what: str, intent: ClusterIntent, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except ProviderCallFailed:  # and told: it is asked again, ever more rarely
            self._back_off(what, intent)
        except (RotaError, OSError) as error:  # no store, no disk, or somebody else leads: it is asked again
            self._warn("machines are not looked after", what=what, error=str(error))
            self._back_off(what, intent)
        else:
            self._failures.pop(what, None)
        finally:
            self._busy.discard(what)
            self._wakeup.set()

    def _back_off(self, what: str, intent: ClusterIntent) -> None:
        failures = self._failures.get(what, 0)
        self._failures[what] = failures + 1
        self._not_before[what] = asyncio.get_running_loop().time() + intent.pause_ms(failures) / 1000

    async def _call_provider(self, due: ProviderCall) -> None:
        """As it is wanted now: it may have waited for its turn."""
        name, wish = due.machine.name, due.intent
        async with self._call_limits.setdefault(wish.name, asyncio.Semaphore(PROVIDER_CALLS_MAX)):
            machine = await self._engine.read(lambda mirror: mirror.machines.get(name))
            if machine is None or machine.state is not due.machine.state:
                return
            await (self._calls.remove if machine.goes else self._calls.create)(machine, wish)
        if _list_key(wish) not in self._failures:
            self._not_before.pop(_list_key(wish), None)  # a look shows whether it is true

    async def _list_machines(self, intent: ClusterIntent) -> None:
        what = _list_key(intent)
        self._not_before[what] = asyncio.get_running_loop().time() + PROVIDER_LIST_SECONDS
        for name in await self._calls.list(intent):
            self._back_off(name, intent)


def _list_key(intent: ClusterIntent) -> str:
    return f"list of {intent.name}"
