"""Calls of the kernel that take less time than to hand the interpreter's lock over and back. [I/O]

Each of Python's own lets others run meanwhile. At thousands of starts a second there is always another that
runs, and whoever called waits for it, with the lock of all the work in its hands.
"""

import ctypes
import errno
import fcntl
import os
import select
import sys
from typing import NamedTuple

_libc = ctypes.PyDLL(None, use_errno=True)
_FROM_HERE = -100  # AT_FDCWD
_NO_REPLACE = 1  # RENAME_NOREPLACE
_EMPTY_PATH = 0x1000
_BASIC = 0x7FF
_LINKS, _SIZE = slice(16, 20), slice(40, 48)  # in the kernel's answer, on every machine
_STAT_BYTES = 256
_ENTRIES_BYTES = 512  # more than the two that are in every directory
_EVERYWHERE = {b".", b".."}
_NAME = 19  # where the name begins in an entry
_USAGE_LONGS = 18
_SECONDS, _MICROSECONDS, _SYSTEM_SECONDS, _SYSTEM_MICROSECONDS, _PEAK_KIB = range(5)


class Stat(NamedTuple):
    size: int
    links: int


class ReapedChild(NamedTuple):
    status: int
    cpu_us: int
    peak_kib: int


def write(fd: int, data: bytes) -> int:
    """How much of it was written."""
    written: int = _libc.write(fd, data, ctypes.c_size_t(len(data)))
    if written < 0:
        raise _error()
    return written


def pipe() -> tuple[int, int]:
    """The reading end and the writing end; no child has them."""
    ends = (ctypes.c_int * 2)()
    if _libc.pipe2(ends, os.O_CLOEXEC):
        raise _error()
    return ends[0], ends[1]


def read(fd: int, size: int) -> bytes:
    """What is there to be read: for files that are known not to block."""
    answer = ctypes.create_string_buffer(size)
    there: int = _libc.read(fd, answer, ctypes.c_size_t(size))
    if there < 0:
        raise _error()
    return answer.raw[:there]


def is_file_empty(path: str) -> bool:
    """Whether nothing can be read from it; a file that is gone is empty."""
    fd = _libc.open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC)
    if fd < 0:
        return True
    byte = ctypes.c_char()
    there: int = _libc.read(fd, ctypes.byref(byte), ctypes.c_size_t(1))
    _libc.close(fd)
    return there <= 0


def is_directory_empty(path: str) -> bool:
    """Whether nothing is in it; a directory that is gone is empty."""
    fd = _libc.open(os.fsencode(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if fd < 0:
        return ctypes.get_errno() == errno.ENOENT
    entries = ctypes.create_string_buffer(_ENTRIES_BYTES)
    there: int = _libc.getdents64(fd, entries, ctypes.c_size_t(_ENTRIES_BYTES))
    _libc.close(fd)
    return there >= 0 and _names(entries.raw[:there]) <= _EVERYWHERE


def has_news(fd: int) -> bool:
    """Whether a file of /proc has changed since this was asked last."""
    asked = (ctypes.c_int * 2)(fd, select.POLLPRI)
    return bool(_libc.poll(asked, 1, 0) > 0)


def rename(before: str, after: str) -> None:
    if _libc.rename(os.fsencode(before), os.fsencode(after)):
        raise _error()


def rename_new(before: str, after: str) -> None:
    """Rename, and fail with EEXIST where `rename` would replace an empty directory.

    OSError with EINVAL if the file system cannot do that in one step.
    """
    names = os.fsencode(before), os.fsencode(after)
    if _libc.renameat2(_FROM_HERE, names[0], _FROM_HERE, names[1], _NO_REPLACE):
        raise _error()


def give_to_group(path: str, group: int) -> None:
    if _libc.chown(os.fsencode(path), ctypes.c_uint32(-1), ctypes.c_uint32(group)):
        raise _error()


def close(fd: int) -> None:
    _libc.close(fd)


def stat(fd: int) -> Stat:
    answer = ctypes.create_string_buffer(_STAT_BYTES)
    if _libc.statx(fd, b"", _EMPTY_PATH, _BASIC, answer):
        raise _error()
    raw = answer.raw
    return Stat(_number(raw[_SIZE]), _number(raw[_LINKS]))


def take_read_lease(fd: int) -> bool:
    """Hold the file as a reader: nobody has it open for writing, and nobody can; False: somebody has."""
    return bool(_libc.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0)


def release_lease(fd: int) -> None:
    _libc.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def reap(pid: int) -> ReapedChild:
    """Take the end of a child that is a zombie."""
    status, usage = ctypes.c_int(), (ctypes.c_long * _USAGE_LONGS)()
    if _libc.wait4(pid, ctypes.byref(status), 0, usage) < 0:
        raise _error()
    seconds = usage[_SECONDS] + usage[_SYSTEM_SECONDS]
    microseconds = usage[_MICROSECONDS] + usage[_SYSTEM_MICROSECONDS]
    return ReapedChild(status.value, seconds * 1_000_000 + microseconds, usage[_PEAK_KIB])


def _names(entries: bytes) -> set[bytes]:
    """Of what the kernel says of a directory: each entry begins with its inode, its place and its length."""
    found, at = set(), 0
    while at < len(entries):
        length = _number(entries[at + 16 : at + 18])
        found.add(entries[at + _NAME : at + length].partition(b"\0")[0])
        at += length
    return found


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, sys.byteorder)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
