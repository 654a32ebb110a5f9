"""The embedded store: SQLite, write-ahead log, full sync, one writer thread."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rota.model.errors import Deposed, Outdated, StoreFull, Transient, Unavailable
from rota.store.protocol import Batch, EventRow, Snapshot

_FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (key TEXT NOT NULL UNIQUE, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (revision INTEGER PRIMARY KEY, wall_ms INTEGER NOT NULL, row BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL, epoch INTEGER NOT NULL, revision INTEGER NOT NULL, time_ms INTEGER NOT NULL
);
"""
_PUT = "INSERT INTO records VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_HEAD = (
    "UPDATE head SET revision = revision + 1, time_ms = ? WHERE epoch = ? AND revision = ? RETURNING revision"
)

T = TypeVar("T")


class SqliteStore:
    """All calls run in one thread of its own, which also owns the connection."""

    name = "sqlite"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "rota.db"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        try:
            self._db = self._thread.submit(self._open).result()
        except sqlite3.DatabaseError as error:
            self._thread.shutdown()
            raise self._meant(error) from error

    async def lead(self) -> int:
        return await self._run(self._lead)

    async def read(self) -> Snapshot:
        return await self._run(self._read)

    async def commit(self, batch: Batch) -> int:
        return await self._run(lambda: self._commit(batch))

    async def events(self, after: int, most: int) -> list[EventRow]:
        query = "SELECT revision, row FROM events WHERE revision > ? ORDER BY revision LIMIT ?"
        return await self._run(lambda: [EventRow(*row) for row in self._db.execute(query, (after, most))])

    async def forget_events(self, before_wall_ms: int) -> None:
        await self._run(lambda: self._db.execute("DELETE FROM events WHERE wall_ms < ?", (before_wall_ms,)))

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.DatabaseError as error:
            raise self._meant(error) from error

    def _meant(self, error: sqlite3.DatabaseError) -> Transient:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            return StoreFull(f"the disk of {self._path} is full")
        return Unavailable(f"{self._path}: {error}")

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None)
        self._path.chmod(0o600)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
        db.execute("INSERT OR IGNORE INTO head VALUES (1, ?, 0, 0, 0)", (_FORMAT,))
        (found,) = db.execute("SELECT format FROM head").fetchone()
        if found != _FORMAT:
            db.close()
            raise Unavailable(f"{self._path} has format {found}, this program knows {_FORMAT}")
        return db

    def _lead(self) -> int:
        ((epoch,),) = self._db.execute("UPDATE head SET epoch = epoch + 1 RETURNING epoch").fetchall()
        return int(epoch)

    def _read(self) -> Snapshot:
        self._db.execute("BEGIN")
        try:
            ((revision, epoch, time_ms),) = self._db.execute("SELECT revision, epoch, time_ms FROM head")
            return Snapshot(
                revision, epoch, time_ms, dict(self._db.execute("SELECT key, value FROM records"))
            )
        finally:
            self._db.execute("COMMIT")

    def _overtaken(self, batch: Batch) -> Transient:
        ((epoch, revision),) = self._db.execute("SELECT epoch, revision FROM head")
        if epoch != batch.epoch:
            return Deposed(f"epoch {batch.epoch} is over, {epoch} leads")
        return Outdated(f"revision {batch.after} is not the last, {revision} is")

    def _commit(self, batch: Batch) -> int:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            head = self._db.execute(_HEAD, (batch.time_ms, batch.epoch, batch.after)).fetchall()
            if not head:
                raise self._overtaken(batch)
            revision = int(head[0][0])
            self._db.executemany(_PUT, batch.puts)
            self._db.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in batch.deletes])
            if batch.events is not None:
                self._db.execute(
                    "INSERT INTO events VALUES (?, ?, ?)", (revision, batch.wall_ms, batch.events)
                )
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return revision
