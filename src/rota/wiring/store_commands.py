"""`rota store`: data directories and backups -> each other; what is in them, and if it is whole. [I/O]"""

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
    """What was read, written or checked."""

    where: str
    revision: int
    epoch: int
    records: int
    jobs: int
    nodes: int
    events: int
    taken_at_ms: int | None = None  # of a backup
    keys: bool = False  # whether it has the cluster's own

    @property
    def raw(self) -> dict[str, Any]:
        return dict(self.__dict__)


def back_up(place: StoreLocation, file: Path) -> StoreContents:
    """Of a server that is stopped, or runs: what is read is as of one commit."""

    async def write() -> None:
        async with place.opened(alone=False) as store:
            origin = BackupOrigin(_wall_ms(), __version__, await place.read_files(store))
            with _private(file) as out:
                async for piece in backup.stream(store, origin):
                    out.write(piece)

    asyncio.run(write())
    return check_backup(file)


def check_backup(file: Path) -> StoreContents:
    read = _read(file)
    counted = _counted(str(file), read.snapshot, len(read.events), keys=bool(read.files))
    return replace(counted, taken_at_ms=read.header.taken_at_ms)


def check_store_location(place: StoreLocation) -> StoreContents:
    """Raises Damaged if it is not whole: all records, every event, all that was acknowledged."""

    async def look() -> StoreContents:
        async with place.opened(alone=False) as store:
            snapshot = await store.read()
            for key, value in snapshot.records.items():
                codec.decode(key, value)
            rows = len(await _events(store))
            keys = bool(await place.read_files(store))
            return _counted(place.name, snapshot, rows, keys=keys)

    return asyncio.run(look())


def restore(file: Path, place: StoreLocation) -> StoreContents:
    """A new history from a backup: its nodes wait for `rota store accept`."""
    read = _read(file)
    head = read.header
    known = [codec.decode(key, value) for key, value in read.records.items()]
    again = restored_records(known, head.taken_at_ms, Instant(head.time_ms, _wall_ms()))
    records = {str(record.key): codec.encode(record) for record in again}
    snapshot = Snapshot(head.revision + RESTORE_REVISIONS, head.epoch, head.time_ms, records)
    asyncio.run(_load_snapshot(place, snapshot, read.events, read.files))
    return check_store_location(place)


def migrate(source: StoreLocation, target: StoreLocation) -> StoreContents:
    """The same history elsewhere: whoever is started on the source again leads a lower epoch."""

    async def move() -> None:
        async with source.opened(alone=True) as store:
            snapshot = await store.read()
            above = snapshot._replace(epoch=snapshot.epoch + 1)
            await _load_snapshot(target, above, await _events(store), await source.read_files(store))

    asyncio.run(move())
    return check_store_location(target)


async def _load_snapshot(
    place: StoreLocation, snapshot: Snapshot, events: list[EventRow], files: Mapping[str, bytes]
) -> None:
    """The records last: until they are there, it is no store."""
    async with place.opened(alone=True, new=True) as store:
        await place.write_files(store, files)
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
