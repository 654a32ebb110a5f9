"""A cell: a pid namespace around one attempt. When its first process ends, so does everything in there. [I/O]

The first process reads from a pipe that only the keeper holds open: it ends when the keeper does, however
that dies. The work itself is a child of the keeper as any other.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator

LABEL = "pid-namespace"
CLONE_NEWPID = 0x20000000
# Who is orphaned in there comes to it: by ignoring this signal it has the kernel bury them, but for who
# had ended before it was up.
WAITS = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try:
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass
except ChildProcessError:
    pass
os.read(0, 1)
"""
_libc = ctypes.PyDLL(None, use_errno=True)


class NoWayBack(Exception):
    """All that this thread starts would be born in there: it must not go on."""


class Cell:
    """Its first process, by a handle: the number may be somebody else's later."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)
        self._namespace = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """What this thread starts now is born in there."""
        with _children_elsewhere():
            _join(self._namespace)
            yield

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def is_empty(self) -> bool:
        """Nobody is left: its first process ends after all others."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        os.close(self._handle)
        os.close(self._namespace)


class Cells:
    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._ends = os.pipe2(os.O_CLOEXEC)  # the writing end is the keeper's alone
        self.label = LABEL if _can_make() else None  # None: this machine lets the keeper make none

    def make(self) -> Cell:
        with _children_elsewhere():
            _leave()
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", WAITS],
                {"ROTA_KEEPER": self._mark} | _libraries(),
                file_actions=[(os.POSIX_SPAWN_DUP2, self._ends[0], 0)],
                setsid=True,
            )
        try:
            return Cell(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise


@contextlib.contextmanager
def _children_elsewhere() -> Iterator[None]:
    """Where this thread's children are born is changed within, and back behind it."""
    own = os.open("/proc/thread-self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            _join(own)
        except OSError as error:
            raise NoWayBack(str(error)) from error
        finally:
            os.close(own)


def _leave() -> None:
    if _libc.unshare(CLONE_NEWPID):
        _fail("unshare(pid)")


def _join(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWPID):
        _fail("setns(pid)")


def _fail(what: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")


def _can_make() -> bool:
    """Tried by a thread that does nothing else: one that could not go back would be lost."""
    done: list[bool] = []

    def try_it() -> None:
        with contextlib.suppress(OSError, NoWayBack), _children_elsewhere():
            _leave()
            done.append(True)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    return bool(done)


def _libraries() -> dict[str, str]:
    """Where the interpreter finds its own, if that was said."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
