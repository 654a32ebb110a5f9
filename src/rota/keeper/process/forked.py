"""Start by fork, for machines that cannot run the starter program.

A fork takes a few times as long as a spawn, because it copies the keeper's page tables.
"""

import contextlib
import ctypes
import errno
import os
import signal
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from rota.keeper.process.posix import OPENED
from rota.keeper.process.starter import STATUS, ProcessContext, await_exec

CLONE_NEWNS = 0x20000
NOWHERE = b"/dev/null"
_libc = ctypes.PyDLL(None, use_errno=True)
NONE: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Program:
    path: bytes
    argv: tuple[bytes, ...]
    env: Mapping[bytes, bytes]
    cwd: str
    context: ProcessContext
    defaults: Sequence[signal.Signals]  # signals to reset to their default action


def start(program: Program, output: bytes, passed: Mapping[int, int] = NONE) -> tuple[int, int]:
    """Fork and exec; return the pid and 0, or 0 and the errno. CannotEnter: it could not enter its context.

    `passed`: further descriptors, by their numbers in the child.
    """
    with contextlib.ExitStack() as files:
        opened = []
        for path in (output + b".out" if output else NOWHERE, output + b".err" if output else NOWHERE):
            opened.append(os.open(path, OPENED, 0o600))
            files.callback(os.close, opened[-1])
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        files.callback(os.close, read_fd)
        try:
            pid = _fork()
            if pid == 0:
                _become(program, opened, write_fd, passed)
        finally:
            # In the parent: the pipe must have no other writer, or the end of the exec would not be seen.
            os.close(write_fd)
        error = await_exec(pid, read_fd)
    return (0, error) if error else (pid, 0)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of forks in threaded processes. The child only makes system calls until its exec, so
        # a lock that another thread held at the fork cannot deadlock it.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(program: Program, opened: Sequence[int], write_fd: int, passed: Mapping[int, int]) -> NoReturn:
    code, stage = errno.EIO, 0
    try:
        out_fd, err_fd = opened
        os.setsid()
        os.dup2(out_fd, 1)
        os.dup2(err_fd, 2)
        for number, fd in passed.items():
            os.dup2(fd, number)
        _enter(program.context)
        stage = 1
        os.chdir(program.cwd)
        for signum in program.defaults:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(program.path, program.argv, program.env)
    except OSError as error:
        code = error.errno or errno.EIO
    except (ValueError, TypeError):  # arguments that execve does not accept
        code = errno.EINVAL
    finally:
        os.write(write_fd, STATUS.pack(code, stage))
        os._exit(127)


def _enter(context: ProcessContext) -> None:
    for procs_file in context.procs_files:
        procs_fd = os.open(procs_file, os.O_WRONLY | os.O_CLOEXEC)
        os.write(procs_fd, b"0")
        os.close(procs_fd)
    if context.mounts_fd is not None and _libc.setns(context.mounts_fd, CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "setns(mount)")
    if user := context.user:
        # Ordering: groups and gid before uid, since only root may set them.
        os.setgroups(context.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
