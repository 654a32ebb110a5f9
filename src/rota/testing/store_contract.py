"""StoreContract: the contract of every store. A subclass implements make() and inherits the tests.

    class TestMyStore(StoreContract):
        async def make(self, directory: Path) -> Store:
            return MyStore(directory)

The tests are coroutines: pytest-asyncio runs them in its mode `auto`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from rota.model.errors import LostLeadership, StaleState
from rota.model.plan import EventRecord
from rota.store.codec import encode_events
from rota.store.protocol import Batch, EventRow, Snapshot, Store


class StoreContract:
    """Tests that every store must pass: atomic commits, fencing by epoch, events, and durability."""

    durable: ClassVar[bool] = True  # False: only epochs survive the process

    async def make(self, directory: Path) -> Store:
        """Open the store of that directory; a second call for the same one opens it again."""
        raise NotImplementedError

    # ---- commit and read

    async def test_a_new_store_is_empty(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.read() == Snapshot(0, 0, 0, {})
            assert await store.events(0, 10) == []

    async def test_what_was_committed_is_read(self, tmp_path: Path) -> None:
        records = {
            "job/1/spec": b"one",
            "job/2/spec": bytes(range(256)),
            "empty": b"",
            "näme/ジョブ": b"\xff",
        }
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, puts=records))

            assert await store.read() == Snapshot(1, epoch, 0, records)

    async def test_each_commit_is_one_revision_more(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            revisions = [await commit(store, batch(epoch, puts={"k": bytes([n])})) for n in range(5)]

            assert revisions == [1, 2, 3, 4, 5]
            assert (await store.read()).revision == 5

    async def test_the_last_put_of_a_key_counts(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, puts={"k": b"first", "other": b"stays"}))
            await commit(store, batch(epoch, puts={"k": b"second"}))

            assert (await store.read()).records == {"k": b"second", "other": b"stays"}

    async def test_a_delete_removes_its_key_and_a_missing_key_is_no_error(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, puts={"a": b"1", "b": b"2"}))
            await commit(store, batch(epoch, puts={"c": b"3"}, deletes=("a", "never there")))

            assert (await store.read()).records == {"b": b"2", "c": b"3"}

    async def test_a_deleted_key_can_be_put_again(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, puts={"a": b"1"}))
            await commit(store, batch(epoch, deletes=("a",)))
            await commit(store, batch(epoch, puts={"a": b"2"}))

            assert (await store.read()).records == {"a": b"2"}

    async def test_an_empty_batch_is_a_revision_too(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, puts={"k": b"v"}))

            assert await commit(store, batch(epoch)) == 2
            assert await store.read() == Snapshot(2, epoch, 0, {"k": b"v"})

    async def test_the_cluster_time_of_the_last_commit_is_kept(self, tmp_path: Path) -> None:
        far = 2**53
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, time_ms=1234))
            first = await store.read()
            await commit(store, batch(epoch, time_ms=far))

            assert (first.time_ms, (await store.read()).time_ms) == (1234, far)

    async def test_a_snapshot_stays_as_it_was(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, puts={"k": b"then"}))
            snapshot = await store.read()
            await commit(store, batch(epoch, puts={"k": b"now", "more": b""}))

            assert snapshot == Snapshot(1, epoch, 0, {"k": b"then"})

    async def test_a_big_batch_is_one_commit(self, tmp_path: Path) -> None:
        records = {f"task/{n}": n.to_bytes(4, "big") * 50 for n in range(20_000)} | {"big": bytes(4 * 2**20)}
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            revision = await commit(store, batch(epoch, puts=records, events=bytes(2**20)))
            snapshot = await store.read()

            assert revision == 1
            assert snapshot.records == records

    # ---- atomicity and ordering

    async def test_of_commits_at_once_one_is_done_and_the_others_are_outdated(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            rivals = [batch(epoch, puts={f"k{n}": b"v"}, events=b"%d" % n) for n in range(40)]
            async with asyncio.TaskGroup() as group:
                commits = [group.create_task(is_outdated(store, rival)) for rival in rivals]
            done = [n for n, commit in enumerate(commits) if not commit.result()]

            assert len(done) == 1
            assert (await store.read()).records == {f"k{done[0]}": b"v"}
            assert await store.events(0, 100) == [EventRow(1, b"%d" % done[0])]

    async def test_a_batch_that_missed_a_commit_changes_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, puts={"k": b"1"}, events=b"first"))
            before = await store.read()

            assert await is_outdated(
                store, batch(epoch, after=0, time_ms=9, puts={"k": b"2"}, events=b"late")
            )
            assert await is_outdated(store, batch(epoch, after=2, time_ms=9, deletes=("k",)))
            assert await store.read() == before
            assert await store.events(0, 10) == [EventRow(1, b"first")]

    async def test_a_reader_sees_all_of_a_batch_or_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()

            async def write() -> None:
                for n in range(40):
                    puts = {f"half{part}": b"%d" % n for part in range(50)}
                    await commit(store, batch(epoch, time_ms=n + 1, puts=puts))

            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                reads = [group.create_task(store.read()) for _ in range(40)]
            snapshots = [read.result() for read in reads] + [await store.read()]

            for snapshot in snapshots:
                values = set(snapshot.records.values())
                assert values == ({b"%d" % (snapshot.time_ms - 1)} if snapshot.revision else set())
                assert len(snapshot.records) in (0, 50)

    # ---- fencing

    async def test_each_lead_raises_the_epoch(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epochs = [await store.acquire_epoch() for _ in range(3)]

            assert epochs[0] > 0
            assert epochs == sorted(set(epochs))
            assert (await store.read()).epoch == epochs[-1]

    async def test_a_batch_of_an_old_epoch_changes_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            old = await store.acquire_epoch()
            await commit(store, batch(old, time_ms=1, puts={"a": b"1", "b": b"2"}, events=b"first"))
            await store.acquire_epoch()
            before = await store.read()

            late = batch(old, time_ms=9, puts={"a": b"9", "new": b""}, deletes=("b",), events=b"late")

            assert await is_deposed(store, late)
            assert await store.read() == before
            assert await store.events(0, 10) == [EventRow(1, b"first")]

    async def test_a_batch_of_an_epoch_that_nobody_leads_changes_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()

            assert await is_deposed(store, batch(epoch + 1, puts={"k": b"v"}))
            assert (await store.read()).records == {}

    async def test_before_anybody_led_nothing_is_written(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await is_deposed(store, batch(1, puts={"k": b"v"}))
            assert await store.read() == Snapshot(0, 0, 0, {})

    async def test_who_leads_goes_on_after_a_refused_batch(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            old, new = await store.acquire_epoch(), await store.acquire_epoch()
            refused = await is_deposed(store, batch(old, puts={"k": b"old"}))

            assert refused
            assert await commit(store, batch(new, puts={"k": b"new"})) == 1
            assert (await store.read()).records == {"k": b"new"}

    async def test_a_second_store_that_leads_deposes_the_first(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as first, self.opened(tmp_path) as second:
            old = await first.acquire_epoch()
            await commit(first, batch(old, puts={"k": b"old"}))
            new = await second.acquire_epoch()

            assert new > old
            assert await is_deposed(first, batch(old, puts={"k": b"late"}))
            await commit(second, batch(new, puts={"other": b"new"}))

    async def test_epochs_only_grow_when_opened_again(self, tmp_path: Path) -> None:
        epochs = []
        for _ in range(3):
            async with self.opened(tmp_path) as store:
                epochs.append(await store.acquire_epoch())
                assert all([await is_deposed(store, batch(old)) for old in epochs[:-1]])

        assert epochs == sorted(set(epochs))

    async def test_an_epoch_can_be_raised_above_a_number(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            first = await store.acquire_epoch()
            high = await store.acquire_epoch(above=first + 40)

            assert high > first + 40
            assert await store.acquire_epoch(above=first) > high
            assert await is_deposed(store, batch(high))

    async def test_a_store_that_was_given_a_huge_epoch_can_still_be_led(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.acquire_epoch(above=2**63 - 3)
        for _ in range(3):
            async with self.opened(tmp_path) as store:
                epoch = await store.acquire_epoch()
                revision = (await store.read()).revision
                assert await store.commit(batch(epoch, after=revision)) == revision + 1

    # ---- loading a snapshot

    async def test_an_empty_store_becomes_what_it_is_filled_with(self, tmp_path: Path) -> None:
        rows = [event_row(3, 1000), event_row(7, 2000)]
        async with self.opened(tmp_path) as store:
            await store.load_snapshot(Snapshot(9, 4, 77, {"a": b"1", "b": b""}), iter(rows))
            snapshot = await store.read()

            assert (snapshot.revision, snapshot.time_ms) == (9, 77)
            assert snapshot.records == {"a": b"1", "b": b""}
            assert await store.events(0, 10) == rows
            epoch = await store.acquire_epoch()
            assert epoch > 4
            assert await store.commit(batch(epoch, after=9, puts={"c": b"3"})) == 10
            await store.forget_events(1500)
            assert await store.events(0, 10) == rows[1:]

    async def test_a_store_with_commits_is_not_filled(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await commit(store, batch(await store.acquire_epoch(), puts={"k": b"v"}))
            before = await store.read()

            try:
                await store.load_snapshot(Snapshot(9, 4, 77, {"a": b"1"}), [])
                refused = False
            except StaleState:
                refused = True

            assert refused
            assert await store.read() == before

    async def test_a_store_says_whether_it_has_room(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            assert await store.has_space()

    # ---- events

    async def test_events_come_oldest_first_above_a_revision(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            for row in (b"one", b"two", None, b"four", b"five"):
                await commit(store, batch(epoch, events=row))

            assert await store.events(0, 2) == [EventRow(1, b"one"), EventRow(2, b"two")]
            assert await store.events(2, 10) == [EventRow(4, b"four"), EventRow(5, b"five")]
            assert await store.events(4, 10) == [EventRow(5, b"five")]
            assert await store.events(5, 10) == []

    async def test_old_events_are_forgotten_and_nothing_else(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            for n in range(1, 5):
                await commit(store, batch(epoch, wall_ms=n * 1000, puts={f"k{n}": b"v"}, events=b"%d" % n))
            before = await store.read()
            await store.forget_events(3000)

            assert await store.events(0, 10) == [EventRow(3, b"3"), EventRow(4, b"4")]
            assert await store.read() == before

    # ---- reopening

    async def test_what_was_committed_lives_as_long_as_the_store_says(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, time_ms=5, puts={"a": b"1", "b": b"2"}, events=b"first"))
            await commit(store, batch(epoch, time_ms=7, deletes=("a",), events=b"second"))
            kept = Snapshot(2, epoch, 7, {"b": b"2"}) if self.durable else Snapshot(0, epoch, 0, {})
            rows = [EventRow(1, b"first"), EventRow(2, b"second")] if self.durable else []

        async with self.opened(tmp_path) as again:
            assert await again.read() == kept
            assert await again.events(0, 10) == rows
            assert await commit(again, batch(await again.acquire_epoch())) == kept.revision + 1

    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Store]:
        store = await self.make(directory)
        try:
            yield store
        finally:
            await store.close()


def batch(
    epoch: int,
    *,
    after: int = 0,
    time_ms: int = 0,
    wall_ms: int = 0,
    puts: dict[str, bytes] | None = None,
    deletes: tuple[str, ...] = (),
    events: bytes | None = None,
) -> Batch:
    return Batch(epoch, after, time_ms, wall_ms, list((puts or {}).items()), deletes, events)


def event_row(revision: int, wall_ms: int) -> EventRow:
    return EventRow(
        revision, encode_events(wall_ms, (EventRecord("job.submitted", f"of revision {revision}"),))
    )


async def commit(store: Store, what: Batch) -> int:
    """Commit on top of the current revision."""
    return await store.commit(what._replace(after=(await store.read()).revision))


async def is_outdated(store: Store, late: Batch) -> bool:
    try:
        await store.commit(late)
    except StaleState:
        return True
    return False


async def is_deposed(store: Store, late: Batch) -> bool:
    try:
        await store.commit(late)
    except LostLeadership:
        return True
    return False
