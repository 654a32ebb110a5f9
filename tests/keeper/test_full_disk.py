"""A full disk under a keeper: attempts go on, and nothing new starts until there is free space."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.machine import needs

DISK_BYTES = 16 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def cramped(small_disk: Path) -> Iterator[Keeper]:
    keeper = Keeper(small_disk)
    try:
        yield keeper
    finally:
        keeper.close()


def fill(path: Path) -> None:
    """Fill the disk up to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@needs("root")
def test_on_a_full_disk_running_attempts_go_on_and_results_are_journaled(cramped: Keeper) -> None:
    agent = cramped.agent()
    agent.hello()
    cramped.wait_preallocated()
    flag = cramped.root / "flag"
    script = f"while [ ! -e {flag} ]; do sleep 0.05; done; exit 7"
    agent.start("7", "sh", "-c", script, tasks=[[index, 1, 1] for index in range(3)])
    agent.wait_started(3)
    fill(cramped.root / "ballast")
    assert str(agent.wait_shortages()[0]).startswith("its disk is full")
    agent.start("8", "true")
    assert "No space left" in agent.wait_refused()[0][3]
    os.link(cramped.root / "ballast", flag)  # needs no space
    rows = agent.wait_ended(3)
    cramped.kill()  # the journal survives it

    assert [row[3:5] for row in rows] == [["exited", 7]] * 3
    (cramped.root / "ballast").unlink()
    flag.unlink()
    cramped.start()
    state = cramped.agent().hello()
    assert sorted(row[1] for row in state["ended"]) == [0, 1, 2]


@needs("root")
def test_with_free_disk_space_attempts_are_accepted_again(cramped: Keeper) -> None:
    agent = cramped.agent()
    agent.hello()
    cramped.wait_preallocated()
    fill(cramped.root / "ballast")
    agent.wait_shortages()
    (cramped.root / "ballast").unlink()
    assert agent.wait_shortages(2)[1] is None
    agent.start("8", "true")

    assert agent.wait_ended()[0][3:5] == ["exited", 0]


def test_a_journal_that_cannot_be_written_is_reported_and_recovers(keeper: Keeper, agent: Agent) -> None:
    """A limit on the file size replaces a full disk for users that cannot mount one."""
    agent.start("7", "sleep", "600")
    agent.wait_started()
    limit(keeper, (keeper.root / "journal").stat().st_size)
    agent.start("8", "true")
    assert agent.wait_refused()[0][:3] == ["8", 0, 1]
    agent.wait_shortages()
    limit(keeper, None)
    shortage, over = agent.wait_shortages(2)
    agent.start("8", "true", tasks=[[0, 2, 1]])
    agent.wait_ended()

    assert str(shortage).startswith("cannot write its journal")
    assert over is None
    assert [row[:4] for row in agent.ended] == [["8", 0, 2, "exited"]]
    wait_until(lambda: bool(keeper.work()), "the work that went on")


def limit(keeper: Keeper, size: int | None) -> None:
    limit = "unlimited" if size is None else str(size)
    subprocess.run(["prlimit", f"--fsize={limit}:", "--pid", str(keeper.process.pid)], check=True)
