"""The driver: persist, then answer and publish."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from rota.engine import run
from rota.engine.reconciler import Reconciler, own_id
from rota.engine.run import Committed, Engine
from rota.model.errors import Bug, Conflict, NotFound, QueueFull, Rejected, Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobSpec
from rota.model.limits import BATCH_KEYS_MAX
from rota.model.plan import NO_CHANGE, Instant, Plan, wake_at
from rota.model.view import View
from rota.store import codec
from rota.store.sqlite import SqliteStore
from rota.testing.records import job
from tests.engine.driving import jobs, jobs_on_disk, running, submit, turns
from tests.engine.gated_store import GatedStore


async def test_an_answer_comes_after_its_commit(store: GatedStore) -> None:
    async with running(store) as engine, asyncio.TaskGroup() as group:
        store.gate.clear()
        asked = group.create_task(engine.ask("apiserver", submit(1)))
        await store.at_the_gate.wait()
        await turns()
        early = asked.done()
        store.gate.set()

        assert await asked == 1
        assert not early
        assert await jobs_on_disk(store) == ["1"]
        assert engine.revision == 1


async def test_a_fenced_answer_comes_after_a_commit_of_nothing(store: GatedStore) -> None:
    async with running(store) as engine, asyncio.TaskGroup() as group:
        store.gate.clear()
        asked = group.create_task(engine.ask("watcher", lambda *_: Plan(answer="yes", fenced=True)))
        await store.at_the_gate.wait()
        await turns()
        early = asked.done()
        store.gate.set()

        assert await asked == "yes"
        assert not early
        assert engine.revision == 1


async def test_callers_that_wait_when_the_engine_ends_are_refused(store: GatedStore) -> None:
    """The request under way, the one behind it and a later one: none of them hangs."""
    async with asyncio.TaskGroup() as group:
        async with running(store) as engine:
            store.gate.clear()
            under_way = group.create_task(refused(engine.ask("apiserver", submit(1))))
            await store.at_the_gate.wait()
            behind = group.create_task(refused(engine.ask("apiserver", submit(2))))
            looking = group.create_task(refused(engine.read(jobs)))
            await turns()
        store.gate.set()

    assert all([under_way.result(), behind.result(), looking.result()])
    assert await refused(engine.ask("apiserver", submit(3)))


async def refused(asked: Coroutine[Any, Any, object]) -> bool:
    try:
        await asked
    except Unavailable:
        return True
    return False


async def test_a_read_waits_for_the_commit_under_way(store: GatedStore) -> None:
    async with running(store) as engine, asyncio.TaskGroup() as group:
        store.gate.clear()
        group.create_task(engine.ask("apiserver", submit(1)))
        await store.at_the_gate.wait()
        seen = group.create_task(engine.read(jobs))
        await turns()
        early = seen.done()
        store.gate.set()

        assert await seen == ["1"]
        assert not early


async def test_a_read_without_a_commit_under_way_is_answered_immediately(store: GatedStore) -> None:
    async with running(store) as engine:
        await engine.ask("apiserver", submit(1))

        assert await engine.read(jobs) == ["1"]


@pytest.mark.parametrize("committing", [False, True])
async def test_a_read_that_raises_affects_its_caller_only(store: GatedStore, committing: bool) -> None:
    def look(mirror: object) -> None:
        raise NotFound("no job 7")

    async with running(store) as engine, asyncio.TaskGroup() as group:
        if committing:
            store.gate.clear()
            group.create_task(engine.ask("apiserver", submit(1)))
            await store.at_the_gate.wait()
        seen = group.create_task(refusal(engine, look))
        await turns()
        store.gate.set()

        assert isinstance(await seen, NotFound)
        assert await engine.ask("apiserver", submit(2)) == 2


async def test_requests_during_a_commit_are_one_next_commit(store: GatedStore) -> None:
    async with running(store) as engine:
        async with asyncio.TaskGroup() as group:
            store.gate.clear()
            group.create_task(engine.ask("apiserver", submit(1)))
            await store.at_the_gate.wait()
            for number in range(2, 7):
                group.create_task(engine.ask("apiserver", submit(number)))
            await turns()
            store.gate.set()

        assert [len(batch.puts) for batch in store.commits] == [1, 5]
        assert await jobs_on_disk(store) == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize(("refusal", "commits"), [(Conflict, 1), (NotFound, 1), (QueueFull, 0)])
async def test_a_refusal_based_on_records_is_answered_after_an_empty_commit(
    store: GatedStore, refusal: type[Rejected], commits: int
) -> None:
    def refuse(view: View, now: Instant) -> Plan:
        raise refusal("not now")

    async with running(store) as engine:
        with pytest.raises(refusal):
            await engine.ask("apiserver", refuse)

        assert [(batch.puts, batch.deletes) for batch in store.commits] == [([], [])] * commits
        assert engine.revision == commits


async def test_a_request_that_raises_leaves_the_engine_running(store: GatedStore) -> None:
    def fail(view: View, now: Instant) -> Plan:
        raise ZeroDivisionError

    async with running(store) as engine:
        with pytest.raises(Bug):
            await engine.ask("apiserver", fail)

        assert await engine.ask("apiserver", submit(1)) == 1


async def test_a_canceled_caller_does_no_harm(store: GatedStore) -> None:
    async with running(store) as engine:
        async with asyncio.TaskGroup() as group:
            store.gate.clear()
            asked = group.create_task(engine.ask("apiserver", submit(1)))
            await store.at_the_gate.wait()
            asked.cancel()
        store.gate.set()

        assert await engine.ask("apiserver", submit(2)) == 2
        assert await jobs_on_disk(store) == ["1", "2"]


async def test_commit_hooks_run_for_each_commit_in_order_when_it_is_durable(store: GatedStore) -> None:
    published: list[tuple[int, list[str], list[str]]] = []

    def listen(committed: Committed) -> None:
        kinds = [event.kind for event in committed.events]
        published.append((committed.revision, jobs(engine.mirror), kinds))

    async with running(store) as engine:
        engine.on_commit(listen)
        await engine.ask("apiserver", submit(1))
        await engine.ask("apiserver", lambda _view, _now: NO_CHANGE)
        await engine.ask("apiserver", submit(2))

    assert published == [(1, ["1"], ["job.submitted"]), (2, ["1", "2"], ["job.submitted"])]


async def test_events_are_in_the_row_of_their_commit(store: GatedStore) -> None:
    async with running(store) as engine:
        await engine.ask("apiserver", submit(1))
        await engine.ask("apiserver", lambda _view, _now: Plan((job(2),)))
        await engine.ask("apiserver", submit(3))
        rows = await store.events(0, 10)

    assert [row.revision for row in rows] == [1, 3]
    assert [codec.decode_events(row.row)[1][0].job for row in rows] == ["1", "3"]


async def test_consequences_of_a_request_are_in_its_commit(store: GatedStore) -> None:
    async with running(store, assigning()) as engine:
        await engine.ask("apiserver", submit(1))

        assert [[key for key, _ in batch.puts] for batch in store.commits] == [
            ["job/1/spec", "job/1/cluster"]
        ]


async def test_a_key_is_decided_again_at_its_wake_time(store: GatedStore) -> None:
    looks: list[int] = []
    again = asyncio.Event()

    def look(view: View, key: str, now: Instant) -> Plan:
        looks.append(now.ms)
        if len(looks) > 1:
            again.set()
            return NO_CHANGE
        return wake_at(now.ms + 50)

    async with running(store, Reconciler("fake", "controllers", {}, look, lambda _: ["k"])):
        await again.wait()

    assert looks[1] - looks[0] >= 50


async def test_a_large_cluster_is_decided_without_waiting_in_between(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TICK_MS", 3_600_000)  # an engine that waited in between would be too late
    looks: list[str] = []
    last = str(3 * BATCH_KEYS_MAX)
    done = asyncio.Event()

    def look(view: View, key: str, now: Instant) -> Plan:
        looks.append(key)
        if key == last:
            done.set()
        return NO_CHANGE

    def start(view: View) -> list[str]:
        return [str(number) for number in range(3 * BATCH_KEYS_MAX + 1)]

    async with running(store, Reconciler("fake", "controllers", {}, look, start)):
        await done.wait()

    assert len(looks) == 3 * BATCH_KEYS_MAX + 1


async def test_an_observation_wakes_its_keys(store: GatedStore) -> None:
    looked = asyncio.Event()

    def look(view: View, key: str, now: Instant) -> Plan:
        assert (key, list(view.nodes)) == ("n1", ["n1"])
        looked.set()
        return NO_CHANGE

    async with running(store, Reconciler("fake", "controllers", {}, look, lambda _: ())) as engine:
        await turns()
        engine.observe(lambda mirror: mirror.mark_seen(NodeId("n1")), ("fake", "n1"))
        await looked.wait()

    assert store.commits == []


async def test_after_a_restart_everything_is_read_and_every_key_decided(tmp_path: Path) -> None:
    looks: list[str] = []

    def look(view: View, key: str, now: Instant) -> Plan:
        looks.append(key)
        return NO_CHANGE

    def start(view: View) -> list[str]:
        return list(view.jobs)

    first = SqliteStore(tmp_path)
    async with running(first) as engine:
        await engine.ask("apiserver", submit(1))
        before = (engine.epoch, engine.now_ms())
    await first.close()
    second = SqliteStore(tmp_path)
    async with running(second, Reconciler("fake", "controllers", {}, look, start)) as engine:
        seen = await engine.read(jobs)
        await turns()
        kept = (await second.read()).time_ms
        after = (engine.epoch, engine.now_ms())
        assert engine.revision == 1
    await second.close()

    assert (seen, looks) == (["1"], ["1"])
    assert after[0] == before[0] + 1
    assert after[1] >= kept


async def test_cluster_time_continues_from_the_last_commit(store: GatedStore) -> None:
    async with running(store) as engine:
        await engine.ask("apiserver", submit(1))
        first = store.commits[0].time_ms
        await engine.ask("apiserver", submit(2))
        second = store.commits[1].time_ms
    async with running(store) as engine:
        await engine.ask("apiserver", submit(3))

    assert 0 <= first <= second <= store.commits[2].time_ms < 60_000


async def refusal(engine: Engine, look: object) -> Exception | None:
    try:
        await engine.read(look)  # type: ignore[arg-type]
    except NotFound as refused:
        return refused
    return None


def assigning() -> Reconciler:
    """A reconciler that assigns every new job to a cluster."""

    def assign(view: View, key: str, now: Instant) -> Plan:
        return Plan((JobCluster(JobId(key), "default"),))

    return Reconciler("assign", "clusters", {JobSpec: own_id}, assign, lambda _: ())
