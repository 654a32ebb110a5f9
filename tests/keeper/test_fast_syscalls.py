"""System calls that keep the GIL return the same as Python's own."""

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from rota.keeper.process import fast_syscalls


def test_write_returns_its_length_or_raises(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        assert fast_syscalls.write(file.fileno(), b"four") == 4
    assert (tmp_path / "file").read_bytes() == b"four"

    with (
        open("/dev/full", "wb", buffering=0) as full,
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
    ):
        fast_syscalls.write(full.fileno(), b"more")


def test_stat_returns_size_and_links(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"." * 70_001)
    with open(path, "rb") as file:
        assert fast_syscalls.stat(file.fileno()) == fast_syscalls.Stat(70_001, 1)
        os.link(path, tmp_path / "other")
        assert fast_syscalls.stat(file.fileno()).links == 2
        path.unlink()
        (tmp_path / "other").unlink()
        assert fast_syscalls.stat(file.fileno()) == fast_syscalls.Stat(70_001, 0)

    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        fast_syscalls.stat(-1)


def test_a_read_lease_is_granted_only_without_writers(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with open(path, "rb") as reader:
        with open(path, "ab"):
            assert not fast_syscalls.take_read_lease(reader.fileno())
        if not fast_syscalls.take_read_lease(reader.fileno()):
            return  # a file system without leases
        fast_syscalls.release_lease(reader.fileno())
        with open(path, "ab") as writer:
            writer.write(b"nobody was held up")


def test_reap_returns_status_cpu_time_and_memory() -> None:
    child = subprocess.Popen(["python3", "-c", "x = bytearray(50 << 20); exit(7)"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    buried = fast_syscalls.reap(child.pid)

    assert os.waitstatus_to_exitcode(buried.status) == 7
    assert buried.cpu_us > 0
    assert buried.peak_kib > 50 << 10
    child.returncode = 7  # reaped by the test itself


def test_a_killed_child_is_reaped_once_with_its_signal() -> None:
    child = subprocess.Popen(["sleep", "600"])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert os.waitstatus_to_exitcode(fast_syscalls.reap(child.pid).status) == -signal.SIGKILL
    with pytest.raises(ChildProcessError):
        fast_syscalls.reap(child.pid)
    child.returncode = -signal.SIGKILL
