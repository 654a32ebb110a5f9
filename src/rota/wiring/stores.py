"""`rota store`: data directories and backups -> each other; what is in them, and if it is whole. [I/O]"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rota import __version__
from rota.apiserver.restoring import begin_again
from rota.model.errors import BadField, Conflict, NotFound
from rota.model.limits import RESTORE_REVISIONS
from rota.model.plan import Instant
from rota.store import backup, codec
from rota.store.backup import Backup, Origin
from rota.store.lock import DirectoryLock
from rota.store.protocol import Snapshot, Store
from rota.store.sqlite import SqliteStore
from rota.wiring.keepsakes import read_keepsakes, write_keepsakes

T = TypeVar("T")
_EVENT_ROWS = 1000


@dataclass(frozen=True)
class Contents:
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


def back_up_directory(directory: Path, file: Path) -> Contents:
    """Of a server that is stopped, or runs: what is read is as of one commit."""

    async def write(store: Store) -> None:
        origin = Origin(time.time_ns() // 1_000_000, __version__, read_keepsakes(directory))
        with _private(file) as out:
            async for piece in backup.written(store, origin):
                out.write(piece)

    _with_store(directory, write)
    return check_backup(file)


def check_backup(file: Path) -> Contents:
    return _contents(str(file), _read(file))


def check_directory(directory: Path) -> Contents:
    """Raises Damaged if it is not whole: all records, every event, all that was acknowledged."""

    async def look(store: Store) -> Contents:
        snapshot = await store.read()
        for key, value in snapshot.records.items():
            codec.decode(key, value)
        after = rows = 0
        while some := await store.events(after, _EVENT_ROWS):
            after, rows = some[-1].revision, rows + len(some)
        return _counted(str(directory), snapshot, rows, keys=bool(read_keepsakes(directory)))

    return _with_store(directory, look)


def restore(file: Path, directory: Path) -> Contents:
    """A new history from a backup: its nodes wait for `rota store accept`."""
    read = _read(file)
    now = Instant(read.head.time_ms, time.time_ns() // 1_000_000)
    known = [codec.decode(key, value) for key, value in read.records.items()]
    records = {
        str(record.key): codec.encode(record) for record in begin_again(known, read.head.taken_at_ms, now)
    }
    snapshot = Snapshot(read.head.revision + RESTORE_REVISIONS, read.head.epoch, read.head.time_ms, records)
    _fill_directory(directory, read, snapshot)
    return check_directory(directory)


def migrate(from_where: str, to_where: str) -> Contents:
    """The same history elsewhere: whoever is started on the source again leads a lower epoch."""
    source, target = _directory("FROM", from_where), _directory("TO", to_where)
    with _locked(source):
        kept = read_keepsakes(source)

        async def take(store: Store) -> Backup:
            snapshot = await store.read()
            head = backup.Head(snapshot.revision, snapshot.epoch + 1, snapshot.time_ms)
            after, events = 0, []
            while some := await store.events(after, _EVENT_ROWS):
                after = some[-1].revision
                events += some
            return Backup(head, dict(snapshot.records), events, kept)

        read = _with_store(source, take)
        _fill_directory(target, read, read.snapshot)
    return check_directory(target)


def _directory(field: str, text: str) -> Path:
    if "://" in text:
        raise BadField(
            field, f"{text!r} is no store that this program knows", "write the data directory of a server"
        )
    return Path(text)


def _fill_directory(directory: Path, read: Backup, snapshot: Snapshot) -> None:
    if (directory / "rota.db").exists():
        raise Conflict(
            f"there is a store in {directory} already", hint="name a directory that is empty or not there"
        )
    with _locked(directory):
        write_keepsakes(directory, read.files)

        async def fill(store: Store) -> None:
            await store.fill(snapshot, read.events)

        _with_store(directory, fill, new=True)


def _with_store(directory: Path, use: Callable[[Store], Coroutine[Any, Any, T]], *, new: bool = False) -> T:
    if not new and not (directory / "rota.db").exists():
        raise NotFound(f"there is no store in {directory}", hint="name the data directory of a server")

    async def main() -> T:
        store = SqliteStore(directory)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(main())


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """While no server runs there."""
    lock = DirectoryLock(directory)
    try:
        yield
    finally:
        lock.release()


def _read(file: Path) -> Backup:
    with file.open("rb") as source:
        return backup.read(source, str(file))


def _private(file: Path) -> Any:
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def _contents(where: str, read: Backup) -> Contents:
    counted = _counted(where, read.snapshot, len(read.events), keys=bool(read.files))
    return Contents(**{**counted.raw, "taken_at_ms": read.head.taken_at_ms})


def _counted(where: str, snapshot: Snapshot, events: int, *, keys: bool) -> Contents:
    keys_of = snapshot.records
    jobs = sum(key.startswith("job/") and key.endswith("/spec") for key in keys_of)
    nodes = sum(key.startswith("node/") and key.endswith("/spec") for key in keys_of)
    return Contents(where, snapshot.revision, snapshot.epoch, len(keys_of), jobs, nodes, events, keys=keys)
