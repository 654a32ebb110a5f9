"""A follower of the commit watch has the same records as a full read, without repeating that read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from rota.model.errors import Unavailable
from rota.store.etcd.client import Compacted, EtcdAccess
from rota.store.etcd.store import EtcdStore
from rota.store.etcd.watch import CommitWatch, SharedChange
from rota.store.protocol import Batch, CommitChange, Snapshot
from rota.testing.etcd import LocalEtcd
from tests.machine import needs

pytestmark = needs("etcd")

LARGE = b"x" * 1_300_000  # more than one key takes
MANY = 300  # records: more than one transaction takes


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
async def store(etcd: LocalEtcd, tmp_path: Path) -> AsyncIterator[EtcdStore]:
    made = EtcdStore(EtcdAccess(tuple(etcd.endpoints), call_seconds=30.0), f"{tmp_path}/", 300)
    yield made
    await made.close()


class Writer:
    """Commits one batch after the other."""

    def __init__(self, store: EtcdStore) -> None:
        self.store = store
        self.revision = 0

    async def commit(
        self, puts: dict[str, bytes], deletes: tuple[str, ...] = (), events: bytes | None = None
    ) -> None:
        number = self.revision
        batch = Batch(
            self.store.epoch, number, 1000 + number, 5000 + number, list(puts.items()), deletes, events
        )
        self.revision = await self.store.commit(batch)

    async def commit_with_retries(self, puts: dict[str, bytes]) -> None:
        """Commit, retrying while etcd elects a leader of its own."""
        target = self.revision + 1
        while self.revision < target:
            with suppress(Unavailable):
                self.revision = (await self.store.read()).revision
                if self.revision < target:
                    await self.commit(puts)


class WatchFollower:
    """Applies snapshots and changes of a watch."""

    def __init__(self, watch: CommitWatch) -> None:
        self.watch = watch
        self.records: dict[str, bytes] = {}
        self.revision = -1
        self.full_reads = 0
        self.rows: dict[int, bytes | None] = {}
        self.shared_changes: list[SharedChange] = []

    async def follow_to(self, revision: int) -> None:
        async with asyncio.timeout(60), aclosing(self.watch.steps()) as steps:
            async for step in steps:
                match step:
                    case Snapshot():
                        self.records, self.revision = dict(step.records), step.revision
                        self.full_reads += 1
                    case CommitChange():
                        self.records |= dict(step.puts)
                        for key in step.deletes:
                            del self.records[key]
                        self.revision, self.rows[step.revision] = step.revision, step.events
                    case SharedChange():
                        self.shared_changes.append(step)
                if self.revision >= revision:
                    return


async def follow_while(follower: WatchFollower, act: Callable[[], None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.follow_to(follower.revision + 1))
        await asyncio.to_thread(act)


async def test_every_kind_of_commit_is_followed(store: EtcdStore) -> None:
    await store.acquire_epoch()
    writer, follower = Writer(store), WatchFollower(store.watch())
    await writer.commit({"a": b"1", "b": b"2"})
    await follower.follow_to(1)
    await writer.commit({"a": b"3"}, ("b",), b"row")
    await writer.commit({"large": LARGE})
    await writer.commit({f"many/{n}": b"%d" % n for n in range(MANY)}, events=b"another row")
    await writer.commit({"large": b"small again"}, tuple(f"many/{n}" for n in range(MANY - 1)))
    await writer.commit({"large": LARGE + b"!"})
    await store.members.write_shared("vault", b"tokens", store.leader_created_at)
    await writer.commit({})
    await follower.follow_to(writer.revision)

    read = await store.read()
    assert (follower.records, follower.revision) == (read.records, read.revision)
    assert follower.full_reads == 1
    assert {number: row for number, row in follower.rows.items() if row} == {2: b"row", 4: b"another row"}
    assert follower.shared_changes == [SharedChange("vault", b"tokens")]
    assert follower.watch.large.keys() == {"large"}


async def test_a_broken_watch_resumes_where_it_was(store: EtcdStore) -> None:
    await store.acquire_epoch()
    writer, follower = Writer(store), WatchFollower(store.watch())
    for number in range(5):
        await writer.commit({f"k{number}": b"v"})
        await follower.follow_to(writer.revision)  # each time with a new watch

    assert follower.records.keys() == {f"k{number}" for number in range(5)}
    assert follower.full_reads == 1


async def test_after_a_compaction_everything_is_read_again(store: EtcdStore) -> None:
    await store.acquire_epoch()
    writer, follower = Writer(store), WatchFollower(store.watch())
    await writer.commit({"a": b"1"})
    await follower.follow_to(1)
    await writer.commit({"a": b"2"}, ())
    await writer.commit({"b": b"3"}, ("a",))
    await store._client.compact((await store.read_state()).etcd_revision)

    with pytest.raises(Compacted):
        await follower.follow_to(writer.revision)
    await follower.follow_to(writer.revision)
    assert (follower.records, follower.full_reads) == ({"b": b"3"}, 2)


async def test_a_watch_survives_its_member(tmp_path: Path) -> None:
    with LocalEtcd(tmp_path / "etcd", 3) as trio:
        access = EtcdAccess(tuple(trio.endpoints), call_seconds=10.0)
        leader, other = (EtcdStore(access, ttl_seconds=300) for _ in range(2))
        await leader.acquire_epoch()
        writer, follower = Writer(leader), WatchFollower(other.watch())
        await writer.commit({"a": b"1"})
        await follower.follow_to(1)
        with pytest.raises(ExceptionGroup):
            await follow_while(follower, lambda: trio.kill(1))
        await writer.commit_with_retries({"a": b"2"})
        while follower.revision < 2:
            with suppress(Unavailable):
                await follower.follow_to(2)

        assert (follower.records, follower.full_reads) == ({"a": b"2"}, 1)
        await leader.close()
        await other.close()
