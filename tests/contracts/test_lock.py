"""DirectoryLock: one process per directory, until it releases the lock or dies."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rota.store.lock import AlreadyRunning, DirectoryLock
from tests.contracts.processes import environment

HOLD = """
import pathlib, sys
from rota.store.lock import DirectoryLock
lock = DirectoryLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_fails_and_names_the_first(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    second = subprocess.run(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lock.release()

    assert second.returncode != 0
    assert second.stdout == ""
    assert f"{tmp_path} is in use by process {os.getpid()}" in second.stderr


def test_the_lock_is_released_when_its_process_ends(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(AlreadyRunning, match=f"process {process.pid}$"):
            DirectoryLock(tmp_path)
        process.kill()
        process.wait()

        DirectoryLock(tmp_path).release()


def test_the_lock_can_be_acquired_again_after_a_release(tmp_path: Path) -> None:
    DirectoryLock(tmp_path).release()
    with holder(tmp_path) as process, pytest.raises(AlreadyRunning, match=f"process {process.pid}$"):
        DirectoryLock(tmp_path)


def test_a_child_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    started = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", started], close_fds=False, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        lock.release()
        try:
            DirectoryLock(tmp_path).release()
        finally:
            child.kill()


def test_two_names_are_two_locks(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path, "agent.lock")

    with pytest.raises(AlreadyRunning):
        DirectoryLock(tmp_path, "agent.lock")
    first.release()
    second.release()


def test_a_new_directory_and_its_lock_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    DirectoryLock(directory).release()

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "lock").stat().st_mode) == 0o600


@contextmanager
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the directory."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
