"""Each test of the driver runs over both embedded stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.store.memory import MemoryStore
from rota.store.sqlite import SqliteStore
from tests.engine.gated_store import GatedStore


@pytest.fixture(params=[MemoryStore, SqliteStore], ids=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GatedStore]:
    gated = GatedStore(request.param(tmp_path))
    yield gated
    await gated.close()
