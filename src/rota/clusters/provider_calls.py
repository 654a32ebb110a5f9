"""Calls of providers, and the commands that report their results to the engine. [I/O]"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from rota.clusters import machine_transitions, provider_sync
from rota.clusters.provider_sync import ProviderListing
from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.model.cluster import ClusterIntent, Machine
from rota.model.errors import RotaError
from rota.model.lifecycle import MachineState
from rota.model.limits import PROVIDER_CALL_SECONDS, PROVIDER_LIST_SECONDS
from rota.providers.protocol import MachineOrder, Provider, ProviderFailed

JoinLineFor = Callable[[Machine, ClusterIntent], Awaitable[str]]
T = TypeVar("T")


class CommandSink(Protocol):
    """The part of the engine that is used here."""

    def on_commit(self, hook: Callable[[Any], None]) -> None: ...

    async def read(self, look: Callable[[Mirror], T]) -> T: ...

    async def ask(self, owner: str, command: Command[T]) -> T: ...


class ProviderCallFailed(Exception):
    """The provider did not do what was requested; the engine has been told."""


class ProviderCalls:
    def __init__(
        self, engine: CommandSink, providers: Mapping[str, Provider], join_line: JoinLineFor
    ) -> None:
        self._engine = engine
        self._providers = providers
        self._join = join_line
        self.removed: set[str] = set()  # removed according to their providers; a list has to confirm it
        self._missing_since: dict[str, dict[str, float]] = {}  # cluster -> machine -> since when not listed

    async def create(self, machine: Machine, intent: ClusterIntent) -> None:
        name, provider = machine.name, self._providers[intent.provider]
        where = provider if machine.place is None else provider.for_place(machine.place)
        # Durable before the call: after a crash the machine is known, and creating it again is idempotent.
        is_desired = await self._ask_engine(
            lambda view, now: machine_transitions.on_create_requested(view, name, provider.place, now)
        )
        if where is None or not is_desired:
            return  # the server that requested it is out of reach: it joins in time, or is abandoned
        try:
            # After the time to join the machine is given up anyway, so a longer call is of no use.
            async with _with_timeout(intent, min(PROVIDER_CALL_SECONDS, intent.join_seconds)):
                line = await self._join(machine, intent)
                await where.create(
                    MachineOrder(
                        name, intent.name, line, intent.capacity, intent.node_labels, intent.settings
                    )
                )
        except ProviderFailed as error:
            why = str(error)
            await self._ask_engine(
                lambda view, now: machine_transitions.on_create_failed(view, name, why, now)
            )
            await self._quote(intent, error)
        else:
            await self._ask_engine(lambda view, now: machine_transitions.on_created(view, name, now))

    async def remove(self, machine: Machine, intent: ClusterIntent) -> None:
        """Remove the machine at every place where it may have been created."""
        name = machine.name
        places = await self._places(intent)
        if machine.place is not None and machine.place not in places:
            # Out of reach from here. Its agent ends by itself: its node is deleted and refused.
            await self._ask_engine(lambda view, _: machine_transitions.on_removed(view, name))
            return
        try:
            async with _with_timeout(intent, PROVIDER_CALL_SECONDS):
                for where in places.values():
                    await where.remove(intent.name, name, intent.settings)
        except ProviderFailed as error:
            why = str(error)
            await self._ask_engine(
                lambda view, now: machine_transitions.on_remove_failed(view, name, why, now)
            )
            await self._quote(intent, error)
            raise ProviderCallFailed from error
        # The record stays until a list confirms the removal: a provider may report success too early.
        self.removed.add(name)

    async def list(self, intent: ClusterIntent) -> Sequence[str]:
        """Reconcile with the provider's list.

        Returns machines that are still listed although reported removed.
        """
        # Taken before the list is requested: a machine that is removed during the
        # call may still be in the list.
        ended = frozenset(self.removed)
        places = await self._places(intent)
        found: Counter[str] = Counter()
        at: dict[str, str] = {}
        try:
            async with _with_timeout(intent, PROVIDER_CALL_SECONDS):
                for place, where in places.items():
                    names = await where.list(intent.name, intent.settings)
                    found.update(names)
                    at |= dict.fromkeys(names, place)
        except ProviderFailed as error:
            why = str(error)
            await self._ask_engine(
                lambda view, now: provider_sync.on_list_failed(view, intent.name, why, now)
            )
            await self._quote(intent, error)
            raise ProviderCallFailed from error
        missing = await self._missing(intent, frozenset(found), places)
        listing = ProviderListing(found, at, missing, ended)
        await self._ask_engine(lambda view, now: provider_sync.on_listed(view, intent.name, listing, now))
        known = await self._engine.read(lambda mirror: frozenset(mirror.machines))
        still_listed = [name for name in ended if name in found]
        # One that is still listed is due again: its removal is repeated after a backoff.
        self.removed -= {name for name in ended if name in found or name not in known}
        return still_listed

    async def _places(self, intent: ClusterIntent) -> Mapping[str, Provider]:
        """Places of its machines that can be reached from this server."""
        provider = self._providers[intent.provider]

        def asked_from(mirror: Mirror) -> set[str]:
            ours = (machine for machine in mirror.machines.values() if machine.cluster == intent.name)
            return {machine.place for machine in ours if machine.place is not None}

        places = {provider.place, *await self._engine.read(asked_from)}
        # Sorted, so that calls at several places are made in the same order every time.
        return {place: where for place in sorted(places) if (where := provider.for_place(place)) is not None}

    async def _missing(
        self, intent: ClusterIntent, found: frozenset[str], places: Mapping[str, Provider]
    ) -> frozenset[str]:
        """Machines that were not listed for a while: one list may be stale, or older than the machine."""

        provider = self._providers[intent.provider].place

        def absent(mirror: Mirror) -> Sequence[str]:
            ours = (machine for machine in mirror.machines.values() if machine.cluster == intent.name)
            expected = (
                machine for machine in ours if machine.state in (MachineState.CREATED, MachineState.JOINED)
            )
            return [
                machine.name
                for machine in expected
                if (machine.place or provider) in places and machine.name not in found
            ]

        # In memory, by the loop's clock: after a restart a machine has to be missing for the whole time
        # again, which errs towards keeping it.
        now, before = asyncio.get_running_loop().time(), self._missing_since.get(intent.name, {})
        since = {name: before.get(name, now) for name in await self._engine.read(absent)}
        self._missing_since[intent.name] = since
        return frozenset(name for name, at in since.items() if now - at >= PROVIDER_LIST_SECONDS)

    async def _quote(self, intent: ClusterIntent, error: ProviderFailed) -> None:
        """Publish the provider's own message for operators."""
        if error.said:
            await self._ask_engine(lambda view, _: machine_transitions.quoted(view, intent.name, error.said))

    async def _ask_engine(self, command: Command[T]) -> T:
        return await self._engine.ask("clusters", command)


@asynccontextmanager
async def _with_timeout(intent: ClusterIntent, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise ProviderFailed(f"provider {intent.provider} does not answer within {seconds:g} s") from error
    except (RotaError, OSError):
        raise
    except Exception as error:  # a provider may be third-party code
        raise ProviderFailed(f"provider {intent.provider} failed", f"{error!r:.300}") from error
