"""The driver: an internal fault costs one command, one job or one commit hook, and the server continues."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from rota.engine import run
from rota.engine.loop import Loop, Request
from rota.engine.parking import FaultStage
from rota.engine.reconciler import Reconciler, own_id
from rota.engine.run import Committed, Engine
from rota.engine.state.mirror import Mirror
from rota.model.errors import Bug, Conflict, StoreFull, Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.job import JobIntent, JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.messages import DrainRequest
from rota.model.node import NodeLoad, NodeSpec
from rota.model.plan import NO_CHANGE, Instant, Plan
from rota.model.view import View
from rota.store import codec
from rota.store.ack_marker import AckMarker
from rota.testing.builders import hello
from rota.testing.records import job
from rota.testing.store_contract import batch, commit
from rota.watcher import node_messages
from tests.engine.driving import jobs, jobs_on_disk, running, submit, turns
from tests.engine.gated_store import GatedStore

TOO_LARGE = 2**70  # no integer of msgpack
AN_HOUR_MS = 3_600_000
NODE = NodeId("n")


def put(*records: JobSpec | JobIntent) -> Plan[str]:
    return Plan(records, answer="done")


async def test_a_record_that_cannot_be_encoded_refuses_that_command_only(store: GatedStore) -> None:
    async with running(store) as engine, asyncio.TaskGroup() as group:
        bad = group.create_task(refusal(engine, put(job(1, priority=TOO_LARGE))))
        good = group.create_task(engine.ask("apiserver", submit(2)))

        assert isinstance(await bad, Bug)
        assert await good == 2
        assert await engine.read(jobs) == await jobs_on_disk(store) == ["2"]
        assert engine.parking.counts == {FaultStage.ENCODE: 1}


async def test_a_record_that_cannot_be_applied_refuses_that_command_only(store: GatedStore) -> None:
    async with running(store) as engine, asyncio.TaskGroup() as group:
        await engine.ask("apiserver", submit(1))
        bad = group.create_task(refusal(engine, put(job(2), JobIntent(JobId("9")))))
        good = group.create_task(engine.ask("apiserver", submit(3)))

        assert isinstance(await bad, Bug)
        assert await good == 3
        assert await engine.read(jobs) == await jobs_on_disk(store) == ["1", "3"]
        assert engine.healthy


async def test_a_read_never_shows_half_a_plan(store: GatedStore) -> None:
    async with running(store) as engine, asyncio.TaskGroup() as group:
        store.was_read.clear()
        bad = group.create_task(refusal(engine, put(job(2), JobIntent(JobId("9")))))
        await store.was_read.wait()

        assert await engine.read(jobs) == []
        assert isinstance(await bad, Bug)


async def test_a_commit_hook_that_raises_stops_neither_the_others_nor_the_engine(store: GatedStore) -> None:
    commits: list[Committed] = []
    mended: list[Committed] = []
    is_broken = True

    def fail(committed: Committed) -> None:
        if is_broken:
            raise ZeroDivisionError
        mended.append(committed)

    async with running(store) as engine:
        engine.on_commit(fail)
        engine.on_commit(commits.append)
        await engine.ask("apiserver", submit(1))
        is_broken = False
        await engine.ask("apiserver", submit(2))

    assert [list(commit.decided.puts) for commit in commits if commit.decided.puts] == [
        ["job/1/spec"],
        ["job/2/spec"],
    ]
    assert not mended[0].decided.commits, "it hears first that everything was read again"
    assert engine.parking.counts.keys() == {FaultStage.TELL}
    assert engine.parking.all() == []


async def test_an_answer_callback_that_raises_does_not_keep_others_waiting(store: GatedStore) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    async with running(store) as engine:
        engine._loop.ask(Request("apiserver", submit(1), fail, fail))

        assert await engine.ask("apiserver", submit(2)) == 2
        assert engine.parking.counts == {FaultStage.TELL: 1}


async def test_an_unexpected_error_of_the_store_is_handled_as_a_failed_commit(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.01)
    async with running(store) as engine:
        store.fail_commits = [ZeroDivisionError()]
        bad = await refusal(engine, put(job(1)))

        assert isinstance(bad, Unavailable)
        assert await engine.ask("apiserver", submit(2)) == 2
        assert await engine.read(jobs) == ["2"]


async def test_a_bug_of_the_loop_itself_costs_no_request(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is served again after the reload."""
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.01)
    serve, calls = Loop._run_to_quiescence, iter(range(1000))

    def stumble_once(loop: Loop, batch: Any) -> None:
        if batch.outcomes and next(calls) == 0:
            raise ZeroDivisionError
        serve(loop, batch)

    monkeypatch.setattr(Loop, "_run_to_quiescence", stumble_once)
    async with running(store) as engine:
        assert await engine.ask("apiserver", submit(1)) == 1
        assert await jobs_on_disk(store) == ["1"]


async def test_a_drain_request_with_a_number_that_cannot_be_stored_fails_alone(
    store: GatedStore,
) -> None:
    async with running(store) as engine:
        await engine.ask("apiserver", lambda *_: Plan((NodeSpec(NODE, "n"),)))
        await engine.ask("watcher", lambda view, now: node_messages.on_hello(view, NODE, hello("n"), now))
        with pytest.raises(Bug):
            await engine.ask(
                "watcher",
                lambda view, now: node_messages.on_drain(
                    view, NODE, DrainRequest("over", TOO_LARGE, moves=True), now
                ),
            )

        assert await engine.ask("apiserver", submit(1)) == 1
        assert await engine.read(lambda mirror: mirror.nodes[NODE].is_draining) is False


async def test_a_job_that_cannot_be_loaded_is_set_aside_and_its_bytes_stay(store: GatedStore) -> None:
    bad = {"job/1/spec": b"\xc1", "job/1/status": codec.encode(JobStatus(JobId("1"), JobState.ACTIVE))}
    await commit(store, batch(await store.acquire_epoch(), puts={**bad, "job/2/spec": codec.encode(job(2))}))
    async with running(store) as engine:
        assert await engine.ask("apiserver", submit(3)) == 3
        assert isinstance(await refusal(engine, put(job(1))), Conflict)
        assert await engine.read(jobs) == ["2", "3"]

        (parked,) = engine.parking.all()
        assert (parked.key, parked.retry_at_ms) == ("job/1", None)
    records = (await store.read()).records
    assert {key: records[key] for key in bad} == bad


async def test_events_report_what_was_parked_and_that_it_recovered(store: GatedStore) -> None:
    events: list[str] = []
    is_broken = True

    def decide(view: View, key: str, now: Instant) -> Plan:
        if is_broken:
            raise ZeroDivisionError
        return NO_CHANGE

    def hear(committed: Committed) -> None:
        events.extend(f"{event.kind}: {event.why}" for event in committed.events if "engine" in event.kind)

    async with running(
        store, Reconciler("fake", "controllers", {JobSpec: own_id}, decide, lambda _: ())
    ) as engine:
        engine.on_commit(hear)
        await engine.ask("apiserver", submit(1))
        is_broken = False
        engine.observe(lambda _: None, ("fake", "1"))
        await engine.ask("apiserver", submit(2))

    assert events == [
        "engine.parked: fake failed on 1 (ZeroDivisionError): it is tried again after a pause",
        "engine.recovered: fake works on 1 again",
    ]


async def test_a_busy_server_prunes_events_and_checks_disk_space(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No iteration before the commit is idle."""
    monkeypatch.setattr(Engine, "_wait_for_work", _never)
    await commit(store, batch(await store.acquire_epoch(), time_ms=AN_HOUR_MS))
    store.fail_forgetting = [StoreFull("full")]
    engine = Engine(store, [])
    await engine.lead()
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(engine.ask("apiserver", submit(1)))
        await turns()
        store.has_free_space = False
        engine._disk_checked_at_ms = 0
        await engine._iterate()

        assert await asked == 1
    assert store.fail_forgetting == []
    assert engine.mirror.disk_low


async def _never(_: Engine) -> None:
    raise AssertionError("there is no idle turn")


def test_a_failed_write_of_the_ack_marker_undoes_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = AckMarker(tmp_path / "mark")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    mark.write(1, 2)
    mark.close()

    assert AckMarker(tmp_path / "mark").at_start == (0, 0)


def test_a_load_that_does_not_fit_is_not_inherited() -> None:
    mirror = Mirror()
    with pytest.raises(OverflowError):
        mirror.measure(NODE, NodeLoad(memory_free=TOO_LARGE))
    again = Mirror()
    again.mark_seen(NODE)
    again.inherit(mirror)

    assert again.nodes[NODE].load is None


async def refusal(engine: Engine, plan: Plan[object]) -> Exception | None:
    try:
        await engine.ask("apiserver", lambda *_: plan)
    except Exception as error:
        return error
    return None
