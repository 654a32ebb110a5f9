"""The SQLite file: its tables, its checksums, and the detection of damage.

Each row has a checksum; the head has the sum of all of them, and a checksum of itself. So a row that was
changed, lost, duplicated or left over is detected when all records are read, and event rows when they are
read.
"""

import sqlite3
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from rota.model.errors import Damaged, Unavailable

FORMAT = 2
MODULUS = 1 << 62  # sums stay within SQLite's integers
DAMAGED_ROWS_SHOWN = 3  # of damaged rows
# The column `sum` comes before the large one, so that SQLite reads it without the overflow pages of the
# value.
_SCHEMA = """
CREATE TABLE records (key TEXT NOT NULL UNIQUE, sum INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE events (
    revision INTEGER PRIMARY KEY, wall_ms INTEGER NOT NULL, sum INTEGER NOT NULL, row BLOB NOT NULL
);
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL, sum INTEGER NOT NULL,
    epoch INTEGER NOT NULL, revision INTEGER NOT NULL, time_ms INTEGER NOT NULL,
    records_sum INTEGER NOT NULL, events_sum INTEGER NOT NULL
);
"""
_TABLES = ("records", "events", "head")


class DatabaseHead(NamedTuple):
    """Epoch, revision and time of the store, and the sums of all row checksums."""

    epoch: int
    revision: int
    time_ms: int
    records_sum: int = 0
    events_sum: int = 0

    @property
    def sum(self) -> int:
        return zlib.crc32(repr(tuple(self)).encode())


def record_sum(key: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key.encode()))


def event_sum(revision: int, wall_ms: int, row: bytes) -> int:
    return zlib.crc32(row, zlib.crc32(b"%d %d" % (revision, wall_ms)))


def open_file(path: Path) -> sqlite3.Connection:
    """Open the file; it is created if missing, and upgraded if it has an older format."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        # Before anything is written: records hold environment variables of jobs.
        path.chmod(0o600)
        db.execute("PRAGMA journal_mode = WAL")
        # FULL, not NORMAL: in WAL mode NORMAL does not sync at
        # a commit, so a power cut could lose acknowledged ones.
        db.execute("PRAGMA synchronous = FULL")
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'head'").fetchone() is None:
            _make(db)
        ((found,),) = db.execute("SELECT format FROM head").fetchall() or ((0,),)
        # In one transaction, so a crash during the upgrade leaves the old format untouched.
        if found == 1:
            _upgrade(db)
        elif found != FORMAT:
            raise Unavailable(f"{path} has format {found}, this program knows {FORMAT}")
        _check_structure(path, db)
        read_head(path, db)
    except BaseException:
        db.close()
        raise
    return db


def read_head(path: Path, db: sqlite3.Connection) -> DatabaseHead:
    query = "SELECT sum, epoch, revision, time_ms, records_sum, events_sum FROM head"
    rows = db.execute(query).fetchall()
    try:
        ((checksum, *columns),) = rows
    except ValueError:
        raise damaged(path, "its head is missing") from None
    head = DatabaseHead(*columns)
    # A damaged head would otherwise move the revision or the epoch without being noticed.
    if head.sum != checksum:
        raise damaged(path, "its head is not what was written")
    return head


def write_head(db: sqlite3.Connection, head: DatabaseHead) -> None:
    db.execute(
        "UPDATE head SET epoch = ?, revision = ?, time_ms = ?, records_sum = ?, events_sum = ?, sum = ?",
        (*head, head.sum),
    )


def read_records(path: Path, db: sqlite3.Connection, head: DatabaseHead) -> dict[str, bytes]:
    """All records. Raises Damaged if their checksums do not add up."""
    rows = db.execute("SELECT key, value FROM records").fetchall()
    found = dict(rows)
    try:
        total = sum(record_sum(key, value) for key, value in rows) % MODULUS
    except (TypeError, AttributeError):  # a value of another type than bytes
        total = -1
    # Two rows with one key would hide damage: a dictionary keeps only one of them.
    if total != head.records_sum or len(found) != len(rows):
        raise damaged(path, _describe_damage(db))
    return found


def damaged(path: Path, what: str) -> Damaged:
    hint = "begin again from a backup, in another directory: rota store restore FILE --data-dir NEW"
    return Damaged(f"{path} is damaged: {what}", hint=hint)


def _make(db: sqlite3.Connection, *before: str) -> None:
    """Create the tables in one transaction, after these statements."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in (*before, *filter(str.strip, _SCHEMA.split(";"))):
            db.execute(statement)
        empty = DatabaseHead(0, 0, 0)
        db.execute("INSERT INTO head VALUES (1, ?, ?, ?, ?, ?, ?, ?)", (FORMAT, empty.sum, *empty))
        if before:
            _copy_old_rows(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _upgrade(db: sqlite3.Connection) -> None:
    """Upgrade from format 1, which had no checksums."""
    _make(db, *(f"ALTER TABLE {name} RENAME TO old_{name}" for name in _TABLES))


def _copy_old_rows(db: sqlite3.Connection) -> None:
    db.create_function("record_sum", 2, record_sum, deterministic=True)
    db.create_function("event_sum", 3, event_sum, deterministic=True)
    db.execute("INSERT INTO records SELECT key, record_sum(key, value), value FROM old_records")
    db.execute(
        "INSERT INTO events SELECT revision, wall_ms, event_sum(revision, wall_ms, row), row FROM old_events"
    )
    ((epoch, revision, time_ms),) = db.execute("SELECT epoch, revision, time_ms FROM old_head")
    ((records,),) = db.execute("SELECT coalesce(sum(sum), 0) FROM records")
    ((events,),) = db.execute("SELECT coalesce(sum(sum), 0) FROM events")
    write_head(db, DatabaseHead(epoch, revision, time_ms, records % MODULUS, events % MODULUS))
    for name in _TABLES:
        db.execute(f"DROP TABLE old_{name}")


def _check_structure(path: Path, db: sqlite3.Connection) -> None:
    """Check the index of keys against the rows: by a damaged index a row could be missed or duplicated."""
    found = [str(line) for (line,) in db.execute(f"PRAGMA integrity_check({DAMAGED_ROWS_SHOWN})")]
    if found != ["ok"]:
        raise damaged(
            path,
            "; ".join(line for text in found for line in text.splitlines() if not line.startswith("***")),
        )


def _describe_damage(db: sqlite3.Connection) -> str:
    rows: list[tuple[Any, Any, Any]] = db.execute("SELECT key, value, sum FROM records").fetchall()
    wrong = [str(key) for key, value, checksum in rows if not is_intact(key, value, checksum)]
    if not wrong:
        return "records are missing or left over"
    more = f" and {len(wrong) - DAMAGED_ROWS_SHOWN} more" if len(wrong) > DAMAGED_ROWS_SHOWN else ""
    are = "is" if len(wrong) == 1 else "are"
    return f"{', '.join(map(repr, wrong[:DAMAGED_ROWS_SHOWN]))}{more} {are} not what was written"


def is_intact(key: Any, value: Any, checksum: Any) -> bool:
    return isinstance(key, str) and isinstance(value, bytes) and record_sum(key, value) == checksum
