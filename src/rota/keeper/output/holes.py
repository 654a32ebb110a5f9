"""Room in files, taken ahead of what will be written, or given back from what was. [I/O]"""

import ctypes
import os

KEEP_SIZE, PUNCH_HOLE = 0x01, 0x02
BLOCK_BYTES = 64 << 10  # a multiple of every file system's: a hole then begins and ends where it was asked to
_libc = ctypes.CDLL(None, use_errno=True)


def punch(fd: int, start: int, end: int) -> int:
    """Give back the whole blocks between, and say where they end; the size and every offset stay."""
    start, end = -(-start // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
    if start < end:
        _fallocate(fd, PUNCH_HOLE | KEEP_SIZE, start, end - start)
    return max(start, end)


def reserve(fd: int, start: int, length: int) -> None:
    """Room behind the end, which a full disk then still has for this file."""
    _fallocate(fd, KEEP_SIZE, start, length)


def _fallocate(fd: int, mode: int, start: int, length: int) -> None:
    if _libc.fallocate(fd, mode, ctypes.c_int64(start), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
