"""Processes of this keeper, found by the marker in their environment, and signals to exactly those."""

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rota.keeper.resources.reservations import AttemptKey

PR_SET_CHILD_SUBREAPER = 36
BUSY = ("R", "D")
CHECK = b"\0ROTA_CHECK=1\0"
_EXEC_SECONDS = 1.0  # that an exec may take on a busy machine


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A living process with this keeper's marker."""

    pid: int
    group: int
    key: AttemptKey | None
    is_busy: bool = False  # it is running or in uninterruptible sleep


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A living direct child of the keeper; the start time distinguishes it from a later one with its pid."""

    pid: int
    session: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int


def adopt_orphans() -> None:
    """Become a subreaper: orphans of attempts become children of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(child subreaper)")


def find_marked(mark: str, timeout_seconds: float = math.inf) -> list[MarkedProcess]:
    """Scan all processes of the machine. Zombies have no environment and so are not found.

    TimeoutError if it takes too long: reading the environment waits for a lock that a forking process holds.
    """
    found = []
    keys: dict[bytes, AttemptKey | None] = {}  # equal environments are parsed once
    give_up_at = time.monotonic() + timeout_seconds
    for pid in _pids():
        # Checked for each process, because a single forking tree can hold up the scan as a whole.
        if time.monotonic() > give_up_at:
            raise TimeoutError
        environ = _environ(pid)
        if not _has_marker(environ, mark):
            continue
        if environ not in keys:
            keys[environ] = _key(environ)
        # After the environment was read: a process that is a zombie by now has nothing to be killed.
        stat = _stat(pid)
        if stat and stat.state != "Z":
            found.append(MarkedProcess(pid, stat.group, keys[environ], stat.state in BUSY))
    return found


def with_groups(pids: Iterable[int]) -> list[tuple[int, int]]:
    """Those of the pids that are alive, each with its process group."""
    stats = ((pid, _stat(pid)) for pid in pids)
    return [(pid, stat.group) for pid, stat in stats if stat and stat.state != "Z"]


def belongs_to(pid: int, key: AttemptKey, mark: str) -> bool:
    return attempt_key(pid, mark) == key


def find_children() -> list[ChildProcess]:
    own = os.getpid()
    children = []
    for pid in _pids():
        stat = _stat(pid)
        if stat and stat.parent == own and stat.state != "Z":
            children.append(ChildProcess(pid, stat.session, stat.start_ticks))
    return children


def find_users() -> set[int]:
    """The real, effective, saved and file system users of all processes of the machine, zombies included."""
    found: set[int] = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            status = _read_proc(pid, "status")
            start = status.index(b"\nUid:") + 5
            found.update(map(int, status[start : status.index(b"\n", start)].split()))
    return found


def attempt_key(pid: int, mark: str) -> AttemptKey | None:
    environ = _environ(pid)
    return _key(environ) if _has_marker(environ, mark) else None


def is_check(pid: int, mark: str) -> bool:
    """Whether the process belongs to a health check."""
    environ = _environ(pid)
    return CHECK in environ and _has_marker(environ, mark)


def find_checks(mark: str, key: AttemptKey) -> list[int]:
    """The pids of processes of health checks of this attempt."""
    marked = (process for process in find_marked(mark) if process.key == key)
    return [process.pid for process in marked if is_check(process.pid, mark)]


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or a debugger."""
    stat = _stat(pid)
    return stat is not None and stat.state in ("T", "t")


def has_members(group: int) -> bool:
    """Whether a group whose leader was reaped has members. Signal 0: harmless if the number is reused."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
    return True


def signal_marked(pid: int, mark: str, signum: int) -> None:
    _signal(pid, signum, lambda: _has_marker(_environ(pid), mark))


def signal_child(child: ChildProcess, signum: int) -> None:
    def still_ours() -> bool:
        stat = _stat(child.pid)
        return stat is not None and stat.parent == os.getpid() and stat.start_ticks == child.start_ticks

    _signal(child.pid, signum, still_ours)


def find_with(name: str, value: str) -> list[int]:
    """The pids of living processes with this variable in their environment."""
    pair = f"\0{name}={value}\0".encode()
    return [pid for pid in _pids() if pair in _environ(pid)]


def signal_with(pid: int, name: str, value: str, signum: int) -> None:
    pair = f"\0{name}={value}\0".encode()
    _signal(pid, signum, lambda: pair in _environ(pid))


def kill_all_marked(mark: str, timeout_seconds: float) -> list[AttemptKey]:
    """Kill marked processes until none is left; return the attempts of those that did not die in time."""
    give_up_at = time.monotonic() + timeout_seconds
    wait_seconds = 0.005
    while left := find_marked(mark):
        # Again and again until none is found: a process may fork between the scan and its signal.
        for process in left:
            signal_marked(process.pid, mark, signal.SIGKILL)
        if time.monotonic() > give_up_at:
            return [process.key for process in left if process.key]
        time.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, 0.5)
    return []


def open_handle(pid: int) -> int | None:
    """Open a pidfd; None: the process has ended."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _signal(pid: int, signum: int, is_ours: Callable[[], bool]) -> None:
    """Signal a process if it is ours. Race: the pidfd is opened before the check, so that a reused pid is
    never signalled."""
    handle = open_handle(pid)
    if handle is None:
        return
    try:
        if is_ours():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(handle, signum)
    finally:
        os.close(handle)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _environ(pid: int) -> bytes:
    try:
        environ = _read_proc(pid, "environ")
        # Race: empty during an exec. Taken as unmarked, a process of an attempt would survive it.
        if not environ:
            _await_exec(pid)
            environ = _read_proc(pid, "environ")
    except OSError:  # ended, or another user's
        return b""
    return b"\0" + environ + b"\0"


def _await_exec(pid: int) -> None:
    """Wait for the end of an exec. Race: a process has no environment for a moment after its spawn."""
    os.readlink(f"/proc/{pid}/exe")  # raises for a zombie and for a kernel thread
    give_up_at = time.monotonic() + _EXEC_SECONDS
    while not _read_proc(pid, "cmdline") and time.monotonic() < give_up_at:
        time.sleep(0.001)


def _read_proc(pid: int, what: str) -> bytes:
    with open(f"/proc/{pid}/{what}", "rb", buffering=0) as file:
        return file.readall()


def _has_marker(environ: bytes, mark: str) -> bool:
    return f"\0ROTA_KEEPER={mark}\0".encode() in environ


def _key(environ: bytes) -> AttemptKey | None:
    pairs = (part.partition(b"=") for part in environ.split(b"\0") if part.startswith(b"ROTA_"))
    values = {name: os.fsdecode(value) for name, _, value in pairs}
    try:
        return values[b"ROTA_JOB_ID"], int(values[b"ROTA_INDEX"]), int(values[b"ROTA_ATTEMPT"])
    except (KeyError, ValueError):
        return None


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.readall()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the name before it may contain spaces and brackets
    if len(fields) < 20:
        return None
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))
