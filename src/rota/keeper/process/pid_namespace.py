"""Pid namespaces of attempts, each with a /proc that shows no other processes. [I/O]

Processes in a namespace see each other and its init process, and can signal no others. When the init process
ends, the kernel kills everything in there. The attempt itself is a child of the keeper as any other: the
thread that spawns it joins the pid namespace for that moment, and the starter program joins the mount
namespace.

There are two kinds. The namespace of an attempt with a run lease is *bound*: its init process reads from a
pipe that only the keeper holds open, and ends when the keeper does, however that dies. Other namespaces
outlive the keeper while processes are in them; the next keeper kills them.

Creating a namespace takes as long as starting `/bin/true`; joining an existing one takes a hundredth of
that. So unbound namespaces are reused by other attempts once they are empty, as plain cgroups are. An empty
namespace has no traces of the previous attempt: tasks in it are never root, and so have mounted nothing
there.
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
MARK = "ROTA_CELL"  # marker in the environment of init processes; attempts have another one
CLONE_NEWPID = 0x20000000
CLONE_NEWNS = 0x20000
CLONE_FS = 0x200
SPARE_MOST = 64  # empty namespaces kept for reuse
LEAST = 4  # created ahead
# The machine code of init_x86_64.s.
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
# The same for other CPUs: a Python interpreter for each namespace.
SCRIPT = """
import ctypes, os, signal, struct, sys, time
libc, options, code = ctypes.CDLL(None, use_errno=True), sys.argv[1], 0
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.chdir("/")
if options[0] == "m":
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
    while options[1] != "b":
        try:
            os.kill(-1, 0)
        except ProcessLookupError:
            break
        time.sleep(1)
"""
_libc = ctypes.PyDLL(None, use_errno=True)


class CannotLeaveNamespace(BaseException):
    """This thread could not return to the keeper's namespace, and must not spawn anything any more.

    A BaseException, so that no handler of ordinary errors lets the thread go on: the keeper crashes.
    """


class PidNamespace:
    """A pid namespace, held by a pidfd of its init process, which also stands for its mount namespace.

    As a context manager it makes what this thread spawns be born in the namespace.
    """

    def __init__(self, pid: int, own_fd: int, *, has_mounts: bool, is_bound: bool) -> None:
        self.pid = pid
        self.is_bound = is_bound
        self.is_killed = False
        # A pidfd, not the pid: signals cannot reach another process after the pid was reused.
        self._handle = os.pidfd_open(pid)
        self._own_fd = own_fd
        self._has_mounts = has_mounts
        # Race: a health check may be spawned while the attempt ends. Without the lock it could join by a
        # descriptor that was closed and reused.
        self._lock = threading.Lock()

    @property
    def mounts_fd(self) -> int | None:
        """A descriptor for its mount namespace; None: it has none of its own."""
        return self._handle if self._has_mounts else None

    def __enter__(self) -> None:
        """Join: children that this thread spawns are born in the namespace."""
        # Held while this thread is in the namespace, so that `close` waits for the spawn.
        self._lock.acquire()
        try:
            if self._handle < 0:
                raise ProcessLookupError(errno.ESRCH, "the pid namespace has ended")
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
        # First, so that `release` never keeps a namespace whose processes are dying.
        self.is_killed = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def is_alive(self) -> bool:
        """Whether its init process is alive: something else than the keeper may have killed it."""
        try:
            signal.pidfd_send_signal(self._handle, 0)
        except ProcessLookupError:
            return False
        return True

    def is_empty(self) -> bool:
        """Whether nothing is left in it: the init process ends after all others."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        with self._lock:
            # Swapped under the lock: a thread that joins afterwards sees that it has ended.
            handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class PidNamespaces:
    """Creates pid namespaces, and keeps empty ones for reuse. Called by several threads, without a lock."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._ends = os.pipe2(os.O_CLOEXEC)  # only the keeper has the writing end
        self._own_fd = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._mounts_fd = None if _are_mounts_shared() else os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        self._spare: list[PidNamespace] = []  # append and pop are atomic
        self.pids: set[int] = set()  # of init processes that are not known to have ended
        self._program: Sequence[bytes | str] = _program()
        self.problem: str | None = None  # why attempts cannot be hidden from each other here
        self._has_mounts = self._try(has_mounts=True)
        # None: the keeper may not create pid namespaces on this machine.
        self.label = LABEL if self._has_mounts or self._try(has_mounts=False) else None

    @property
    def hide(self) -> bool:
        """Whether attempts in namespaces do not see processes of others."""
        return self._has_mounts

    def create(self, *, is_bound: bool) -> PidNamespace:
        """Create a namespace; OSError if that is not possible now."""
        return self._make(has_mounts=self._has_mounts, is_bound=is_bound)

    def allocate(self) -> PidNamespace:
        """An empty, unbound namespace, reused if possible."""
        if self._mounts_fd is not None and fast_syscalls.has_news(self._mounts_fd):
            self.drop_spare()  # older namespaces do not see what was mounted since
        while self._spare:
            with contextlib.suppress(IndexError):  # race: another thread took the last one
                namespace = self._spare.pop()
                # It may have been killed from outside while it was spare; a process cannot be born there.
                if namespace.is_alive():
                    return namespace
                self.discard(namespace)
        return self.create(is_bound=False)

    def release(self, namespace: PidNamespace) -> None:
        """Keep a namespace for another attempt. The caller has proved that it is empty."""
        # A bound namespace ends with the keeper, and a killed one is about to end: neither can be reused.
        if namespace.is_bound or namespace.is_killed or len(self._spare) >= SPARE_MOST:
            self.discard(namespace)
        else:
            self._spare.append(namespace)

    def discard(self, namespace: PidNamespace) -> None:
        """Kill everything in a namespace."""
        self.pids.discard(namespace.pid)
        namespace.kill()
        namespace.close()

    def preallocate(self) -> None:
        """Create some ahead, so that first starts need not wait for them."""
        with contextlib.suppress(OSError):
            while len(self.pids) < LEAST:
                self._spare.append(self.create(is_bound=False))

    def drop_spare(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self.discard(self._spare.pop())

    def _make(self, *, has_mounts: bool, is_bound: bool) -> PidNamespace:
        options = ("m" if has_mounts else "-") + ("b" if is_bound else "s")
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                pid = self._spawn(options, write_fd)
            finally:
                # The child has the only writing end now, so the read below ends if it dies.
                os.close(write_fd)
            # At once: the sweeper kills children that it does not know and has seen twice.
            self.pids.add(pid)
            try:
                status = os.read(read_fd, STATUS.size)
                code = STATUS.unpack(status)[0] if len(status) == STATUS.size else errno.EIO
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

    def _spawn(self, options: str, status_fd: int) -> int:
        if _libc.unshare(CLONE_NEWPID):
            raise _error("unshare(pid)")
        try:
            return os.posix_spawn(
                self._program[0],
                [*self._program[1:], options],
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
            # In any case: a thread that stayed would spawn other attempts into this namespace.
            _return_to(self._own_fd)

    def _try(self, *, has_mounts: bool) -> bool:
        """Try to create a namespace, in a thread that ends afterwards: it stays in the mount namespace."""
        problems: list[str] = []

        def try_it() -> None:
            try:
                namespace = self._make(has_mounts=has_mounts, is_bound=True)
            except (OSError, CannotLeaveNamespace) as error:
                problems.append(getattr(error, "strerror", None) or str(error))
                return
            try:
                if has_mounts and (problem := _inspect(namespace)):
                    problems.append(problem)
            finally:
                self.discard(namespace)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(namespace.pid, 0)

        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
        if problems and has_mounts:
            self.problem = problems[0]
        return not problems


def kill_all(mark: str, timeout_seconds: float) -> None:
    """Kill the namespaces of an earlier keeper, and with them everything in there."""
    give_up_at = time.monotonic() + timeout_seconds
    while left := trees.find_with(MARK, mark):
        for pid in left:
            trees.signal_with(pid, MARK, mark, signal.SIGKILL)
        if time.monotonic() > give_up_at:
            print(f"unkillable pid namespaces of an earlier keeper: {left}", file=sys.stderr)
            return
        time.sleep(0.005)


def _are_mounts_shared() -> bool:
    """Whether later mounts propagate into existing mount namespaces, as systemd sets it up."""
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.partition(" - ")[0].split() for line in file]
    roots = [fields[6:] for fields in lines if fields[4] == "/"]
    return bool(roots) and any(field.startswith("shared:") for field in roots[-1])


def _inspect(namespace: PidNamespace) -> str | None:
    """Join the mount namespace and return what is wrong with it, or None. This thread stays there."""
    root = os.stat("/")
    if _libc.unshare(CLONE_FS) or _libc.setns(namespace.mounts_fd, CLONE_NEWNS):
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
    """The program of init processes and its argv."""
    with contextlib.suppress(OSError):
        fd = machine_code.load("rota-cell", CODE)
        if fd is not None:
            return [machine_code.path_of(fd), "rota-cell"]
    return [sys.executable, sys.executable, "-I", "-S", "-c", SCRIPT]


def _libraries() -> dict[str, str]:
    """The library path of the interpreter, if one is set."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
