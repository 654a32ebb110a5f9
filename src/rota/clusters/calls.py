"""One call of a provider -> the engine told what came of it. [I/O]"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from rota.clusters import listed, machines
from rota.clusters.listed import Listing
from rota.engine.mirror import Mirror
from rota.engine.reconciler import Command
from rota.model.cluster import ClusterWish, Machine
from rota.model.errors import RotaError
from rota.model.lifecycle import MachineState
from rota.model.limits import PROVIDER_CALL_SECONDS, PROVIDER_LIST_SECONDS
from rota.providers.protocol import Order, Provider, ProviderFailed

Join = Callable[[Machine, ClusterWish], Awaitable[str]]
T = TypeVar("T")


class Engine(Protocol):
    """Of an engine what is needed here."""

    def listen(self, listener: Callable[[Any], None]) -> None: ...

    async def read(self, look: Callable[[Mirror], T]) -> T: ...

    async def ask(self, owner: str, command: Command) -> Any: ...


class Failed(Exception):
    """What was asked for was not done, and that is told."""


class Calls:
    def __init__(self, engine: Engine, providers: Mapping[str, Provider], join: Join) -> None:
        self._engine = engine
        self._providers = providers
        self._join = join
        self.removed: set[str] = set()  # machines that are gone as their providers say: a list has to show it
        self._missed: dict[str, dict[str, float]] = {}  # by cluster: machines not listed, and since when

    async def create(self, machine: Machine, wish: ClusterWish) -> None:
        name, own = machine.name, self._providers[wish.provider]
        where = own if machine.place is None else own.at(machine.place)
        wanted = await self._tell(lambda view, now: machines.asked(view, name, own.place, now))
        if where is None or not wanted:
            return  # whoever asked for it cannot be reached: it joins in its time, or is given up
        try:
            async with _in_time(wish, min(PROVIDER_CALL_SECONDS, wish.join_seconds)):
                line = await self._join(machine, wish)
                await where.create(
                    Order(name, wish.name, line, wish.capacity, wish.node_labels, wish.settings)
                )
        except ProviderFailed as error:
            why = str(error)
            await self._tell(lambda view, now: machines.not_made(view, name, why, now))
            await self._quote(wish, error)
        else:
            await self._tell(lambda view, now: machines.made(view, name, now))

    async def remove(self, machine: Machine, wish: ClusterWish) -> None:
        """Wherever it may be."""
        name = machine.name
        places = await self._places(wish)
        if machine.place is not None and machine.place not in places:
            await self._tell(
                lambda view, _: machines.gone(view, name)
            )  # its agent ends: nobody knows its node
            return
        try:
            async with _in_time(wish, PROVIDER_CALL_SECONDS):
                for where in places.values():
                    await where.remove(wish.name, name, wish.settings)
        except ProviderFailed as error:
            why = str(error)
            await self._tell(lambda view, now: machines.not_removed(view, name, why, now))
            await self._quote(wish, error)
            raise Failed from error
        self.removed.add(name)

    async def list(self, wish: ClusterWish) -> Sequence[str]:
        """Machines that are there, though they were said to be removed."""
        ended = frozenset(self.removed)
        places = await self._places(wish)
        found: Counter[str] = Counter()
        at: dict[str, str] = {}
        try:
            async with _in_time(wish, PROVIDER_CALL_SECONDS):
                for place, where in places.items():
                    names = await where.list(wish.name, wish.settings)
                    found.update(names)
                    at |= dict.fromkeys(names, place)
        except ProviderFailed as error:
            why = str(error)
            await self._tell(lambda view, now: listed.not_listed(view, wish.name, why, now))
            await self._quote(wish, error)
            raise Failed from error
        missing = await self._missing(wish, frozenset(found), places)
        listing = Listing(found, at, missing, ended)
        await self._tell(lambda view, now: listed.listed(view, wish.name, listing, now))
        known = await self._engine.read(lambda mirror: frozenset(mirror.machines))
        still = [name for name in ended if name in found]
        self.removed -= {name for name in ended if name in found or name not in known}
        return still

    async def _places(self, wish: ClusterWish) -> Mapping[str, Provider]:
        """Where its machines are, as far as they can be reached from here."""
        own = self._providers[wish.provider]

        def asked_from(mirror: Mirror) -> set[str]:
            ours = (one for one in mirror.machines.values() if one.cluster == wish.name)
            return {one.place for one in ours if one.place is not None}

        places = {own.place, *await self._engine.read(asked_from)}
        return {place: where for place in sorted(places) if (where := own.at(place)) is not None}

    async def _missing(
        self, wish: ClusterWish, found: frozenset[str], places: Mapping[str, Provider]
    ) -> frozenset[str]:
        """One list may be behind, or older than the machine."""

        own = self._providers[wish.provider].place

        def absent(mirror: Mirror) -> Sequence[str]:
            ours = (one for one in mirror.machines.values() if one.cluster == wish.name)
            there = (one for one in ours if one.state in (MachineState.CREATED, MachineState.JOINED))
            return [one.name for one in there if (one.place or own) in places and one.name not in found]

        now, before = asyncio.get_running_loop().time(), self._missed.get(wish.name, {})
        since = {name: before.get(name, now) for name in await self._engine.read(absent)}
        self._missed[wish.name] = since
        return frozenset(name for name, at in since.items() if now - at >= PROVIDER_LIST_SECONDS)

    async def _quote(self, wish: ClusterWish, error: ProviderFailed) -> None:
        """Tell operators the provider's own words."""
        if error.said:
            await self._tell(lambda view, _: machines.quoted(view, wish.name, error.said))

    async def _tell(self, command: Command) -> object:
        return await self._engine.ask("clusters", command)


@asynccontextmanager
async def _in_time(wish: ClusterWish, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise ProviderFailed(f"provider {wish.provider} does not answer within {seconds:g} s") from error
    except (RotaError, OSError):
        raise
    except Exception as error:  # a provider may be anybody's code
        raise ProviderFailed(f"provider {wish.provider} failed", f"{error!r:.300}") from error
