"""A commit that was written and reported as failed: commit hooks are called as after a reload."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.engine import run
from rota.engine.run import Committed
from rota.model.errors import Unavailable
from rota.store.memory import MemoryStore
from tests.engine.driving import jobs, running, submit, turns
from tests.engine.lossy_store import LossyStore


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.0)


@pytest.fixture
async def lossy(tmp_path: Path) -> AsyncIterator[LossyStore]:
    store = LossyStore(MemoryStore(tmp_path))
    yield store
    await store.close()


async def test_commit_hooks_are_called_after_a_reload(lossy: LossyStore) -> None:
    published: list[Committed] = []
    async with running(lossy) as engine:
        engine.on_commit(published.append)
        lossy.answers_lost = 1
        with pytest.raises(Unavailable):
            await engine.ask("apiserver", submit(1))
        await turns()

        assert await engine.read(jobs) == ["1"]
        again, proof = published
        assert (again.revision, again.events, again.decided.commits) == (2, (), False)
        assert (proof.revision, proof.events, proof.decided.puts) == (2, (), {})


async def test_commits_after_a_reload_are_published_as_usual(lossy: LossyStore) -> None:
    published: list[Committed] = []
    async with running(lossy) as engine:
        engine.on_commit(published.append)
        lossy.answers_lost = 1
        with pytest.raises(Unavailable):
            await engine.ask("apiserver", submit(1))
        await engine.ask("apiserver", submit(2))

        assert [(commit.revision, commit.decided.commits) for commit in published] == [(2, False), (2, True)]


async def test_an_outdated_state_that_was_read_is_not_published(lossy: LossyStore) -> None:
    published: list[list[str]] = []
    async with running(lossy) as engine:
        old = await lossy.read()
        await engine.ask("apiserver", submit(1))
        engine.on_commit(lambda _: published.append(jobs(engine.mirror)))
        lossy.fail_commits.append(Unavailable("the store does not answer"))
        lossy.old_snapshots.append(old)
        with pytest.raises(Unavailable):
            await engine.ask("apiserver", submit(2))
        await turns(60)

        assert published == [["1"], ["1"]]
