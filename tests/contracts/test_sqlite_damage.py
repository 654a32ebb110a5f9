"""Corrupted, torn or lost files: the store serves what was written or refuses to open."""

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rota.model.errors import Damaged, Unavailable
from rota.store.protocol import EventRow, Snapshot
from rota.store.sqlite import SqliteStore
from rota.testing.store_contract import batch
from tests.faults.sizes import MANY

PAGE_BYTES = 4096
TRIALS = 2000 if MANY else 60
COMMITS = 40


class WrittenStore(NamedTuple):
    """The files of a store that was killed or closed, and their contents."""

    directory: Path
    snapshot: Snapshot
    events: list[EventRow]


@pytest.fixture(scope="module", params=["killed", "closed"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WrittenStore:
    directory, kept = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("kept") / "files"
    return asyncio.run(_write(directory, kept, closed=request.param == "closed"))


async def _write(directory: Path, kept: Path, *, closed: bool) -> WrittenStore:
    """Write, rewrite and delete records; after a kill the log holds commits that the file does not."""
    rng = random.Random(1)
    store = SqliteStore(directory, reserve_bytes=4096)
    epoch = await store.acquire_epoch()
    for revision in range(COMMITS):
        puts = {f"task/{rng.randrange(120)}/0": rng.randbytes(rng.choice((20, 700, 6000))) for _ in range(12)}
        deletes = tuple({f"task/{rng.randrange(120)}/0" for _ in range(2)} - puts.keys())
        await store.commit(
            batch(
                epoch,
                after=revision,
                time_ms=revision,
                puts=puts,
                deletes=deletes,
                events=rng.randbytes(300),
            )
        )
    truth = await store.read(), await store.events(0, 1000)
    if not closed:
        shutil.copytree(directory, kept)
    await store.close()
    if closed:
        shutil.copytree(directory, kept)
    return WrittenStore(kept, *truth)


Damage = Callable[[random.Random, bytes], bytes]


def _flip(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]


def _cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def _zero(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content)) // PAGE_BYTES * PAGE_BYTES
    return content[:at] + bytes(min(PAGE_BYTES, len(content) - at)) + content[at + PAGE_BYTES :]


def _smear(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + rng.randbytes(min(600, len(content) - at)) + content[at + 600 :]


def _misplace(rng: random.Random, content: bytes) -> bytes:
    """Copy a page over another one, as by a misdirected write."""
    pages = len(content) // PAGE_BYTES
    source, target = rng.randrange(pages) * PAGE_BYTES, rng.randrange(pages) * PAGE_BYTES
    page = content[source : source + PAGE_BYTES]
    return content[:target] + page + content[target + PAGE_BYTES :]


DAMAGES = [_flip, _cut, _zero, _smear, _misplace]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_data_is_never_served(written: WrittenStore, damage: Damage, tmp_path: Path) -> None:
    refused = 0
    names = sorted(
        path.name for path in written.directory.iterdir() if path.name in ("rota.db", "rota.db-wal")
    )
    for trial in range(TRIALS):
        rng = random.Random(trial)
        directory = tmp_path / str(trial)
        shutil.copytree(written.directory, directory)
        file = directory / rng.choice(names)
        file.write_bytes(damage(rng, file.read_bytes()))
        try:
            found = await _all_of(directory)
            rewritten = await _rewrite_all(directory, found[0])
        except Unavailable:
            refused += 1
        else:
            assert found == (written.snapshot, written.events), f"trial {trial}: {file.name}"
            assert rewritten, f"trial {trial}: {file.name}"
        shutil.rmtree(directory)

    assert refused


async def test_a_lost_log_is_noticed(written: WrittenStore, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    shutil.copytree(written.directory, directory)
    (directory / "rota.db-wal").unlink(missing_ok=True)
    (directory / "rota.db-shm").unlink(missing_ok=True)
    if (written.directory / "rota.db-wal").exists():
        with pytest.raises(Damaged, match="its last commits are lost"):
            SqliteStore(directory)
    else:
        assert await _all_of(directory) == (written.snapshot, written.events)


async def test_a_torn_unacknowledged_commit_is_gone(tmp_path: Path) -> None:
    """As after a power loss: the log ends somewhere within the last commit."""
    directory = tmp_path / "store"
    directory.mkdir()
    store = SqliteStore(directory, reserve_bytes=4096)
    epoch = await store.acquire_epoch()
    await store.commit(batch(epoch, puts={"k": b"first"}, events=b"first"))
    size = (directory / "rota.db-wal").stat().st_size
    shutil.copytree(directory, tmp_path / "acknowledged")
    await store.commit(batch(epoch, after=1, puts={f"k{n}": bytes(3000) for n in range(9)}, events=b"second"))
    log = (directory / "rota.db-wal").read_bytes()
    await store.close()

    for cut in range(size, len(log), 997):
        torn = tmp_path / str(cut)
        shutil.copytree(tmp_path / "acknowledged", torn)
        (torn / "rota.db-wal").write_bytes(log[:cut])
        snapshot, events = await _all_of(torn)
        assert (snapshot.revision, snapshot.records) == (1, {"k": b"first"})
        assert events == [EventRow(1, b"first")]


async def test_an_older_file_in_its_place_is_detected(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    epoch = await store.acquire_epoch()
    await store.commit(batch(epoch, puts={"k": b"old"}))
    await store.close()
    old = (tmp_path / "rota.db").read_bytes()
    again = SqliteStore(tmp_path)
    await again.commit(batch(epoch, after=1, puts={"k": b"new"}))
    await again.close()
    (tmp_path / "rota.db").write_bytes(old)

    with pytest.raises(Damaged, match="revision 2 in epoch 1 was acknowledged") as refused:
        SqliteStore(tmp_path)
    assert "rota store restore" in str(refused.value.hint)


@pytest.mark.parametrize("text", [b"", b"no marker", bytes(20)])
async def test_an_invalid_ack_marker_is_ignored(tmp_path: Path, text: bytes) -> None:
    store = SqliteStore(tmp_path)
    await store.commit(batch(await store.acquire_epoch(), puts={"k": b"v"}))
    await store.close()
    (tmp_path / "rota.mark").write_bytes(text)

    snapshot, _ = await _all_of(tmp_path)
    assert snapshot.records == {"k": b"v"}


async def _rewrite_all(directory: Path, before: Snapshot) -> bool:
    """Rewrite or delete every key, and return whether a read agrees: a corrupt index would show."""
    keys = sorted(before.records)
    puts, deletes = dict.fromkeys(keys[::2], b"once more"), tuple(keys[1::2])
    store = SqliteStore(directory, reserve_bytes=4096)
    try:
        epoch = await store.acquire_epoch()
        await store.commit(batch(epoch, after=before.revision, puts=puts, deletes=deletes))
        return (await store.read()).records == puts
    finally:
        await store.close()


async def _all_of(directory: Path) -> tuple[Snapshot, list[EventRow]]:
    store = SqliteStore(directory, reserve_bytes=4096)
    try:
        return await store.read(), await store.events(0, 1000)
    finally:
        await store.close()
