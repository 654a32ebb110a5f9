"""SqliteStore keeps the contract; its files are private, and a damaged or full disk is reported."""

import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rota.model.errors import Damaged, StoreFull, Unavailable
from rota.store.protocol import Store
from rota.store.sqlite import SqliteStore
from rota.testing.store_contract import StoreContract, batch, commit

DISK_BYTES = 8 * 2**20


class TestSqliteStore(StoreContract):
    async def make(self, directory: Path) -> Store:
        return SqliteStore(directory)


async def test_its_files_are_private(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await commit(store, batch(await store.acquire_epoch(), puts={"k": b"v"}))
    modes = _modes(tmp_path)
    await store.close()

    names = ("rota.db", "rota.db-wal", "rota.db-shm", "rota.mark", "rota.reserve")
    assert modes == dict.fromkeys(names, 0o600)


async def test_a_newer_format_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await commit(store, batch(await store.acquire_epoch(), puts={"k": b"v"}))
    await store.close()
    _sql(tmp_path, "UPDATE head SET format = format + 1")

    with pytest.raises(Unavailable, match="format 3"):
        SqliteStore(tmp_path)

    _sql(tmp_path, "UPDATE head SET format = format - 1")
    again = SqliteStore(tmp_path)
    snapshot = await again.read()
    await again.close()

    assert (snapshot.revision, snapshot.records) == (1, {"k": b"v"})


def test_a_file_that_is_not_a_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "rota.db").write_bytes(b"not a database, and longer than its header would be" * 100)

    with pytest.raises(Unavailable, match=r"rota\.db"):
        SqliteStore(tmp_path)


def test_a_missing_directory_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"rota\.db"):
        SqliteStore(tmp_path / "missing")


async def test_a_damaged_database_is_unavailable(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await commit(store, batch(await store.acquire_epoch(), puts={f"k{n}": bytes(1000) for n in range(500)}))
    await store.close()
    file = tmp_path / "rota.db"
    content = file.read_bytes()
    page = 4096
    file.write_bytes(content[: 6 * page] + b"\xa5" * (len(content) - 6 * page))

    with pytest.raises(Damaged, match="damaged"):
        SqliteStore(tmp_path)


class SmallDisk(NamedTuple):
    """A directory with little space, and functions that fill and clear it."""

    directory: Path
    fill: Callable[[SqliteStore], None]
    clear: Callable[[SqliteStore], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A small tmpfs; where none can be mounted, SQLite's own limit on its file."""
    size = f"size={DISK_BYTES}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "none", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield SmallDisk(
            tmp_path, lambda store: _bound_pages(store, 1), lambda store: _bound_pages(store, 2**30)
        )
        return
    filler = tmp_path / "filler"
    try:
        yield SmallDisk(tmp_path, lambda _: _write_until_full(filler), lambda _: filler.unlink())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


async def test_a_full_disk_is_reported_and_nothing_of_the_batch_remains(disk: SmallDisk) -> None:
    store = SqliteStore(disk.directory)
    epoch = await store.acquire_epoch()
    await commit(store, batch(epoch, time_ms=1, puts={"k": b"before"}, events=b"before"))
    before = await store.read()
    disk.fill(store)

    big = {"k": b"after"} | {f"big{n}": bytes(2**16) for n in range(32)}
    with pytest.raises(StoreFull, match=r"rota\.db"):
        await commit(store, batch(epoch, time_ms=2, puts=big, events=b"after"))

    assert await store.read() == before
    assert [row.row for row in await store.events(0, 10)] == [b"before"]
    await store.close()


async def test_commits_continue_when_there_is_space_again(disk: SmallDisk) -> None:
    store = SqliteStore(disk.directory)
    epoch = await store.acquire_epoch()
    big = {f"big{n}": bytes(2**16) for n in range(32)}
    disk.fill(store)
    with pytest.raises(StoreFull):
        await commit(store, batch(epoch, puts=big))
    disk.clear(store)

    assert await commit(store, batch(epoch, puts=big)) == 1
    assert (await store.read()).records == big
    await store.close()


def _modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def _sql(directory: Path, statement: str) -> None:
    db = sqlite3.connect(directory / "rota.db")
    with db:
        db.execute(statement)
    db.close()


def _bound_pages(store: SqliteStore, pages: int) -> None:
    """Limit the file; SQLite never sets the limit below the present size."""
    store._thread.submit(lambda: store._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()).result()


def _write_until_full(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return
