"""Orders are sent for a placement whose commit seemed to have failed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.engine import run
from rota.model.errors import Unavailable
from rota.store.memory import MemoryStore
from rota.testing.builders import hello
from tests.engine.driving import turns
from tests.engine.lossy_store import LossyStore
from tests.watcher.test_agent_service import FakeNode, calling, put


@pytest.fixture
async def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LossyStore]:
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.0)
    store = LossyStore(MemoryStore(tmp_path))
    yield store
    await store.close()


async def test_orders_are_sent_for_a_commit_whose_answer_was_lost(deaf: LossyStore) -> None:
    node = FakeNode(hello("a"))
    async with calling(deaf, node) as (engine, call, placement):
        call()
        await turns()
        deaf.answers_lost = 1
        with pytest.raises(Unavailable):
            await put(engine, placement)
        await turns()

        assert node.welcomed
        assert node.starts == [(0, 1)]
