"""EtcdStore when etcd or the network fails: a commit happens once or not at all, and the caller knows."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rota.devtools.relay import relay_to
from rota.model.errors import LostLeadership, StaleState, StoreFull, Unavailable
from rota.store.etcd import reader as reading
from rota.store.etcd import store as etcd_store
from rota.store.etcd.client import Compacted, EtcdAccess, EtcdClient
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.leader_lease import boot_ms
from rota.store.etcd.store import EtcdStore
from rota.store.protocol import EventRow
from rota.testing.etcd import LocalEtcd
from rota.testing.store_contract import batch, commit
from tests.machine import needs

pytestmark = needs("etcd")

TTL_SECONDS = 300
SHORT_SECONDS = 1.5  # timeout of a call under `short_timeout`
MANY = {f"task/{number}": b"%d" % number for number in range(1000)}  # more than one transaction takes
LARGE = bytes(range(256)) * 8192  # more than one value may hold


@pytest.fixture(scope="module")
def single_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path_factory.mktemp("etcd"), 3) as running:
        yield running


def store_at(directory: Path, *endpoints: str) -> EtcdStore:
    """Open a store with timeouts that suffice on a busy machine; see `short_timeout`."""
    return EtcdStore(EtcdAccess(endpoints, call_seconds=30.0), f"{directory}/", TTL_SECONDS)


@contextmanager
def short_timeout(store: EtcdStore) -> Iterator[None]:
    """Let unanswered calls time out soon within the block."""
    before = store._access
    store._access = store._client._access = replace(before, call_seconds=SHORT_SECONDS)
    try:
        yield
    finally:
        store._access = store._client._access = before


async def keys_below(etcd: LocalEtcd, directory: Path, part: str) -> list[bytes]:
    client = EtcdClient(EtcdAccess(tuple(etcd.endpoints), call_seconds=30.0))
    first = f"{directory}/{part}/".encode()
    found = await client.range(pb.RangeRequest(key=first, range_end=first[:-1] + b"0", keys_only=True))
    await client.close()
    return [kv.key for kv in found.kvs]


# ---- lost answers


async def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated(
    single_etcd: LocalEtcd, tmp_path: Path
) -> None:
    async with relay_to(single_etcd.endpoints[0]) as relay:
        store = store_at(tmp_path, relay.address, single_etcd.endpoints[0])
        epoch = await store.acquire_epoch()
        await commit(store, batch(epoch, puts={"k": b"before"}))
        relay.cut(to_server=False, to_node=True)

        with short_timeout(store):
            revision = await store.commit(batch(epoch, after=1, puts={"k": b"after"}, events=b"row"))

        assert revision == 2
        assert (await store.read()).records == {"k": b"after"}
        assert await store.events(0, 10) == [EventRow(2, b"row")]
        relay.heal()
        await store.close()


async def test_an_unanswered_commit_is_unavailable_and_its_retry_is_stale(
    single_etcd: LocalEtcd, tmp_path: Path
) -> None:
    async with relay_to(single_etcd.endpoints[0]) as relay:
        store = store_at(tmp_path, relay.address)
        epoch = await store.acquire_epoch()
        await commit(store, batch(epoch, puts={"k": b"before"}))
        relay.cut(to_server=False, to_node=True)
        lost = batch(epoch, after=1, puts={"k": b"after"})

        with short_timeout(store), pytest.raises(Unavailable):
            await store.commit(lost)
        relay.heal()

        assert (await store.read()).records == {"k": b"after"}
        with pytest.raises(StaleState):
            await store.commit(lost)
        await store.close()


async def test_a_commit_that_never_arrived_is_sent_to_another_member(
    single_etcd: LocalEtcd, tmp_path: Path
) -> None:
    async with relay_to(single_etcd.endpoints[0]) as relay:
        store = store_at(tmp_path, relay.address, single_etcd.endpoints[0])
        epoch = await store.acquire_epoch()
        relay.break_all()

        assert await store.commit(batch(epoch, puts={"k": b"v"})) == 1
        assert (await store.read()).records == {"k": b"v"}
        await store.close()


async def test_a_hanging_member_is_replaced_by_another(three: LocalEtcd, tmp_path: Path) -> None:
    store = store_at(tmp_path, *three.endpoints)
    epoch = await store.acquire_epoch()
    with three.paused(1), short_timeout(store):
        revision = await persist(store, epoch, 0)

        assert await read_again(store) == revision
    await store.close()


async def persist(store: EtcdStore, epoch: int, revision: int) -> int:
    """Commit as the engine does, reloading after a failure; return the acknowledged revision."""
    while True:
        try:
            puts = {f"k{revision + 1}": b"v"}
            return await store.commit(batch(epoch, after=revision, puts=puts, events=b"%d" % (revision + 1)))
        except (Unavailable, StaleState):  # a timed-out commit may have happened since
            revision = await read_again(store)


async def read_again(store: EtcdStore) -> int:
    while True:
        try:
            return (await store.read()).revision
        except Unavailable:
            await asyncio.sleep(0.05)


async def test_members_killed_one_after_the_other_lose_and_duplicate_nothing(
    three: LocalEtcd, tmp_path: Path
) -> None:
    store = store_at(tmp_path, *three.endpoints)
    epoch = await store.acquire_epoch()
    stopping = asyncio.Event()
    progress = asyncio.Semaphore(0)
    acknowledged: list[int] = []

    async def write() -> None:
        while not stopping.is_set():
            acknowledged.append(await persist(store, epoch, acknowledged[-1] if acknowledged else 0))
            progress.release()

    async def kill() -> None:
        for number in three.numbers:
            for _ in range(20):
                await progress.acquire()
            await asyncio.to_thread(three.kill, number)
            await asyncio.to_thread(three.launch, number)
            await asyncio.to_thread(three.wait)
        stopping.set()

    with short_timeout(store):
        async with asyncio.TaskGroup() as both:
            both.create_task(write())
            both.create_task(kill())
    snapshot = await store.read()
    rows = await store.events(0, 100_000)
    await store.close()

    assert acknowledged == sorted(set(acknowledged))
    assert snapshot.revision == acknowledged[-1]
    assert snapshot.records.keys() == {f"k{n + 1}" for n in range(snapshot.revision)}
    assert rows == [EventRow(n + 1, b"%d" % (n + 1)) for n in range(snapshot.revision)]


async def test_without_a_quorum_nothing_is_acknowledged(tmp_path: Path) -> None:
    with LocalEtcd(tmp_path / "etcd", 3) as etcd:
        store = store_at(tmp_path, *etcd.endpoints)
        epoch = await store.acquire_epoch()
        etcd.kill(1)
        etcd.kill(2)

        with short_timeout(store):
            with pytest.raises(Unavailable):
                await store.commit(batch(epoch, puts={"k": b"v"}))
            with pytest.raises(Unavailable):
                await store.read()

        etcd.launch(1)
        await asyncio.to_thread(etcd.wait)
        assert (await persist(store, epoch, await read_again(store))) in (1, 2)
        await store.close()


# ---- leadership


async def test_a_leader_that_lost_its_lease_writes_nothing(single_etcd: LocalEtcd, tmp_path: Path) -> None:
    store = store_at(tmp_path, *single_etcd.endpoints)
    epoch = await store.acquire_epoch()
    before = await store.read()
    await store.leader_lease.release()

    for late in (batch(epoch, puts={"k": b"v"}), batch(epoch, puts=MANY), batch(epoch, puts={"k": LARGE})):
        with pytest.raises(LostLeadership):
            await store.commit(late)

    assert await store.read() == before
    assert await keys_below(single_etcd, tmp_path, "staged") == []
    assert await keys_below(single_etcd, tmp_path, "pieces") == []
    with pytest.raises(LostLeadership):
        await store.leader_lease.renew()
    await store.close()


async def test_without_a_leader_nothing_is_written_or_deleted(single_etcd: LocalEtcd, tmp_path: Path) -> None:
    """A missing leader key has creation revision 0, which must not match epoch 0."""
    store = store_at(tmp_path, *single_etcd.endpoints)
    await commit(store, batch(await store.acquire_epoch(), puts={"k": b"v"}, events=b"row"))
    await store.close()

    other = store_at(tmp_path, *single_etcd.endpoints)
    with pytest.raises(LostLeadership):
        await other.commit(batch(0, after=1, puts={"k": b"late"}))
    await other.forget_events(1)
    assert (await other.read()).records == {"k": b"v"}
    assert await other.events(0, 10) == [EventRow(1, b"row")]
    await other.close()


async def test_of_many_candidates_one_leads_at_a_time(single_etcd: LocalEtcd, tmp_path: Path) -> None:
    stores = [store_at(tmp_path, *single_etcd.endpoints) for _ in range(5)]
    epochs: list[int] = []
    leading = asyncio.Semaphore(1)

    async def campaign(store: EtcdStore) -> None:
        epochs.append(await store.acquire_epoch())
        assert not leading.locked()
        async with leading:
            await commit(store, batch(epochs[-1], puts={"leader": b"%d" % epochs[-1]}))
        await store.leader_lease.release()

    async with asyncio.TaskGroup() as tasks:
        for store in stores:
            tasks.create_task(campaign(store))
    for store in stores:
        await store.close()

    assert len(epochs) == 5
    assert epochs == sorted(set(epochs))


async def test_a_renewed_lease_lasts_beyond_its_ttl(single_etcd: LocalEtcd, tmp_path: Path) -> None:
    access = EtcdAccess(tuple(single_etcd.endpoints), call_seconds=30.0)
    store, other = (EtcdStore(access, f"{tmp_path}/", ttl_seconds=6) for _ in range(2))
    epoch = await store.acquire_epoch()
    async with asyncio.TaskGroup() as both:
        waiting = both.create_task(other.acquire_epoch())
        ends_at_ms = boot_ms() + 9000
        while boot_ms() < ends_at_ms:
            await asyncio.sleep(0.2)  # more than the TTL must pass
            await store.leader_lease.renew()
        assert not waiting.done()
        assert await commit(store, batch(epoch, puts={"k": b"v"})) == 1
        await store.close()
        assert await waiting > epoch
    await other.close()


# ---- commits larger than one transaction


async def test_a_large_commit_counts_before_its_records_are_in_place(
    single_etcd: LocalEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise Unavailable("killed here")

    store = store_at(tmp_path, *single_etcd.endpoints)
    epoch = await store.acquire_epoch()
    await commit(store, batch(epoch, puts={"gone": b"v", "task/1": b"old"}))
    with monkeypatch.context() as killed:
        killed.setattr(EtcdStore, "_put_in_place", fails)
        revision = await store.commit(batch(epoch, after=1, puts=MANY, deletes=("gone",), events=b"row"))
    await store.close()

    again = store_at(tmp_path, *single_etcd.endpoints)
    epoch = await again.acquire_epoch()
    snapshot = await again.read()
    assert (revision, snapshot.revision, snapshot.records) == (2, 2, MANY)
    assert await again.commit(batch(epoch, after=2, puts={"task/1": b"new"})) == 3
    assert (await again.read()).records == MANY | {"task/1": b"new"}
    assert await again.events(0, 10) == [EventRow(2, b"row")]
    assert await keys_below(single_etcd, tmp_path, "staged") == []
    await again.close()


async def test_an_interrupted_large_commit_leaves_nothing(
    single_etcd: LocalEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise Unavailable("killed here")

    store = store_at(tmp_path, *single_etcd.endpoints)
    epoch = await store.acquire_epoch()
    with monkeypatch.context() as killed:
        killed.setattr(EtcdStore, "_finish", fails)
        for puts in (MANY, {"k": LARGE}):
            with pytest.raises(Unavailable):
                await store.commit(batch(epoch, puts=puts))
    assert (await store.read()).records == {}
    await store.close()

    again = store_at(tmp_path, *single_etcd.endpoints)
    await again.acquire_epoch()
    assert (await again.read()).records == {}
    assert await keys_below(single_etcd, tmp_path, "pieces") == []
    assert await keys_below(single_etcd, tmp_path, "staged") == []
    await again.close()


async def test_the_chunks_of_a_large_value_are_deleted_with_it(
    single_etcd: LocalEtcd, tmp_path: Path
) -> None:
    store = store_at(tmp_path, *single_etcd.endpoints)
    epoch = await store.acquire_epoch()
    await commit(store, batch(epoch, puts={"a": LARGE, "b": LARGE}, events=LARGE))
    assert await store.events(0, 10) == [EventRow(1, LARGE)]

    await commit(store, batch(epoch, puts={"a": b"small"}))
    await store.close()
    again = store_at(tmp_path, *single_etcd.endpoints)
    epoch = await again.acquire_epoch()
    assert (await again.read()).records == {"a": b"small", "b": LARGE}
    await commit(again, batch(epoch, deletes=("b",)))

    assert (await again.read()).records == {"a": b"small"}
    assert await keys_below(single_etcd, tmp_path, "pieces") == []
    await again.close()


# ---- history and space


async def test_a_read_overtaken_by_a_compaction_is_restarted(
    single_etcd: LocalEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PAGE", 10)
    store, reader = (store_at(tmp_path, *single_etcd.endpoints) for _ in range(2))
    epoch = await store.acquire_epoch()
    await commit(store, batch(epoch, puts={f"k{n:03d}": b"old" for n in range(100)}))
    range_ = EtcdClient.range
    overtaken = 0

    async def overtake(client: EtcdClient, request: pb.RangeRequest) -> pb.RangeResponse:
        nonlocal overtaken
        answer = await range_(client, request)
        if answer.more and not overtaken:
            overtaken += 1
            await store.commit(batch(epoch, after=1, puts={f"k{n:03d}": b"new" for n in range(100)}))
            await client.compact(answer.header.revision + 1)
        return answer

    monkeypatch.setattr(EtcdClient, "range", overtake)
    snapshot = await reader.read()

    assert overtaken == 1
    assert snapshot.revision == 2
    assert set(snapshot.records.values()) == {b"new"}
    await store.close()
    await reader.close()


async def test_history_is_compacted_so_that_etcd_does_not_fill_up(
    single_etcd: LocalEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "_COMPACT_BYTES", 1000)
    store = store_at(tmp_path, *single_etcd.endpoints)
    epoch = await store.acquire_epoch()
    for number in range(5):
        await commit(store, batch(epoch, puts={"k": b"%d" % number * 500}))
    client = EtcdClient(EtcdAccess(tuple(single_etcd.endpoints), call_seconds=30.0))

    with pytest.raises(Compacted):
        await client.range(pb.RangeRequest(key=b"k", revision=epoch))

    assert (await store.read()).records == {"k": b"4" * 500}
    await client.close()
    await store.close()


async def test_a_full_etcd_is_reported_and_the_batch_is_not_committed(tmp_path: Path) -> None:
    with LocalEtcd(tmp_path / "etcd", 1, "--quota-backend-bytes=2000000") as etcd:
        store = store_at(tmp_path, *etcd.endpoints)
        epoch = await store.acquire_epoch()

        with pytest.raises(StoreFull, match="space"):
            await fill(store, epoch)

        snapshot = await store.read()
        assert len(snapshot.records) == snapshot.revision
        await store.close()


async def fill(store: EtcdStore, epoch: int) -> None:
    for number in range(100):
        await commit(store, batch(epoch, puts={f"k{number}": bytes(100_000)}))
