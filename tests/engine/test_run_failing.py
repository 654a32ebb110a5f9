"""The driver over a failing store: uncommitted state is never visible, and no caller waits forever."""

import asyncio

import pytest

from rota.engine import run
from rota.engine.run import Engine
from rota.model.errors import LostLeadership, RotaError, StaleState, StoreFull, Unavailable
from rota.store import codec
from rota.testing.records import job
from rota.testing.store_contract import batch, commit
from tests.engine.driving import PATIENCE_SECONDS, jobs, jobs_on_disk, running, submit, turns
from tests.engine.gated_store import GatedStore

AN_HOUR_MS = 3_600_000
WORLD = pytest.mark.parametrize(
    "error", [Unavailable("the disk does not answer"), StoreFull("full")], ids=["unavailable", "full"]
)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.02)


@WORLD
async def test_a_failed_commit_refuses_its_callers(store: GatedStore, error: RotaError) -> None:
    async with running(store) as engine:
        store.fail_commits = [error]
        with pytest.raises(type(error)):
            await engine.ask("apiserver", submit(1))

        assert await jobs_on_disk(store) == []


@WORLD
async def test_after_a_failed_commit_the_mirror_equals_the_disk(store: GatedStore, error: RotaError) -> None:
    async with running(store) as engine:
        await engine.ask("apiserver", submit(1))
        store.fail_commits = [error]
        with pytest.raises(type(error)):
            await engine.ask("apiserver", submit(2))
        await engine.ask("apiserver", submit(3))

        assert await engine.read(jobs) == await jobs_on_disk(store) == ["1", "3"]
        assert engine.revision == (await store.read()).revision == 2
        assert engine.healthy


async def test_a_read_never_shows_uncommitted_records(store: GatedStore) -> None:
    async with running(store) as engine:
        await engine.ask("apiserver", submit(1))
        store.fail_commits = [Unavailable("for a moment")]
        with pytest.raises(Unavailable):
            await engine.ask("apiserver", submit(2))

        assert await engine.read(jobs) == ["1"]


async def test_a_read_deferred_by_a_commit_is_answered_when_the_commit_fails(store: GatedStore) -> None:
    async with running(store) as engine, asyncio.TaskGroup() as group:
        store.gate.clear()
        store.fail_commits = [Unavailable("for a moment")]
        asked = group.create_task(refusal(engine, 1))
        await store.at_the_gate.wait()
        seen = group.create_task(engine.read(jobs))
        await turns()
        store.gate.set()

        assert isinstance(await asked, Unavailable)
        assert await seen == []


async def test_a_request_made_while_a_commit_fails_is_answered(store: GatedStore) -> None:
    async with running(store) as engine, asyncio.TaskGroup() as group:
        store.gate.clear()
        store.fail_commits = [Unavailable("for a moment")]
        first = group.create_task(refusal(engine, 1))
        await store.at_the_gate.wait()
        second = group.create_task(refusal(engine, 2))
        await turns()
        store.gate.set()
        answers = (await first, await second)

        assert isinstance(answers[0], Unavailable)
        assert isinstance(answers[1], Unavailable | None)
        assert await jobs_on_disk(store) == (["2"] if answers[1] is None else [])


async def test_a_request_made_before_the_reload_is_answered(store: GatedStore) -> None:
    async with running(store) as engine:
        store.fail_commits = [Unavailable("for a moment")]
        await refusal(engine, 1)
        second = await refusal(engine, 2)

        assert isinstance(second, Unavailable | None)
        assert await jobs_on_disk(store) == (["2"] if second is None else [])


async def test_reading_the_store_is_retried(store: GatedStore) -> None:
    async with running(store) as engine:
        store.fail_commits = [Unavailable("for a moment")]
        store.fail_reads = [Unavailable("for a moment more")]
        await refusal(engine, 1)
        store.was_read.clear()
        await store.was_read.wait()
        await turns()

        assert await engine.ask("apiserver", submit(2)) == 2


async def test_reads_are_refused_while_the_store_cannot_be_read(store: GatedStore) -> None:
    async with running(store) as engine:
        store.fail_commits = [Unavailable("for a moment")]
        store.fail_reads = [Unavailable("for a moment more")]
        await refusal(engine, 1)

        with pytest.raises(Unavailable):
            await engine.read(jobs)


async def test_an_engine_that_missed_a_commit_reloads_before_it_writes(store: GatedStore) -> None:
    async with running(store) as engine:
        await commit(store, batch(engine.epoch, puts={"job/9/spec": codec.encode(job(9))}))

        assert isinstance(await refusal(engine, 1), StaleState)
        store.was_read.clear()
        await store.was_read.wait()
        await turns()
        assert await engine.ask("apiserver", submit(1)) == 1
        assert await engine.read(jobs) == ["1", "9"]


async def test_cluster_time_never_goes_back(store: GatedStore) -> None:
    async with running(store) as engine:
        await asyncio.sleep(0.02)
        store.was_read.clear()
        store.fail_commits = [Unavailable("for a moment")]
        before = engine.now_ms()
        await refusal(engine, 1)
        await store.was_read.wait()
        await turns()

        assert engine.now_ms() >= before


async def test_a_failed_event_retention_does_no_harm(store: GatedStore) -> None:
    await commit(store, batch(await store.acquire_epoch(), time_ms=AN_HOUR_MS))
    store.fail_forgetting = [StoreFull("full")]
    async with running(store) as engine:
        await turns(100)

        assert store.fail_forgetting == []
        assert await engine.ask("apiserver", submit(1)) == 1


async def test_a_deposed_engine_ends_and_writes_nothing(store: GatedStore) -> None:
    engine = Engine(store, [])
    await engine.lead()
    await store.acquire_epoch()
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        driver = group.create_task(ended(engine))
        asked = group.create_task(refusal(engine, 1))

        assert isinstance(await driver, LostLeadership)
        assert isinstance(await asked, LostLeadership)
        assert isinstance(await refusal(engine, 2), LostLeadership)
    assert not engine.healthy
    assert await jobs_on_disk(store) == []


async def ended(engine: Engine) -> RotaError:
    try:
        await engine.run()
    except RotaError as error:
        return error
    raise AssertionError("it runs until something ends it")


async def refusal(engine: Engine, number: int) -> RotaError | None:
    """The error with which the submit of that job was refused, if it was."""
    try:
        await engine.ask("apiserver", submit(number))
    except RotaError as error:
        return error
    return None
