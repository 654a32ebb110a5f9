"""A child that enters its control group by itself, and only then becomes the program it was made for.

A fork takes a few times as long as a spawn; but only between fork and exec can a process that has threads put
another one into a group of version 2, and only so is none of its instructions run outside.
"""

import contextlib
import errno
import os
import signal
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from rota.keeper.process.posix import OPENED
from rota.keeper.process.users import User

ERROR = struct.Struct("i")
NOWHERE = b"/dev/null"
NONE: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Program:
    path: bytes
    argv: tuple[bytes, ...]
    env: Mapping[bytes, bytes]
    cwd: str
    user: User | None  # None: the keeper's own
    defaults: Sequence[signal.Signals]  # signals that it is not to ignore


def start(
    program: Program, output: bytes, entrance: str, passed: Mapping[int, int] = NONE
) -> tuple[int, int]:
    """The new pid and 0, or 0 and the number of the error, as a spawn would give them.

    `passed`: descriptors that it is given besides, by its own numbers.
    """
    with contextlib.ExitStack() as files:
        opened = []
        for path, flags in (
            (os.fsencode(entrance), os.O_WRONLY | os.O_CLOEXEC),
            (output + b".out" if output else NOWHERE, OPENED),
            (output + b".err" if output else NOWHERE, OPENED),
        ):
            opened.append(os.open(path, flags, 0o600))
            files.callback(os.close, opened[-1])
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        files.callback(os.close, read_fd)
        try:
            pid = _fork()
            if pid == 0:
                _become(program, opened, write_fd, passed)
        finally:
            os.close(write_fd)
        said = os.read(read_fd, ERROR.size)  # nothing: the exec has closed it
    if len(said) < ERROR.size:
        return pid, 0
    with contextlib.suppress(ChildProcessError):  # the reaper was sooner
        os.waitpid(pid, 0)
    return 0, ERROR.unpack(said)[0]


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child calls the kernel alone
        return os.fork()


def _become(program: Program, opened: Sequence[int], write_fd: int, passed: Mapping[int, int]) -> NoReturn:
    code = errno.EIO
    try:
        entrance_fd, out_fd, err_fd = opened
        os.write(entrance_fd, b"0")
        os.setsid()
        os.dup2(out_fd, 1)
        os.dup2(err_fd, 2)
        for number, fd in passed.items():
            os.dup2(fd, number)
        if program.user:
            os.setgroups(program.user.groups)
            os.setresgid(program.user.gid, program.user.gid, program.user.gid)
            os.setresuid(program.user.uid, program.user.uid, program.user.uid)
        os.chdir(program.cwd)
        for signum in program.defaults:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(program.path, program.argv, program.env)
    except OSError as error:
        code = error.errno or errno.EIO
    except (ValueError, TypeError):  # what execve cannot even be asked
        code = errno.EINVAL
    finally:
        os.write(write_fd, ERROR.pack(code))
        os._exit(127)
