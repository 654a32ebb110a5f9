"""A node hears of what was placed by a commit that was said to have failed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.engine import run
from rota.model.errors import Unavailable
from rota.store.memory import MemoryStore
from rota.testing.builders import hello
from tests.engine.driving import turns
from tests.engine.lossy_store import LossyStore
from tests.watcher.test_agent_service import Line, calling, put


@pytest.fixture
async def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LossyStore]:
    monkeypatch.setattr(run, "_BACKOFF_SECONDS", 0.0)
    store = LossyStore(MemoryStore(tmp_path))
    yield store
    await store.close()


async def test_a_node_is_told_what_was_written_though_nobody_heard_so(deaf: LossyStore) -> None:
    line = Line(hello("a"))
    async with calling(deaf, line) as (engine, call, placement):
        call()
        await turns()
        deaf.answers_lost = 1
        with pytest.raises(Unavailable):
            await put(engine, placement)
        await turns()

        assert line.welcomed
        assert line.starts == [(0, 1)]
