"""The driver and its store: readiness, disk space, and a higher epoch on request."""

import asyncio

import pytest

from rota.engine import run
from rota.model.errors import StoreFull, Unavailable
from rota.model.plan import Plan
from tests.engine.driving import jobs_on_disk, running, submit
from tests.engine.gated_store import GatedStore


async def test_an_engine_that_leads_and_commits_is_ready(store: GatedStore) -> None:
    async with running(store) as engine:
        await engine.check()

        assert store.commits  # nothing was committed before: it tried
        assert engine.commit_stats.median_ms is not None


async def test_a_store_that_hangs_is_not_ready(store: GatedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_PROBE_SECONDS", 0.05)
    async with running(store) as engine:
        store.gate.clear()
        with pytest.raises(Unavailable, match="does not answer"):
            await engine.check()
        store.gate.set()
        await engine.ask("apiserver", submit(1))

        await engine.check()


async def test_a_store_that_fails_is_not_ready_and_says_why(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.02)
    async with running(store) as engine:
        store.fail_commits = [Unavailable("the disk is gone")]
        store.fail_reads = [Unavailable("the disk is gone")]
        with pytest.raises(Unavailable):
            await engine.ask("apiserver", submit(1))
        with pytest.raises(Unavailable, match="the disk is gone"):
            await engine.check()
        store.was_read.clear()
        await store.was_read.wait()
        await engine.ask("apiserver", submit(2))

        await engine.check()
        assert engine.commit_stats.problem is None


async def test_the_epoch_is_raised_between_two_commits(store: GatedStore) -> None:
    async with running(store) as engine:
        await engine.ask("apiserver", submit(1))
        async with asyncio.TaskGroup() as group:
            rising = group.create_task(engine.raise_epoch(above=40))
            group.create_task(engine.ask("apiserver", submit(2)))
        await engine.ask("apiserver", submit(3))

        assert rising.result() == engine.epoch > 40
        assert await engine.raise_epoch(above=3) == engine.epoch
        assert await jobs_on_disk(store) == ["1", "2", "3"]
        assert (await store.read()).epoch == engine.epoch


async def test_a_refusal_for_a_full_store_is_no_bug(store: GatedStore) -> None:
    def refuse(_view: object, _now: object) -> Plan:
        raise StoreFull("no space left")

    async with running(store) as engine:
        with pytest.raises(StoreFull, match="no space left"):
            await engine.ask("apiserver", refuse)


@pytest.mark.slow
async def test_low_disk_space_is_noticed_and_so_is_its_recovery(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_DISK_CHECK_MS", 0)
    store.has_free_space = False
    async with running(store) as engine:
        short_at_first = engine.mirror.disk_low
        store.has_free_space = True
        await engine.ask("apiserver", submit(1))
        await store.space_checked()

        assert short_at_first
        assert not await engine.read(lambda mirror: mirror.disk_low)
