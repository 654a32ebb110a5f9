"""A real store behind a gate: commits can be delayed and made to fail."""

import asyncio
from collections.abc import Iterable

from rota.model.errors import RotaError
from rota.store.protocol import Batch, EventRow, Snapshot, Store


class GatedStore:
    name = "gated"

    def __init__(self, below: Store) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_the_gate = asyncio.Event()  # a commit waits at the gate
        self.fail_commits: list[Exception] = []  # one for each of the next commits
        self.fail_reads: list[RotaError] = []
        self.fail_forgetting: list[RotaError] = []
        self.was_read = asyncio.Event()
        self.commits: list[Batch] = []
        self.has_free_space = True
        self._space_checked = asyncio.Event()
        self._below = below

    async def acquire_epoch(self, above: int = 0) -> int:
        return await self._below.acquire_epoch(above)

    async def read(self) -> Snapshot:
        if self.fail_reads:
            raise self.fail_reads.pop(0)
        snapshot = await self._below.read()
        self.was_read.set()
        return snapshot

    async def commit(self, batch: Batch) -> int:
        self.at_the_gate.set()
        await self.gate.wait()
        self.at_the_gate.clear()
        if self.fail_commits:
            raise self.fail_commits.pop(0)
        self.commits.append(batch)
        return await self._below.commit(batch)

    async def events(self, after: int, limit: int) -> list[EventRow]:
        return await self._below.events(after, limit)

    async def forget_events(self, before_wall_ms: int) -> None:
        if self.fail_forgetting:
            raise self.fail_forgetting.pop(0)
        await self._below.forget_events(before_wall_ms)

    async def load_snapshot(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        await self._below.load_snapshot(snapshot, events)

    async def has_space(self) -> bool:
        self._space_checked.set()
        return self.has_free_space

    async def space_checked(self) -> None:
        """Wait for two checks: after the second one the answer of the first has taken effect."""
        for _ in range(2):
            self._space_checked.clear()
            await self._space_checked.wait()

    async def close(self) -> None:
        await self._below.close()
