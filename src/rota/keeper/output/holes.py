"""Disk space of files: reserved ahead of writes, or given back by punching holes. [I/O]"""

import ctypes
import os

KEEP_SIZE, PUNCH_HOLE = 0x01, 0x02
BLOCK_BYTES = 64 << 10  # a multiple of every file system's block, so that holes have the exact bounds
_libc = ctypes.CDLL(None, use_errno=True)


def punch(fd: int, start: int, end: int) -> int:
    """Deallocate the whole blocks between the offsets; return where the hole ends. Size and offsets stay."""
    start, end = -(-start // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
    if start < end:
        _fallocate(fd, PUNCH_HOLE | KEEP_SIZE, start, end - start)
    return max(start, end)


def reserve(fd: int, start: int, length: int) -> None:
    """Allocate space behind the end of the file, so that a write there succeeds on a full disk."""
    _fallocate(fd, KEEP_SIZE, start, length)


def _fallocate(fd: int, mode: int, start: int, length: int) -> None:
    if _libc.fallocate(fd, mode, ctypes.c_int64(start), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
