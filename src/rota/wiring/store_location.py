"""Where the store of a server is: a data directory, or etcd. [I/O]"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Protocol

from rota.config import ServerConfig, ServerOptions, server_config
from rota.model.errors import BadField, Conflict, NotFound
from rota.store.etcd.store import EtcdStore
from rota.store.lock import DirectoryLock
from rota.store.protocol import Store
from rota.store.sqlite import SqliteStore
from rota.wiring.backup_files import read_backup_files, write_backup_files
from rota.wiring.leadership.elected import access_of
from rota.wiring.shared_identity import read_shared, share


class StoreLocation(Protocol):
    """A place that holds a store, and the CA and tokens beside it."""

    name: str

    def opened(self, *, alone: bool, new: bool = False) -> contextlib.AbstractAsyncContextManager[Store]:
        """The store, open. `alone`: no server may run on it. `new`: it must not exist yet."""

    async def read_files(self, store: Store) -> Mapping[str, bytes]: ...

    async def write_files(self, store: Store, files: Mapping[str, bytes]) -> None: ...


class DirectoryLocation:
    """A data directory with a SQLite store."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    @contextlib.asynccontextmanager
    async def opened(self, *, alone: bool, new: bool = False) -> AsyncIterator[Store]:
        exists = (self._path / "rota.db").exists()
        if exists and new:
            hint = "name a directory that is empty or does not exist"
            raise Conflict(f"there is a store in {self.name} already", hint=hint)
        if not exists and not new:
            raise NotFound(f"there is no store in {self.name}", hint="name the data directory of a server")
        with contextlib.ExitStack() as closing:
            # A backup runs beside the server, by a read transaction; a restore or a migration must not.
            if alone:
                closing.callback(DirectoryLock(self._path).release)
            store = SqliteStore(self._path)
            try:
                yield store
            finally:
                await store.close()

    async def read_files(self, store: Store) -> Mapping[str, bytes]:
        del store
        return read_backup_files(self._path)

    async def write_files(self, store: Store, files: Mapping[str, bytes]) -> None:
        del store
        write_backup_files(self._path, files)


class EtcdLocation:
    """A prefix in etcd."""

    def __init__(self, config: ServerConfig) -> None:
        self.name = config.store
        self._config = config

    @contextlib.asynccontextmanager
    async def opened(self, *, alone: bool, new: bool = False) -> AsyncIterator[Store]:
        store = EtcdStore(access_of(self._config), self._config.etcd.prefix)
        try:
            if alone and await store.leader_lease.read_leader() is not None:
                raise Conflict(f"a server leads on {self.name}", hint="stop every server first")
            exists = (await store.read()).revision > 0
            if exists and new:
                raise Conflict(f"there is a store in {self.name} already", hint="set another etcd.prefix")
            if not exists and not new:
                raise NotFound(f"there is no store in {self.name}", hint="see etcd.prefix in the settings")
            yield store
        finally:
            await store.close()

    async def read_files(self, store: Store) -> Mapping[str, bytes]:
        assert isinstance(store, EtcdStore)
        return await read_shared(store)

    async def write_files(self, store: Store, files: Mapping[str, bytes]) -> None:
        assert isinstance(store, EtcdStore)
        await share(store, files)


def store_location(field: str, text: str, config_file: str | None = None) -> StoreLocation:
    """A path, or etcd://HOST:PORT,... as for `--store`; access to etcd is in the settings."""
    if "://" not in text:
        return DirectoryLocation(Path(text))
    if not text.startswith("etcd://"):
        raise BadField(field, f"{text!r} is not a store", "write a data directory, or etcd://HOST:PORT,...")
    return EtcdLocation(server_config(ServerOptions(config_file=config_file, store=text)))
