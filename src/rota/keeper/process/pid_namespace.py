"""A cell: a pid namespace around one attempt, and a /proc that shows no other processes. [I/O]

The work in a cell sees its own processes and the first one, and can signal no others. When the first process
ends, so does everything in there. The work itself is a child of the keeper as any other: the thread that
starts it enters the pid namespace for that moment, and the starter enters the mount namespace.

There are two kinds. A cell of work under a lease is *bound*: its first process reads from a pipe that only
the keeper holds open, and ends when the keeper does, however that dies. The cell of other work outlives the
keeper for as long as there is work in it; the next keeper ends it.

To make a cell takes as long as to start `/bin/true`; to enter one that is there takes a hundredth of that.
So cells that are not bound are kept for other attempts once they are empty, as plain control groups are. An
empty cell remembers nothing of the work before: the work is never root, and so has mounted nothing there.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from rota.keeper.process import fast_syscalls, machine_code, trees
from rota.keeper.process.starter import STATUS, STATUS_FD

LABEL = "pid-namespace"
MOUNTS = "/proc/self/mountinfo"
MARK = "ROTA_CELL"  # in the environment of first processes: not that of work, which is found by another name
CLONE_NEWPID = 0x20000000
CLONE_NEWNS = 0x20000
CLONE_FS = 0x200
SPARE_MOST = 64  # cells that are kept: as many as are started and ended within a moment
LEAST = 4  # that are there from the beginning
# What init_x86_64.s assembles to.
CODE = {
    "x86_64": bytes.fromhex(
        "4c8b642410bf11000000488d35f700000031d241ba08000000b80d0000000f054885c0786e488d3d0c010000b8500000"
        "000f054885c0785b31c041803c246d7552bf00000200b8100100000f054885c0784131ff488d35dd00000031d241ba00"
        "4008004531c0b8a50000000f054885c07821488d3dc2000000488d35ba0000004889fa41ba0e0000004531c0b8a50000"
        "000f05f7d850bf040000004889e6ba08000000b8010000000f05bf04000000b8030000000f05833c2400753d31ff4889"
        "e6ba0100000031c00f0541807c240162742748c7c7ffffffff31f6b83e0000000f0583f8fd7412488d3d3a00000031f6"
        "b8230000000f05ebd931ffb8e70000000f05660f1f440000010000000000000000000000000000000000000000000000"
        "0000000000000000010000000000000000000000000000002f002f70726f6300"
    )
}
# The same where there is no such code: an interpreter for each cell.
SCRIPT = """
import ctypes, os, signal, struct, sys, time
libc, word, code = ctypes.CDLL(None, use_errno=True), sys.argv[1], 0
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.chdir("/")
if word[0] == "m":
    if (
        libc.unshare(0x20000)
        or libc.mount(None, b"/", None, ctypes.c_ulong(0x84000), None)
        or libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(14), None)
    ):
        code = ctypes.get_errno()
os.write(4, struct.pack("ii", code, 0))
os.close(4)
if not code:
    os.read(0, 1)
    while word[1] != "b":
        try:
            os.kill(-1, 0)
        except ProcessLookupError:
            break
        time.sleep(1)
"""
_libc = ctypes.PyDLL(None, use_errno=True)


class CannotLeaveNamespace(BaseException):
    """All that this thread starts would be born in there: it must not go on, whatever catches its errors."""


class PidNamespace:
    """Its first process, by a handle, which stands for its namespaces, too: a number may be reused."""

    def __init__(self, pid: int, own_fd: int, *, has_mounts: bool, is_bound: bool) -> None:
        self.pid = pid
        self.is_bound = is_bound
        self.is_killed = False
        self._handle = os.pidfd_open(pid)
        self._own_fd = own_fd
        self._has_mounts = has_mounts
        # A check may be started while its attempt ends: it must not enter by a descriptor that was reused.
        self._lock = threading.Lock()

    @property
    def mounts_fd(self) -> int | None:
        """What stands for its mount namespace; None: it has none of its own."""
        return self._handle if self._has_mounts else None

    def __enter__(self) -> None:
        """What this thread starts now is born in there."""
        self._lock.acquire()
        try:
            if self._handle < 0:
                raise ProcessLookupError(errno.ESRCH, "the cell is gone")
            _join(self._handle)
        except BaseException:
            self._lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _return_to(self._own_fd)
        finally:
            self._lock.release()

    def kill(self) -> None:
        self.is_killed = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def is_alive(self) -> bool:
        """Its first process is there: something else than the keeper may have killed it."""
        try:
            signal.pidfd_send_signal(self._handle, 0)
        except ProcessLookupError:
            return False
        return True

    def is_empty(self) -> bool:
        """Nothing is left in there: the first process ends after all others."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class PidNamespaces:
    """Makes cells, and keeps those that can be used again."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._ends = os.pipe2(os.O_CLOEXEC)  # the writing end is the keeper's alone
        self._own_fd = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._mounts_fd = None if _are_mounts_shared() else os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        self._spare: list[PidNamespace] = []  # appending and popping need no lock
        self.pids: set[int] = set()  # of first processes that are not known to have ended
        self._program: Sequence[bytes | str] = _program()
        self.problem: str | None = None  # why work cannot be hidden from other work here
        self._has_mounts = self._try(has_mounts=True)
        # None: this machine lets the keeper make none.
        self.label = LABEL if self._has_mounts or self._try(has_mounts=False) else None

    @property
    def hide(self) -> bool:
        """Whether work in a cell sees no processes of other work."""
        return self._has_mounts

    def create(self, *, is_bound: bool) -> PidNamespace:
        """A new one. OSError if this machine has no room for it now."""
        return self._make(has_mounts=self._has_mounts, is_bound=is_bound)

    def allocate(self) -> PidNamespace:
        """One that is not bound, and empty."""
        if self._mounts_fd is not None and fast_syscalls.has_news(self._mounts_fd):
            self.drop_spare()  # cells of before do not see what was mounted since
        while self._spare:
            with contextlib.suppress(IndexError):  # another thread was sooner
                cell = self._spare.pop()
                if cell.is_alive():
                    return cell
                self.discard(cell)
        return self.create(is_bound=False)

    def release(self, cell: PidNamespace) -> None:
        """For another attempt. Nothing of the one before may be left in it."""
        if cell.is_bound or cell.is_killed or len(self._spare) >= SPARE_MOST:
            self.discard(cell)
        else:
            self._spare.append(cell)

    def discard(self, cell: PidNamespace) -> None:
        """End everything in it."""
        self.pids.discard(cell.pid)
        cell.kill()
        cell.close()

    def preallocate(self) -> None:
        """Make some ahead: the first starts need not wait for them."""
        with contextlib.suppress(OSError):
            while len(self.pids) < LEAST:
                self._spare.append(self.create(is_bound=False))

    def drop_spare(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self.discard(self._spare.pop())

    def _make(self, *, has_mounts: bool, is_bound: bool) -> PidNamespace:
        word = ("m" if has_mounts else "-") + ("b" if is_bound else "s")
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                pid = self._spawn(word, write_fd)
            finally:
                os.close(write_fd)
            self.pids.add(pid)  # before anything else looks at the children of the keeper for long
            try:
                said = os.read(read_fd, STATUS.size)
                code = STATUS.unpack(said)[0] if len(said) == STATUS.size else errno.EIO
                if code:
                    raise OSError(code, os.strerror(code))
                return PidNamespace(pid, self._own_fd, has_mounts=has_mounts, is_bound=is_bound)
            except OSError:
                self.pids.discard(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                raise
        finally:
            os.close(read_fd)

    def _spawn(self, word: str, status_fd: int) -> int:
        if _libc.unshare(CLONE_NEWPID):
            raise _error("unshare(pid)")
        try:
            return os.posix_spawn(
                self._program[0],
                [*self._program[1:], word],
                {MARK: self._mark, **_libraries()},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, self._ends[0], 0),
                    (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, status_fd, STATUS_FD),
                ],
                setsid=True,
            )
        finally:
            _return_to(self._own_fd)

    def _try(self, *, has_mounts: bool) -> bool:
        """Tried by a thread that does nothing else: its namespaces are changed, and not back."""
        problems: list[str] = []

        def try_it() -> None:
            try:
                cell = self._make(has_mounts=has_mounts, is_bound=True)
            except (OSError, CannotLeaveNamespace) as error:
                problems.append(getattr(error, "strerror", None) or str(error))
                return
            try:
                if has_mounts and (problem := _look_inside(cell)):
                    problems.append(problem)
            finally:
                self.discard(cell)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(cell.pid, 0)

        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
        if problems and has_mounts:
            self.problem = problems[0]
        return not problems


def kill_all(mark: str, patience_seconds: float) -> None:
    """End the cells of an earlier keeper, and with them all that it left in there."""
    give_up_at = time.monotonic() + patience_seconds
    while left := trees.find_with(MARK, mark):
        for pid in left:
            trees.signal_with(pid, MARK, mark, signal.SIGKILL)
        if time.monotonic() > give_up_at:
            print(f"unkillable cells of an earlier keeper: {left}", file=sys.stderr)
            return
        time.sleep(0.005)


def _are_mounts_shared() -> bool:
    """Whether what is mounted later appears in mount namespaces that were made before, as systemd has it."""
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.partition(" - ")[0].split() for line in file]
    roots = [fields[6:] for fields in lines if fields[4] == "/"]
    return bool(roots) and any(field.startswith("shared:") for field in roots[-1])


def _look_inside(cell: PidNamespace) -> str | None:
    """What is wrong with its mount namespace; this thread stays there."""
    root = os.stat("/")
    if _libc.unshare(CLONE_FS) or _libc.setns(cell.mounts_fd, CLONE_NEWNS):
        return _error("setns(mount)").strerror
    if not os.path.samestat(root, os.stat("/")):
        return "the keeper's root directory is not that of its mount namespace"
    if [name for name in os.listdir("/proc") if name.isdecimal()] != ["1"]:
        return "its /proc shows other processes"
    return None


def _join(handle: int) -> None:
    if _libc.setns(handle, CLONE_NEWPID):
        raise _error("setns(pid)")


def _return_to(own_fd: int) -> None:
    try:
        _join(own_fd)
    except OSError as error:
        raise CannotLeaveNamespace(str(error)) from error


def _error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def _program() -> list[bytes | str]:
    """The first process's program and its name, and for an interpreter what that is to do."""
    with contextlib.suppress(OSError):
        fd = machine_code.load("rota-cell", CODE)
        if fd is not None:
            return [machine_code.path_of(fd), "rota-cell"]
    return [sys.executable, sys.executable, "-I", "-S", "-c", SCRIPT]


def _libraries() -> dict[str, str]:
    """Where the interpreter finds its own, if that was said."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
