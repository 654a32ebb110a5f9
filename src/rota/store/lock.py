"""Lock on a data directory: an flock, which the kernel releases when its process ends."""

import fcntl
import os
from pathlib import Path


class AlreadyRunning(RuntimeError):
    """The directory is locked by the process `pid`."""

    code = "already_running"
    exit_code = 75  # EX_TEMPFAIL: a later try may succeed

    def __init__(self, directory: Path, pid: int) -> None:
        super().__init__(f"{directory} is in use by process {pid}")
        self.pid = pid


class DirectoryLock:
    def __init__(self, directory: Path, name: str = "lock") -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = directory / name
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # flock, not the existence of a file: the kernel
            # releases it when the process dies, however it dies.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The pid is only for the message. The file may be empty if the holder has not written it yet.
            holder = int(os.pread(self._fd, 32, 0).strip() or 0)
            os.close(self._fd)
            raise AlreadyRunning(directory, holder) from None
        # After the lock was acquired: truncating earlier would erase the pid of the process that holds it.
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        # The file stays. Unlinking it would race with a process that has opened it and waits for the lock.
        os.close(self._fd)
