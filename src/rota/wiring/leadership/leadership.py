"""How a server comes to lead: at once with a store of its own, by election where several share etcd. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from rota.config import ServerConfig
from rota.config.etcd import endpoints
from rota.engine.run import Engine
from rota.identity import vault
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.scheduler.round import SchedulerSettings
from rota.store.memory import MemoryStore
from rota.store.protocol import Store
from rota.store.sqlite import SqliteStore
from rota.wiring.leadership.elected import elected
from rota.wiring.server_record import ServerRecord


class Leadership(Protocol):
    ttl_ms: int  # how long another may believe to lead after we do

    @property
    def store(self) -> Store: ...

    async def lead(
        self, engine: Engine, authority: CertificateAuthority, settings: SchedulerSettings
    ) -> None:
        """Returns when it does."""

    def lease_valid(self) -> bool: ...

    def open_vault(self) -> Vault: ...

    async def follow_authority(self, authority: CertificateAuthority) -> None:
        """Hold the CA that all servers share, where they do. Raises Unavailable."""

    def servers(self) -> list[ServerRecord]:
        """All that may come to lead, as far as they have made themselves known."""

    async def servers_refreshed(self) -> None:
        """Returns when they have been asked for again."""


class SoleLeadership:
    """Nobody else can lead on this store."""

    ttl_ms = 0

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self._directory = directory

    async def lead(
        self, engine: Engine, authority: CertificateAuthority, settings: SchedulerSettings
    ) -> None:
        del authority, settings
        await engine.lead()

    def lease_valid(self) -> bool:
        return True

    def open_vault(self) -> Vault:
        return Vault.open(self._directory / vault.DIRECTORY)

    async def follow_authority(self, authority: CertificateAuthority) -> None:
        del authority

    def servers(self) -> list[ServerRecord]:
        return []

    async def servers_refreshed(self) -> None:
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def leadership_for(config: ServerConfig, directory: Path) -> AsyncIterator[Leadership]:
    if endpoints(config.store):
        async with elected(config, directory) as post:
            yield post
    else:
        store = MemoryStore(directory) if config.store == MemoryStore.name else SqliteStore(directory)
        try:
            yield SoleLeadership(store, directory)
        finally:
            await store.close()
