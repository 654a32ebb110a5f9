"""A command -> its program, or why it cannot be executed, with the exit codes of a shell."""

import errno
import os

CANNOT_EXECUTE = 126  # as a shell; 127 is a command that was not found

# Errors of the machine: this node cannot start the command now, another one may.
NODE_ERRNOS = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOLCK),
        *(errno.EIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO, errno.EUCLEAN, errno.ENODEV, errno.ENXIO),
        *(errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EINTR, errno.EFBIG),
    )
)
# Errors of the spec: no node could start it.
JOB_ERRNOS = frozenset(
    (errno.ENAMETOOLONG, errno.E2BIG, errno.ELOOP, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR)
)


class CannotRun(Exception):
    """The command cannot be executed because of the spec: the attempt ends with this exit code."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.reason = reason


def find_program(command: str, search: str, cwd: str) -> str:
    """Search a command in the task's own PATH."""
    if "/" in command:
        return command
    forbidden = None
    for directory in search.split(":"):
        path = os.path.join(cwd, directory, command)
        if not os.path.isfile(path):
            continue
        if may_execute(path):
            return path
        forbidden = path
    if forbidden:
        raise CannotRun(126, f"permission denied: {forbidden}")
    raise CannotRun(127, f"command not found: {command}")


def explain_exec_error(error: int, command: str, cwd: str) -> CannotRun:
    """The reason of a failed start: the child could not enter its directory, or not execute the command."""
    if not os.path.isdir(cwd) or not may_execute(cwd):
        return CannotRun(126, f"working directory {cwd}: {os.strerror(error)}")
    match error:
        case errno.ENOENT if "/" in command and os.path.exists(os.path.join(cwd, command)):
            return CannotRun(127, f"interpreter not found: {command}")
        case errno.ENOENT | errno.ENOTDIR:
            return CannotRun(127, f"command not found: {command}")
        case errno.EACCES | errno.EPERM | errno.EISDIR:
            return CannotRun(126, f"permission denied: {command}")
        case number:
            return CannotRun(126, f"cannot execute {command}: {os.strerror(number)}")


def may_execute(path: str) -> bool:
    """Whether the effective user of this thread may execute it; the real user is always the keeper's."""
    return os.access(path, os.X_OK, effective_ids=True)


def exec_errno(path: str) -> int:
    return errno.EACCES if os.path.exists(path) else errno.ENOENT
