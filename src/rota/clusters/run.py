"""Driver of provider calls: creates and removes machines as desired, and lists them periodically. [I/O]"""

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
    """A machine that its provider has to create or remove."""

    machine: Machine
    intent: ClusterIntent


class MachineProvisioner:
    """Runs one call at a time per machine, and a bounded number per cluster.

    Each call is its own task, so that a hanging provider delays no other cluster.
    """

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
        # Machine or list key -> end of its backoff, on the loop's clock.
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # consecutive failures by the same keys
        self._call_limits: dict[str, asyncio.Semaphore] = {}  # by cluster
        self._wakeup = asyncio.Event()

    async def run(self) -> None:
        self._engine.on_commit(lambda _: self._wakeup.set())
        async with asyncio.TaskGroup() as tasks:
            while True:
                # Cleared before the mirror is read: a commit that comes during the read sets
                # it again and is not missed.
                self._wakeup.clear()
                try:
                    await self._start_due_calls(tasks)
                except RotaError as error:  # the store is unavailable, or another server leads
                    self._warn("provider reconciliation failed", error=str(error))
                await self._wait_for_work()

    async def _start_due_calls(self, tasks: asyncio.TaskGroup) -> None:
        # Derived from the records each time. There is no queue of calls to lose: after a restart the same
        # calls are due again, and providers are idempotent by name.
        for due in await self._engine.read(self._due_calls):
            self._start_call(tasks, due.machine.name, due.intent, partial(self._call_provider, due))
        for intent in await self._engine.read(self._clusters_to_list):
            self._start_call(tasks, _list_key(intent), intent, partial(self._list_machines, intent))

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await self._wakeup.wait()
        except TimeoutError:
            pass  # timers and backoffs end without a commit: poll

    def _due_calls(self, mirror: Mirror) -> list[ProviderCall]:
        states = (MachineState.WANTED, MachineState.LEAVING)
        intents = mirror.cluster_intents
        return [
            ProviderCall(machine, intents[machine.cluster])
            for machine in mirror.machines.values()
            if machine.state in states
            and machine.cluster in intents
            # Its removal was reported. The next list confirms it, or makes it due again.
            and machine.name not in self._calls.removed
        ]

    def _clusters_to_list(self, mirror: Mirror) -> list[ClusterIntent]:
        """Clusters that ever had machines, even if none is left: a removal may not have happened."""
        intents = mirror.cluster_intents
        return [
            intents[cluster.name]
            for cluster in mirror.clusters.values()
            if cluster.made and cluster.name in intents
        ]

    def _start_call(
        self, tasks: asyncio.TaskGroup, key: str, intent: ClusterIntent, call: Callable[[], Awaitable[None]]
    ) -> None:
        now = asyncio.get_running_loop().time()
        if (
            key in self._busy
            or self._not_before.get(key, 0.0) > now
            or intent.provider not in self._providers
        ):
            return
        # Before the task runs: the next pass must not start a second call for the same machine.
        self._busy.add(key)
        tasks.create_task(self._run_call(key, intent, call))

    async def _run_call(self, key: str, intent: ClusterIntent, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except ProviderCallFailed:  # the engine knows: retry with backoff
            self._back_off(key, intent)
        except (RotaError, OSError) as error:  # store unavailable, disk full, or another server leads: retry
            self._warn("provider reconciliation failed", what=key, error=str(error))
            self._back_off(key, intent)
        else:
            self._failures.pop(key, None)
        finally:
            self._busy.discard(key)
            self._wakeup.set()

    def _back_off(self, key: str, intent: ClusterIntent) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._not_before[key] = asyncio.get_running_loop().time() + intent.backoff_ms(failures) / 1000

    async def _call_provider(self, due: ProviderCall) -> None:
        """Create or remove a machine, if still desired: the call may have waited for the semaphore."""
        name, intent = due.machine.name, due.intent
        async with self._call_limits.setdefault(intent.name, asyncio.Semaphore(PROVIDER_CALLS_MAX)):
            machine = await self._engine.read(lambda mirror: mirror.machines.get(name))
            # A race: it may have joined, been removed or changed its state while the call waited.
            if machine is None or machine.state is not due.machine.state:
                return
            await (self._calls.remove if machine.is_being_removed else self._calls.create)(machine, intent)
        # Unless listing itself fails: then its backoff holds.
        if _list_key(intent) not in self._failures:
            self._not_before.pop(_list_key(intent), None)  # list soon, to verify the result

    async def _list_machines(self, intent: ClusterIntent) -> None:
        key = _list_key(intent)
        # Before the call: a hanging list does not become due again while it runs, and a call that creates a
        # machine meanwhile can still make the next one due.
        self._not_before[key] = asyncio.get_running_loop().time() + PROVIDER_LIST_SECONDS
        for name in await self._calls.list(intent):
            self._back_off(name, intent)


def _list_key(intent: ClusterIntent) -> str:
    return f"list of {intent.name}"
