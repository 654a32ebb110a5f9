"""The starter: a tiny program between the keeper and a task, which enters cgroups and drops privileges.

A thread of the keeper with the real uid of a job could be signalled by that job, and a signal to one thread
ends the whole keeper. A fork copies the keeper's page tables, which takes long; a child that shares the
keeper's memory must not run as another user. So the keeper spawns this program as root, and the program
becomes the user: by then it is a process with memory of its own, which the kernel does not let others trace.
It costs an exec of one page, a tenth of what `/bin/true` takes.
"""

import contextlib
import errno
import os
import select
import signal
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from rota.keeper.process import fast_syscalls, machine_code, trees
from rota.keeper.process.users import User

STATUS_FD, MOUNTS_FD = 4, 5  # descriptors in the starter
STATUS = struct.Struct("ii")  # the error and the stage
_CONTEXT_STAGE = 0  # entering cgroups and namespaces and setting the user: errors are the node's
_FIRST_POLL_MS, _LAST_POLL_MS = 10, 1000  # of a child that has not executed its command yet
# The machine code of starter_x86_64.s.
CODE = {
    "x86_64": bytes.fromhex(
        "488b04244c8d6424084d8d6cc40831edbf04000000be02000000ba01000000b8480000000f05498d5c2438488b3b4883"
        "c308803f2f7542be01000800b8020000000f054885c00f88f40000004189c689c7488d352b010000ba01000000b80100"
        "00000f054885c00f88d30000004489f7b8030000000f05ebb2498b7c2420803f6d7526bf05000000be00000200b83401"
        "00000f054885c00f88a3000000bf05000000b8030000000f05498b742408803e2d7468498b7424184989e631ff803e00"
        "7411e8a30000004983ee04418946c0ffc7ebea498d76c0b8740000000f054885c0785d498b742410e87d00000089c789"
        "c689c2b8770000000f054885c07841498b742408e86100000089c789c689c2b8750000000f054885c07825ffc5498b7c"
        "2428b8500000000f054885c07812498b7c24304889de4c89eab83b0000000f05f7d848c1e5204809e850bf0400000048"
        "89e6ba08000000b8010000000f05bf7f000000b8e70000000f0531c00fb61685d2740f48ffc683ea3072076bc00a01d0"
        "ebeac330"
    )
}


class CannotEnter(Exception):
    """A process could not enter its cgroups or namespaces, or set its user: the node's fault."""


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What a process enters before it executes its command."""

    user: User | None = None  # None: the keeper's
    procs_files: Sequence[str] = ()  # cgroup.procs files that the process writes itself into
    task_group: int | None = None  # a supplementary group beside those of its user
    mounts_fd: int | None = None  # pidfd of a process whose mount namespace it joins

    @property
    def groups(self) -> tuple[int, ...]:
        own = () if self.task_group is None else (self.task_group,)
        return (*self.user.groups, *own) if self.user else ()

    def __bool__(self) -> bool:
        return self.user is not None or bool(self.procs_files) or self.mounts_fd is not None


KEEPER_CONTEXT = ProcessContext()


def starter_argv(context: ProcessContext, cwd: str, program: bytes, argv: Sequence[bytes]) -> list[bytes]:
    """The command line of the starter, as `starter_x86_64.s` describes it."""
    user = context.user
    groups = b"".join(b"%d " % group for group in context.groups)
    ids = [b"%d" % user.uid, b"%d" % user.gid, groups] if user else []
    return [
        b"rota-start",
        *(ids or (b"-", b"", b"")),
        b"-" if context.mounts_fd is None else b"m",
        os.fsencode(cwd),
        program,
        *map(os.fsencode, context.procs_files),
        b"--",
        *argv,
    ]


def find_starter() -> bytes | None:
    """The path of the starter, by a descriptor that stays open; None: this machine cannot run it."""
    with contextlib.suppress(OSError):
        fd = machine_code.load("rota-start", CODE)
        if fd is None:
            return None
        if _works(machine_code.path_of(fd)):
            return machine_code.path_of(fd)
        os.close(fd)
    return None


def reserve_descriptors() -> None:
    """Occupy the starter's descriptor numbers: a descriptor that is passed on must not have one of them."""
    while (fd := os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)) <= MOUNTS_FD:
        pass
    os.close(fd)


def await_exec(pid: int, status_fd: int) -> int:
    """Wait until the child has executed its command; return 0 or the errno. CannotEnter: it failed before.

    Race: another process of the same user can stop the child in between, which would block a thread of the
    keeper. A child that is found stopped here is killed.
    """
    poll = select.poll()
    poll.register(status_fd, select.POLLIN)
    timeout_ms = _FIRST_POLL_MS
    # Backs off: a slow exec on a busy machine must not cost the keeper CPU time.
    while not poll.poll(timeout_ms):
        timeout_ms = min(2 * timeout_ms, _LAST_POLL_MS)
        if trees.is_stopped(pid):
            os.kill(pid, signal.SIGKILL)
    status = fast_syscalls.read(status_fd, STATUS.size)
    if len(status) < STATUS.size:
        return 0  # the exec has closed the pipe, or the child was killed
    error, stage = STATUS.unpack(status)
    with contextlib.suppress(ChildProcessError):  # race: a starter thread has reaped it
        os.waitpid(pid, 0)
    if stage == _CONTEXT_STAGE:
        raise CannotEnter(os.strerror(error))
    return int(error)


def _works(path: bytes) -> bool:
    """Whether the starter works here: it must fail to execute a program that does not exist."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    try:
        argv = starter_argv(KEEPER_CONTEXT, "/", b"/proc/self/no-such-program", [b"x"])
        actions = [(os.POSIX_SPAWN_DUP2, write_fd, STATUS_FD)]
        pid = os.posix_spawn(path, argv, {}, file_actions=actions)
        os.close(write_fd)
        write_fd = -1
        return await_exec(pid, read_fd) == errno.ENOENT
    except (OSError, CannotEnter):
        return False
    finally:
        os.close(read_fd)
        if write_fd >= 0:
            os.close(write_fd)
