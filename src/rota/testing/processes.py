"""Processes of this machine: found in /proc, killed by pid, awaited with a deadline. [I/O]"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

_POLL_SECONDS = 0.02
_KILL_SECONDS = 60.0
_EXECUTE_SECONDS = 5.0  # for a process to execute its program on a busy machine


def until(condition: Callable[[], Found], what: str, seconds: float = 60.0) -> Found:
    """Poll a condition that cannot be awaited; return its first true result or raise TimeoutError."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:g} s still not: {what} (last answer: {found!r:.500})")
        time.sleep(_POLL_SECONDS)
    return found


def with_argument(text: str) -> list[int]:
    """Live processes whose command line contains the text."""
    return [pid for pid in _pids() if text.encode() in _read(pid, "cmdline")]


def with_variable(name: str, value: str) -> list[int]:
    """Live processes with this environment variable."""
    variable = f"\0{name}={value}\0".encode()
    return [pid for pid in _pids() if variable in b"\0" + _read(pid, "environ") + b"\0"]


def zombies_of(parent: int) -> list[int]:
    stats = {pid: _read(pid, "stat").rpartition(b")")[2].split() for pid in _pids()}
    return [pid for pid, stat in stats.items() if stat[:2] == [b"Z", str(parent).encode()]]


def resident_bytes(pid: int) -> int:
    lines = _read(pid, "status").decode().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def cpu_seconds(pid: int) -> float:
    """CPU time of a process since its start."""
    in_user, in_kernel = _read(pid, "stat").rpartition(b")")[2].split()[11:13]
    return (int(in_user) + int(in_kernel)) / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    return _read(pid, "stat").rpartition(b")")[2].split()[:1] == [b"T"]


def open_sockets(pid: int) -> int:
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += os.readlink(entry).startswith("socket:")
    return found


def kill_all(find: Callable[[], list[int]]) -> None:
    """Kill every process that `find` returns, until there is none, and wait until each has exited.

    A command line reads as empty while a process executes a program, and as soon as it starts to exit. So a
    process that `find` no longer returns may still run threads, and one that was just started may not be
    returned yet: either would go on writing to a directory that the caller removes next.
    """
    handles: list[int] = []
    since = time.clock_gettime(time.CLOCK_BOOTTIME) - _EXECUTE_SECONDS

    def none_is_left() -> bool:
        for pid in find():
            try:
                # A handle instead of the pid: it stays with the process, so that its exit
                # can be awaited after the kill.
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            handles.append(handle)
            # Race: the pid may be reused. The handle is opened before the search is repeated.
            with contextlib.suppress(ProcessLookupError):
                if pid in find():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        return not _executing(since) and not find()

    try:
        until(none_is_left, "every process killed", _KILL_SECONDS)
        until(lambda: all(map(_has_exited, handles)), "every killed process exited", _KILL_SECONDS)
    finally:
        for handle in handles:
            os.close(handle)


def _has_exited(handle: int) -> bool:
    return bool(select.select([handle], [], [], 0)[0])


def _executing(since: float) -> list[int]:
    """Processes younger than `since` that have no command line and are neither zombies nor kernel threads."""
    young = [pid for pid in _pids() if not _read(pid, "cmdline") and _started_at(pid) >= since]
    return [pid for pid in young if _has_program(pid)]


def _started_at(pid: int) -> float:
    """Seconds since boot; 0 for a process that has exited meanwhile."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _has_program(pid: int) -> bool:
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return b""
