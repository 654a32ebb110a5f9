"""A file of reserved disk space, deleted when the disk is full, so that ends of work can still be stored."""

import contextlib
import os
from pathlib import Path


class DiskReserve:
    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def acquire(self) -> bool:
        """Hold the reserve if there is space for it twice over; returns whether new work may be stored."""
        disk = os.statvfs(self._path.parent)
        free_bytes = disk.f_bavail * disk.f_frsize
        if self._is_held():
            return free_bytes >= self._size_bytes // 4
        # Twice over: with less, acquiring the reserve would
        # itself cause the shortage that it protects from.
        if free_bytes < 2 * self._size_bytes:
            return False
        partial = self._path.with_suffix(".new")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # fallocate, not truncate: a sparse file would reserve nothing.
                os.posix_fallocate(descriptor, 0, self._size_bytes)
            finally:
                os.close(descriptor)
            # Under another name until it is complete: a partial
            # file after a crash must not count as the reserve.
            partial.replace(self._path)
        except OSError:  # race: another process used up the space meanwhile
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
