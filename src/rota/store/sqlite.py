"""The embedded store: SQLite with write-ahead log and full sync, one thread, and checksums of all rows."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rota.model.errors import LostLeadership, StaleState, StoreFull, Transient, Unavailable
from rota.model.limits import STORE_RESERVE_BYTES
from rota.store.ack_marker import AckMarker
from rota.store.codec import decode_events
from rota.store.disk_reserve import DiskReserve
from rota.store.protocol import Batch, EventRow, Snapshot, next_epoch
from rota.store.sqlite_file import (
    MODULUS,
    DatabaseHead,
    damaged,
    event_sum,
    open_file,
    read_head,
    read_records,
    record_sum,
    write_head,
)

_PUT = (
    "INSERT INTO records VALUES (?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET sum = excluded.sum, value = excluded.value"
)
_SUM_OF = (
    "SELECT coalesce(sum(records.sum), 0) FROM json_each(?) AS one"
    " CROSS JOIN records ON records.key = one.value"
)
_EVENTS = "SELECT revision, wall_ms, row, sum FROM events WHERE revision > ? ORDER BY revision LIMIT ?"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

T = TypeVar("T")


class SqliteStore:
    """All calls run in one thread, which owns the connection: calls are in order and need no locks."""

    name = "sqlite"

    def __init__(self, directory: Path, reserve_bytes: int = STORE_RESERVE_BYTES) -> None:
        self._path = directory / "rota.db"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._reserve = DiskReserve(directory / "rota.reserve", reserve_bytes)
        try:
            # Opened in the store's thread: a SQLite connection belongs to the thread that made it.
            self._db = self._thread.submit(self._open).result()
        except sqlite3.DatabaseError as error:
            self._thread.shutdown()
            raise self._translate_error(error) from error
        # Also for KeyboardInterrupt: a non-daemon thread that stays would keep the process from exiting.
        except BaseException:
            self._thread.shutdown()
            raise

    async def acquire_epoch(self, above: int = 0) -> int:
        return await self._run(lambda: self._acquire_epoch(above))

    async def read(self) -> Snapshot:
        return await self._run(self._read)

    async def commit(self, batch: Batch) -> int:
        return await self._run(lambda: self._commit(batch))

    async def events(self, after: int, limit: int) -> list[EventRow]:
        return await self._run(lambda: self._events(after, limit))

    async def forget_events(self, before_wall_ms: int) -> None:
        await self._run(lambda: self._forget_events(before_wall_ms))

    async def load_snapshot(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        await self._run(lambda: self._load_snapshot(snapshot, events))

    async def has_space(self) -> bool:
        return await self._run(self._reserve.acquire)

    async def close(self) -> None:
        # Through the same queue, so that a commit under way finishes before the connection is closed.
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.DatabaseError as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: sqlite3.DatabaseError) -> Transient:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return StoreFull(f"the disk of {self._path} is full")
        if code in _DAMAGE:
            return damaged(self._path, str(error))
        return Unavailable(f"{self._path}: {error}")

    def _open(self) -> sqlite3.Connection:
        db = open_file(self._path)
        try:
            self._ack_marker = AckMarker(self._path.with_suffix(".mark"))
            head, acknowledged = read_head(self._path, db), self._ack_marker.at_start
            # A damaged write-ahead log or an older file would make the server forget work that runs.
            if head.revision < acknowledged.revision or head.epoch < acknowledged.epoch:
                ends = f"it ends with revision {head.revision} in epoch {head.epoch}"
                lost = f"revision {acknowledged.revision} in epoch {acknowledged.epoch} was acknowledged"
                raise damaged(self._path, f"{ends}, and {lost}: its last commits are lost")
        except BaseException:
            db.close()
            raise
        return db

    def _close(self) -> None:
        self._db.close()
        self._ack_marker.close()

    def _write(self, change: Callable[[DatabaseHead], DatabaseHead]) -> DatabaseHead:
        """One transaction, which replaces the head of the database by what `change` makes of it."""
        # IMMEDIATE takes the write lock before the head is read:
        # otherwise a writer in between would make it stale.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            head = change(read_head(self._path, self._db))
            write_head(self._db, head)
            # Crash point: synchronous=FULL makes this durable on
            # return. Before it, a restart finds the previous head.
            self._db.execute("COMMIT")
        except BaseException as error:
            # SQLite may have rolled back by itself, for example on a full disk.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError) and isinstance(
                self._translate_error(error), StoreFull
            ):
                # The next commits can use the space, and report how running work ended.
                self._reserve.release()
            raise
        # After the commit, never before: the marker must not be ahead of the database.
        self._ack_marker.write(head.epoch, head.revision)
        return head

    def _acquire_epoch(self, above: int) -> int:
        # A restart after the disk was cleaned up gets its reserve back before the first commit.
        self._reserve.acquire()
        return self._write(lambda head: head._replace(epoch=next_epoch(max(head.epoch, above)))).epoch

    def _read(self) -> Snapshot:
        # A read transaction: head and records are of the same revision, whatever else opens the file.
        self._db.execute("BEGIN")
        try:
            head = read_head(self._path, self._db)
            records = read_records(self._path, self._db, head)
            return Snapshot(head.revision, head.epoch, head.time_ms, records)
        finally:
            self._db.execute("COMMIT")

    def _commit(self, batch: Batch) -> int:
        def change(head: DatabaseHead) -> DatabaseHead:
            # Fencing: a server that was paused while another one
            # took over must not write, even on the same disk.
            if head.epoch != batch.epoch:
                raise LostLeadership(f"epoch {batch.epoch} is over, {head.epoch} leads")
            # Optimistic concurrency: a batch decided on another revision is rejected and not merged.
            if head.revision != batch.after:
                raise StaleState(f"revision {batch.after} is not the last, {head.revision} is")
            revision = head.revision + 1
            events_sum = head.events_sum
            if batch.events is not None:
                events_sum += self._add_event(revision, batch.wall_ms, batch.events)
            return head._replace(
                revision=revision,
                time_ms=batch.time_ms,
                records_sum=(head.records_sum + self._change_records(batch)) % MODULUS,
                events_sum=events_sum % MODULUS,
            )

        return self._write(change).revision

    def _change_records(self, batch: Batch) -> int:
        """Write the records of a batch; returns the change of the sum of all record checksums."""
        # As bytearray: for bytes the sqlite3 module looks for an adapter each time, which costs more.
        puts = [(key, record_sum(key, value), bytearray(value)) for key, value in batch.puts]
        if not puts and not batch.deletes:
            return 0
        deleted = frozenset(batch.deletes)
        keys = json.dumps([*(key for key, _, _ in puts), *deleted])
        # Before the writes: the difference needs the checksums of the rows that are about to be replaced.
        ((before,),) = self._db.execute(_SUM_OF, (keys,))
        self._db.executemany(_PUT, puts)
        self._db.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in batch.deletes])
        # A delete wins over a put of the same key, as in the order of the statements above.
        return sum(checksum for key, checksum, _ in puts if key not in deleted) - int(before)

    def _add_event(self, revision: int, wall_ms: int, row: bytes) -> int:
        checksum = event_sum(revision, wall_ms, row)
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (revision, wall_ms, checksum, row))
        return checksum

    def _events(self, after: int, limit: int) -> list[EventRow]:
        found = []
        for revision, wall_ms, row, checksum in self._db.execute(_EVENTS, (after, limit)):
            # Checked at each read: events are not part of the load, so damage would otherwise go unnoticed.
            if not isinstance(row, bytes) or event_sum(revision, wall_ms, row) != checksum:
                raise damaged(self._path, f"the events of revision {revision} are not what was written")
            found.append(EventRow(revision, row))
        return found

    def _forget_events(self, before_wall_ms: int) -> None:
        def change(head: DatabaseHead) -> DatabaseHead:
            deleted = self._db.execute(
                "DELETE FROM events WHERE wall_ms < ? RETURNING sum", (before_wall_ms,)
            )
            deleted_sum = sum(checksum for (checksum,) in deleted)
            return head._replace(events_sum=(head.events_sum - deleted_sum) % MODULUS)

        self._write(change)

    def _load_snapshot(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        def change(head: DatabaseHead) -> DatabaseHead:
            # Never over existing commits: a restore into a used directory would lose them.
            if head.revision:
                raise StaleState(f"there are {head.revision} commits already")
            puts = [(key, record_sum(key, value), value) for key, value in snapshot.records.items()]
            self._db.executemany(_PUT, puts)
            sums = (
                self._add_event(event.revision, decode_events(event.row)[0], event.row) for event in events
            )
            return DatabaseHead(
                # Never lower than an epoch given out here: nodes reject
                # a server with a lower epoch than they have seen.
                max(head.epoch, snapshot.epoch),
                snapshot.revision,
                snapshot.time_ms,
                sum(checksum for _, checksum, _ in puts) % MODULUS,
                sum(sums) % MODULUS,
            )

        self._write(change)
