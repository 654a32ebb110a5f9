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
from rota.identity.authority import Authority
from rota.identity.vault import Vault
from rota.scheduler.round import Settings
from rota.store.memory import MemoryStore
from rota.store.protocol import Store
from rota.store.sqlite import SqliteStore
from rota.wiring.cards import Card
from rota.wiring.elected import elected


class Post(Protocol):
    ttl_ms: int  # how long another may believe to lead after we do

    @property
    def store(self) -> Store: ...

    async def lead(self, engine: Engine, authority: Authority, settings: Settings) -> None:
        """Returns when it does."""

    def surely_leads(self) -> bool: ...

    def open_vault(self) -> Vault: ...

    async def follow_authority(self, authority: Authority) -> None:
        """Hold the CA that all servers share, where they do. Raises Unavailable."""

    def servers(self) -> list[Card]:
        """All that may come to lead, as far as they have made themselves known."""

    async def servers_told(self) -> None:
        """Returns when they have been asked for again."""


class OwnPost:
    """Nobody else can lead on this store."""

    ttl_ms = 0

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self._directory = directory

    async def lead(self, engine: Engine, authority: Authority, settings: Settings) -> None:
        del authority, settings
        await engine.lead()

    def surely_leads(self) -> bool:
        return True

    def open_vault(self) -> Vault:
        return Vault.open(self._directory / vault.DIRECTORY)

    async def follow_authority(self, authority: Authority) -> None:
        del authority

    def servers(self) -> list[Card]:
        return []

    async def servers_told(self) -> None:
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def post_of(config: ServerConfig, directory: Path) -> AsyncIterator[Post]:
    if endpoints(config.store):
        async with elected(config, directory) as post:
            yield post
    else:
        store = MemoryStore(directory) if config.store == MemoryStore.name else SqliteStore(directory)
        try:
            yield OwnPost(store, directory)
        finally:
            await store.close()
