"""A standby applies commits, decides nothing, and leads without reading everything again."""

import asyncio
from pathlib import Path

import pytest

from rota.engine.reconciler import Reconciler, own_id
from rota.engine.run import Committed, Engine
from rota.model.errors import Damaged, Unavailable
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.node import NodeSpec
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View
from rota.store import codec
from rota.store.memory import MemoryStore
from rota.store.protocol import CommitChange, Snapshot
from rota.testing.records import job, node
from tests.engine.driving import PATIENCE_SECONDS, jobs, submit

ROW = codec.encode_events(77, (EventRecord("job.submitted", "asked for", job=JobId("1")),))


class OneRead(MemoryStore):
    """A store that counts full reads."""

    reads = 0

    async def read(self) -> Snapshot:
        self.reads += 1
        return await super().read()


@pytest.fixture
async def engine(tmp_path: Path) -> Engine:
    reconciler = Reconciler("assign", "clusters", {JobSpec: own_id}, assign, lambda view: list(view.jobs))
    made = Engine(OneRead(tmp_path), [reconciler])
    await made.follow(Snapshot(0, 3, 1000, {}))
    return made


def assign(view: View, key: str, now: Instant) -> Plan:
    del now
    entry = view.jobs[JobId(key)]
    return Plan((JobCluster(JobId(key), "default"),)) if entry.cluster is None else Plan()


def change(
    revision: int, *records: JobSpec | JobStatus | NodeSpec, events: bytes | None = None
) -> CommitChange:
    return CommitChange(
        revision, 2000, [(record.key, codec.encode(record)) for record in records], [], events
    )


async def test_a_standby_applies_commits_and_runs_commit_hooks(engine: Engine) -> None:
    commits: list[Committed] = []
    engine.on_commit(commits.append)
    engine.replay(change(1, job(1), events=ROW))
    engine.replay(CommitChange(2, 2000, [], ["job/1/spec"], None))

    assert (await engine.read(jobs), engine.revision) == ([], 2)
    assert [(commit.revision, [event.kind for event in commit.events]) for commit in commits] == [
        (1, ["job.submitted"]),
        (2, []),
    ]
    assert (commits[0].wall_ms, list(commits[1].decided.deletes)) == (77, ["job/1/spec"])
    assert engine.now_ms() >= 2000


async def test_a_standby_decides_nothing(engine: Engine) -> None:
    engine.replay(change(1, job(1)))

    with pytest.raises(Unavailable, match="stands by"):
        await engine.ask("apiserver", submit(2))
    with pytest.raises(Unavailable, match="stands by"):
        await engine.check()


async def test_a_record_of_a_newer_leader_is_set_aside_and_the_others_are_applied(engine: Engine) -> None:
    newer = ("telepathy/1", b"")
    engine.replay(CommitChange(1, 2000, [newer, ("job/1/spec", codec.encode(job(1)))], [], None))
    engine.replay(CommitChange(2, 2000, [newer], [], None))

    assert (await engine.read(jobs), engine.revision) == (["1"], 2)
    assert [parked.key for parked in engine.parking.all()] == ["telepathy/1"]


async def test_a_standby_sets_aside_a_job_whose_next_record_it_cannot_read(engine: Engine) -> None:
    engine.replay(change(1, job(1), job(2)))
    engine.replay(CommitChange(2, 2000, [("job/1/wish", b"\xc1")], [], None))
    engine.replay(change(3, JobStatus(JobId("1"), JobState.ACTIVE), job(3)))

    assert await engine.read(jobs) == ["2", "3"]
    assert engine.mirror.unloadable == {"1"}
    assert [parked.key for parked in engine.parking.all()] == ["job/1"]


async def test_a_standby_sets_aside_a_job_whose_commit_cannot_be_applied(engine: Engine) -> None:
    """After Damaged the follower reads everything again, and then all other records are there."""
    orphan = change(1, JobStatus(JobId("1"), JobState.ACTIVE))
    with pytest.raises(Damaged, match="commit 1 could not be applied"):
        engine.replay(orphan)
    records = {str(record.key): codec.encode(record) for record in (job(1), job(2))}
    await engine.follow(Snapshot(1, 1, 2000, records))

    assert await engine.read(jobs) == ["2"]
    assert [parked.key for parked in engine.parking.all()] == ["job/1"]


async def test_records_set_aside_by_a_standby_are_read_again_when_it_leads(engine: Engine) -> None:
    async def caught_up() -> bool:
        return True

    store = engine.store
    assert isinstance(store, OneRead)
    engine.replay(CommitChange(1, 2000, [("job/1/wish", b"\xc1")], [], None))
    await engine.lead(caught_up)

    assert store.reads == 1
    assert engine.parking.all() == []


@pytest.mark.parametrize("is_all", [True, False])
async def test_a_new_leader_reloads_only_if_it_missed_a_commit(engine: Engine, is_all: bool) -> None:
    async def caught_up() -> bool:
        return is_all

    store = engine.store
    assert isinstance(store, OneRead)
    await engine.lead(caught_up)

    assert store.reads == (0 if is_all else 1)
    assert engine.healthy


async def test_a_new_leader_wakes_every_key_and_restarts_liveness_clocks(
    engine: Engine,
) -> None:
    async def caught_up() -> bool:
        return True

    store = engine.store
    spec = NodeSpec(node("n1").id, "one")
    first = change(1, job(1), spec)
    engine.replay(first)
    entry = engine.mirror.nodes[spec.id]
    entry.last_seen_at_ms = 0
    await store.load_snapshot(Snapshot(1, 0, 2000, dict(first.puts)), [])
    await engine.lead(caught_up)
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(engine.run())
        await engine.ask("apiserver", submit(2))
        driving.cancel()

    assert entry.last_seen_at_ms >= 2000
    assert all(one.cluster is not None for one in engine.mirror.jobs.values())
