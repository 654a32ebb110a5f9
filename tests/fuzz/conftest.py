"""A cluster with a hostile tenant for each file."""

from collections.abc import Iterator

import pytest

from tests.fuzz.arena import Arena, Outcomes, open_arena


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with open_arena(tmp_path_factory.mktemp("fuzz") / "cluster") as opened:
        yield opened


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()
