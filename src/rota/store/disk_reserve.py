"""Disk space held in order to be given up: when there is no other, how work ended is still written."""

import contextlib
import os
from pathlib import Path


class DiskReserve:
    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def acquire(self) -> bool:
        """Whether it is held, and there is something beside it; taken as soon as there is twice as much."""
        disk = os.statvfs(self._path.parent)
        free_bytes = disk.f_bavail * disk.f_frsize
        if self._is_held():
            return free_bytes >= self._size_bytes // 4
        if free_bytes < 2 * self._size_bytes:
            return False
        partial = self._path.with_suffix(".new")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size_bytes)
            finally:
                os.close(descriptor)
            partial.replace(self._path)
        except OSError:  # somebody else was faster
            with contextlib.suppress(OSError):
                partial.unlink()
            return False
        return True

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _is_held(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._path.stat().st_size == self._size_bytes
        return False
