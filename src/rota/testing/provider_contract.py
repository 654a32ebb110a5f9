"""ProviderContract: the contract of every provider. A subclass implements make() and inherits the tests.

    class TestMyProvider(ProviderContract):
        def make(self, directory: Path) -> Provider:
            return MyProvider(directory)

The tests are coroutines: pytest-asyncio runs them in its mode `auto`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from rota.providers.protocol import MachineOrder, Provider

CLUSTER = "build"


class ProviderContract:
    """Tests that every provider must pass."""

    settings: ClassVar[Mapping[str, str]] = {}

    def make(self, directory: Path) -> Provider:
        """Open the provider of that directory; a second call finds the machines of the first."""
        raise NotImplementedError

    async def test_at_first_there_are_no_machines(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as provider:
            assert not await provider.list(CLUSTER, self.settings)

    async def test_a_machine_that_was_made_is_listed_until_it_is_removed(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as provider:
            await provider.create(self.order("build-1"))
            listed = await provider.list(CLUSTER, self.settings)
            await provider.remove(CLUSTER, "build-1", self.settings)

            assert list(listed) == ["build-1"]
            assert not await provider.list(CLUSTER, self.settings)

    async def test_asked_twice_for_one_name_it_makes_one(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as provider:
            await provider.create(self.order("build-1"))
            await provider.create(self.order("build-1"))
            listed = await provider.list(CLUSTER, self.settings)
            await provider.remove(CLUSTER, "build-1", self.settings)

            assert list(listed) == ["build-1"]
            assert not await provider.list(CLUSTER, self.settings)

    async def test_machines_are_made_side_by_side(self, tmp_path: Path) -> None:
        names = [f"build-{number}" for number in range(1, 4)]
        async with self.opened(tmp_path) as provider:
            async with asyncio.TaskGroup() as tasks:
                for name in names:
                    tasks.create_task(provider.create(self.order(name)))

            assert sorted(await provider.list(CLUSTER, self.settings)) == names

    async def test_removing_what_is_not_there_is_no_error(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as provider:
            await provider.remove(CLUSTER, "build-7", self.settings)

    async def test_after_a_restart_the_machines_are_still_known(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as provider:
            await provider.create(self.order("build-1"))
            again = self.make(tmp_path)

            assert list(await again.list(CLUSTER, self.settings)) == ["build-1"]

    async def test_another_server_finds_them_by_the_place_they_were_made_from(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as provider:
            await provider.create(self.order("build-1"))
            same_place = self.make(tmp_path / "another").for_place(provider.place)
            assert same_place is not None
            listed = await same_place.list(CLUSTER, self.settings)
            await same_place.remove(CLUSTER, "build-1", self.settings)
            left = await provider.list(CLUSTER, self.settings)
            # The first instance may still hold its child process.
            await provider.remove(CLUSTER, "build-1", self.settings)

            assert list(listed) == ["build-1"]
            assert not left

    async def test_another_clusters_machines_are_not_listed(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as provider:
            await provider.create(self.order("build-1"))

            assert not await provider.list("other", self.settings)

    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Provider]:
        """Open a provider, and remove its machines afterwards."""
        provider = self.make(directory)
        try:
            yield provider
        finally:
            for machine in await provider.list(CLUSTER, self.settings):
                await provider.remove(CLUSTER, machine, self.settings)

    def order(self, machine: str) -> MachineOrder:
        # No server listens there: the agent keeps trying to join, which is enough for a machine.
        join = "rota://127.0.0.1:9?token=join_x&ca=sha256:" + "0" * 64
        return MachineOrder(machine, CLUSTER, join, {"cpu": 1000}, {}, self.settings)
