"""How a server becomes leader: at once with a store of its own, by election on a shared etcd. [I/O]"""

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
    """How a server becomes and stays leader of its store, and what it shares with other servers."""

    ttl_ms: int  # for this long after our takeover the previous leader may still have answered nodes

    @property
    def store(self) -> Store: ...

    async def lead(
        self, engine: Engine, authority: CertificateAuthority, settings: SchedulerSettings
    ) -> None:
        """Wait until this server leads."""

    def lease_valid(self) -> bool: ...

    def open_vault(self) -> Vault: ...

    async def follow_authority(self, authority: CertificateAuthority) -> None:
        """Load the CA that all servers share, if they share one. Raises Unavailable."""

    def servers(self) -> list[ServerRecord]:
        """The servers that are registered as possible leaders; empty for a sole server."""

    async def servers_refreshed(self) -> None:
        """Wait for the next refresh of `servers`."""


class SoleLeadership:
    """The leadership of a server with a store of its own, which no other server can use."""

    ttl_ms = 0

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self._directory = directory

    async def lead(
        self, engine: Engine, authority: CertificateAuthority, settings: SchedulerSettings
    ) -> None:
        del authority, settings
        # There is no other server, but an epoch is acquired
        # all the same: commits and nodes are fenced by it.
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
        async with elected(config, directory) as leadership:
            yield leadership
    else:
        store = MemoryStore(directory) if config.store == MemoryStore.name else SqliteStore(directory)
        try:
            yield SoleLeadership(store, directory)
        finally:
            await store.close()
