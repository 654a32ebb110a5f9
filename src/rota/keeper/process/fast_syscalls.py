"""System calls without releasing the GIL, for calls that take less time than handing it over. [I/O]

Python's own functions release it. At thousands of starts a second another thread always wants it, and the
caller waits to get it back while it holds `Supervisor.lock`.
"""

import ctypes
import errno
import fcntl
import os
import select
import sys
from typing import NamedTuple

_libc = ctypes.PyDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_EMPTY_PATH = 0x1000
_BASIC = 0x7FF
_LINKS, _SIZE = slice(16, 20), slice(40, 48)  # in struct statx, on every CPU
_STAT_BYTES = 256
_ENTRIES_BYTES = 512  # more than the two entries of an empty directory
_SELF_AND_PARENT = {b".", b".."}
_NAME = 19  # offset of the name in struct linux_dirent64
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
    """Write; return how many bytes were written."""
    written: int = _libc.write(fd, data, ctypes.c_size_t(len(data)))
    if written < 0:
        raise _error()
    return written


def pipe() -> tuple[int, int]:
    """A pipe with close-on-exec: the reading and the writing end."""
    ends = (ctypes.c_int * 2)()
    if _libc.pipe2(ends, os.O_CLOEXEC):
        raise _error()
    return ends[0], ends[1]


def read(fd: int, size: int) -> bytes:
    """Read what is there; only for descriptors that are known not to block."""
    buffer = ctypes.create_string_buffer(size)
    length: int = _libc.read(fd, buffer, ctypes.c_size_t(size))
    if length < 0:
        raise _error()
    return buffer.raw[:length]


def is_file_empty(path: str) -> bool:
    """Whether nothing can be read from a file; True if it does not exist."""
    fd = _libc.open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC)
    if fd < 0:
        return True
    byte = ctypes.c_char()
    length: int = _libc.read(fd, ctypes.byref(byte), ctypes.c_size_t(1))
    _libc.close(fd)
    return length <= 0


def is_directory_empty(path: str) -> bool:
    """Whether a directory has no entries; True if it does not exist."""
    fd = _libc.open(os.fsencode(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if fd < 0:
        return ctypes.get_errno() == errno.ENOENT
    entries = ctypes.create_string_buffer(_ENTRIES_BYTES)
    length: int = _libc.getdents64(fd, entries, ctypes.c_size_t(_ENTRIES_BYTES))
    _libc.close(fd)
    return length >= 0 and _names(entries.raw[:length]) <= _SELF_AND_PARENT


def has_news(fd: int) -> bool:
    """Whether a pollable file of /proc has changed since the last call."""
    request = (ctypes.c_int * 2)(fd, select.POLLPRI)
    return bool(_libc.poll(request, 1, 0) > 0)


def rename(before: str, after: str) -> None:
    if _libc.rename(os.fsencode(before), os.fsencode(after)):
        raise _error()


def rename_new(before: str, after: str) -> None:
    """Rename, and fail with EEXIST where `rename` would replace an empty directory.

    OSError with EINVAL if the file system cannot do that atomically.
    """
    names = os.fsencode(before), os.fsencode(after)
    if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE):
        raise _error()


def give_to_group(path: str, group: int) -> None:
    if _libc.chown(os.fsencode(path), ctypes.c_uint32(-1), ctypes.c_uint32(group)):
        raise _error()


def close(fd: int) -> None:
    _libc.close(fd)


def stat(fd: int) -> Stat:
    buffer = ctypes.create_string_buffer(_STAT_BYTES)
    if _libc.statx(fd, b"", _EMPTY_PATH, _BASIC, buffer):
        raise _error()
    raw = buffer.raw
    return Stat(_number(raw[_SIZE]), _number(raw[_LINKS]))


def take_read_lease(fd: int) -> bool:
    """Take a read lease, which proves that no process has the file open for writing; False: one has."""
    return bool(_libc.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0)


def release_lease(fd: int) -> None:
    _libc.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def reap(pid: int) -> ReapedChild:
    """Reap a child that is a zombie."""
    status, usage = ctypes.c_int(), (ctypes.c_long * _USAGE_LONGS)()
    if _libc.wait4(pid, ctypes.byref(status), 0, usage) < 0:
        raise _error()
    seconds = usage[_SECONDS] + usage[_SYSTEM_SECONDS]
    microseconds = usage[_MICROSECONDS] + usage[_SYSTEM_MICROSECONDS]
    return ReapedChild(status.value, seconds * 1_000_000 + microseconds, usage[_PEAK_KIB])


def _names(entries: bytes) -> set[bytes]:
    """The names in a buffer of struct linux_dirent64: inode, offset, length, type, name."""
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
