"""`rota store`: back up, restore, migrate and check stores. [I/O]"""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from rota import __version__
from rota.apiserver.admission.restore import restored_records
from rota.model.limits import RESTORE_REVISIONS
from rota.model.plan import Instant
from rota.store import backup, codec
from rota.store.backup import Backup, BackupOrigin
from rota.store.protocol import EventRow, Snapshot, Store
from rota.wiring.store_location import StoreLocation

_EVENT_ROWS = 1000


@dataclass(frozen=True)
class StoreContents:
    """Figures of a store or backup that was read, written or checked."""

    where: str
    revision: int
    epoch: int
    records: int
    jobs: int
    nodes: int
    events: int
    taken_at_ms: int | None = None  # of a backup
    keys: bool = False  # whether the CA and the tokens are included

    @property
    def raw(self) -> dict[str, Any]:
        return dict(self.__dict__)


def back_up(location: StoreLocation, file: Path) -> StoreContents:
    """Back up a store, also of a running server: the backup is consistent as of one commit."""

    async def write() -> None:
        async with location.opened(alone=False) as store:
            origin = BackupOrigin(_wall_ms(), __version__, await location.read_files(store))
            with _private(file) as out:
                async for piece in backup.stream(store, origin):
                    out.write(piece)

    asyncio.run(write())
    return check_backup(file)


def check_backup(file: Path) -> StoreContents:
    read = _read(file)
    counted = _counted(str(file), read.snapshot, len(read.events), keys=bool(read.files))
    return replace(counted, taken_at_ms=read.header.taken_at_ms)


def check_store_location(location: StoreLocation) -> StoreContents:
    """Read all records and events, and check that no acknowledged commit is missing. Raises Damaged."""

    async def read() -> StoreContents:
        async with location.opened(alone=False) as store:
            snapshot = await store.read()
            for key, value in snapshot.records.items():
                codec.decode(key, value)
            rows = len(await _events(store))
            keys = bool(await location.read_files(store))
            return _counted(location.name, snapshot, rows, keys=keys)

    return asyncio.run(read())


def restore(file: Path, location: StoreLocation) -> StoreContents:
    """Restore a backup as a new history; nodes are refused until `rota store accept`."""
    read = _read(file)
    header = read.header
    decoded = [codec.decode(key, value) for key, value in read.records.items()]
    restored = restored_records(decoded, header.taken_at_ms, Instant(header.time_ms, _wall_ms()))
    records = {str(record.key): codec.encode(record) for record in restored}
    # A gap above every revision that can have been committed after the
    # backup: clients that have seen those must not take new ones for them.
    snapshot = Snapshot(header.revision + RESTORE_REVISIONS, header.epoch, header.time_ms, records)
    asyncio.run(_load_snapshot(location, snapshot, read.events, read.files))
    return check_store_location(location)


def migrate(source: StoreLocation, target: StoreLocation) -> StoreContents:
    """Copy a store with its history; a server started on the source again has a lower epoch."""

    async def move() -> None:
        # Alone: commits that arrive during the copy would be lost.
        async with source.opened(alone=True) as store:
            snapshot = await store.read()
            # Fencing: nodes refuse a server that is started on the source by mistake.
            above = snapshot._replace(epoch=snapshot.epoch + 1)
            await _load_snapshot(target, above, await _events(store), await source.read_files(store))

    asyncio.run(move())
    return check_store_location(target)


async def _load_snapshot(
    location: StoreLocation, snapshot: Snapshot, events: list[EventRow], files: Mapping[str, bytes]
) -> None:
    """Write a new store. Records last: after a crash before that, it does not count as a store."""
    async with location.opened(alone=True, new=True) as store:
        await location.write_files(store, files)
        await store.load_snapshot(snapshot, events)


async def _events(store: Store) -> list[EventRow]:
    found: list[EventRow] = []
    while some := await store.events(found[-1].revision if found else 0, _EVENT_ROWS):
        found += some
    return found


def _read(file: Path) -> Backup:
    with file.open("rb") as source:
        return backup.read(source, str(file))


def _private(file: Path) -> BinaryIO:
    return open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def _counted(where: str, snapshot: Snapshot, events: int, *, keys: bool) -> StoreContents:
    known = snapshot.records
    jobs, nodes = (
        sum(key.startswith(f"{kind}/") and key.endswith("/spec") for key in known) for kind in ("job", "node")
    )
    return StoreContents(where, snapshot.revision, snapshot.epoch, len(known), jobs, nodes, events, keys=keys)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
