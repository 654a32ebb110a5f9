"""The pool of directories that are created ahead."""

import os
from pathlib import Path

import pytest

from rota.keeper import directory_pool as module
from rota.keeper.directory_pool import DirectoryPool
from rota.keeper.output.segments import SegmentStore
from tests.keeper.conftest import Agent, Keeper


def make(path: str) -> None:
    os.makedirs(f"{path}/inside")


@pytest.fixture
def pool(tmp_path: Path) -> DirectoryPool:
    return DirectoryPool(str(tmp_path / "spare"), str(tmp_path), make)


def test_a_spare_directory_is_moved_to_its_name(pool: DirectoryPool, tmp_path: Path) -> None:
    pool.refill()

    assert pool.allocate("wanted")
    assert (tmp_path / "wanted" / "inside").is_dir()


def test_an_empty_pool_allocates_nothing(
    pool: DirectoryPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    pool.refill()
    taken = [pool.allocate(str(number)) for number in range(3)]
    pool.refill()

    assert taken == [True, True, False]
    assert pool.allocate("2")


def test_an_existing_directory_is_not_replaced(
    pool: DirectoryPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    make(str(tmp_path / "old"))
    (tmp_path / "old" / "file").touch()
    pool.refill()

    assert not pool.allocate("old")
    assert (tmp_path / "old" / "file").exists()
    assert pool.allocate("new")


def test_an_empty_directory_is_not_replaced(pool: DirectoryPool, tmp_path: Path) -> None:
    """A running task may have it as its working directory: it would go on in one that is deleted."""
    (tmp_path / "old").mkdir()
    before = (tmp_path / "old").stat().st_ino
    pool.refill()

    assert not pool.allocate("old")
    assert (tmp_path / "old").stat().st_ino == before


def test_spares_of_an_earlier_keeper_are_not_used(pool: DirectoryPool, tmp_path: Path) -> None:
    (tmp_path / "spare" / "0").mkdir(parents=True)
    pool.refill()

    assert pool.allocate("wanted")
    assert (tmp_path / "wanted" / "inside").is_dir()


def test_a_pool_that_was_removed_is_filled_again(
    pool: DirectoryPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    pool.refill()
    os.rename(tmp_path / "spare", tmp_path / "elsewhere")

    assert not pool.allocate("wanted")
    pool.refill()
    assert pool.allocate("wanted")


def test_a_preallocated_log_directory_equals_a_new_one(tmp_path: Path) -> None:
    outputs = SegmentStore(str(tmp_path))
    outputs.preallocate()
    [segment] = outputs.allocate([("7", 0, 1)])
    outputs.release(("7", 0, 1), segment, outputs.measure(segment))
    outputs.flush()

    assert segment.number == 0
    lines = (tmp_path / "logs" / "7" / "index").read_text().splitlines()
    assert [line for line in lines if not line.startswith("T ")] == ["S 0 1 0 0 0", "E 0 1 0 0"]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "logs" / "7").iterdir()}
    assert modes == {0o600}


def test_a_job_starts_in_preallocated_directories(keeper: Keeper, agent: Agent) -> None:
    def ahead(kind: str) -> set[int]:
        return {path.stat().st_ino for path in (keeper.root / "spare" / kind).iterdir()}

    keeper.wait_preallocated()
    made = {kind: ahead(kind) for kind in ("logs", "work", "tasks")}
    agent.start("7", "sh", "-c", "pwd; ls; echo oh >&2")
    agent.wait_ended()

    assert keeper.output("7") == f"{keeper.root}/work/7\n"
    assert keeper.output("7", stream="err") == "oh\n"
    for kind, nodes in made.items():
        assert (keeper.root / kind / "7").stat().st_ino in nodes
