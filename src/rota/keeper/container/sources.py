"""A path to mount -> what it names now, pinned where nothing can be put in its place. [I/O]

A runtime mounts long after the keeper has checked: a user that can write to a directory on the way could put
a link there in between. So a root keeper opens the source, checks where the opened file or directory is, and
binds it to a place that only root can change; podman is told that place. It cannot be told /proc/PID/fd/N:
the kernel binds nothing from the mount namespace of another process, and a container has its own.

Pins are below /run and not in the keeper's directory, where they would be in the way of whoever deletes that:
a deleted pin is the deleted source. A keeper that is killed leaves them to the next one of its directory.
"""

import contextlib
import ctypes
import errno
import os
import stat

PINS = "/run/rota-mounts"
LINKS_MOST = 40  # as the kernel's own bound
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_libc = ctypes.CDLL(None, use_errno=True)


class Handle:
    """A descriptor that reads and writes nothing; closed with its last reference, however that goes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def place(self) -> str:
        """The path at which it is at this moment, without links."""
        return os.readlink(self.link)

    @property
    def link(self) -> str:
        """By which this process reaches it, whatever its name is by then."""
        return f"/proc/self/fd/{self._descriptor}"

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(os.fstat(self._descriptor).st_mode)


class Pin:
    """A bind mount of what a handle is on; undone with its last reference."""

    def __init__(self, handle: Handle, path: str) -> None:
        self.path = path
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if handle.is_directory:
            os.mkdir(path, 0o700)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            _mount(handle.link, path, _MS_BIND | _MS_REC)
            # Else the end of this mount would end those below the source that it is a copy of.
            _mount(None, path, _MS_REC | _MS_PRIVATE)
        except OSError:
            unpin(path)
            raise

    def __del__(self) -> None:
        unpin(self.path)


def unpin(path: str) -> None:
    """Undo the mount, then remove its place: the kernel removes none that something is mounted on."""
    _libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW)
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            os.rmdir(path)
        else:
            os.unlink(path)


def pins_of(mark: str) -> str:
    """The directory for those of one keeper."""
    return f"{PINS}/{mark[:12]}"


def unpin_all(mark: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(pins_of(mark)):
            unpin(f"{pins_of(mark)}/{name}")
        os.rmdir(pins_of(mark))


def open_source(path: str) -> Handle:
    """Raises OSError if there is no such thing.

    Links are followed by their text, one by one. The kernel would follow those of /proc to wherever a process
    is, into other mount namespaces too, where `place` says nothing about what is there.
    """
    at = os.open("/", _HANDLE)
    left = path.split("/")[::-1]
    links = 0
    try:
        while left:
            if (part := left.pop()) in ("", "."):
                continue
            found = os.open(part, _HANDLE, dir_fd=at)
            text = _text_of_link(found)
            if text is None:
                os.close(at)
                at = found
                continue
            links += 1
            if links > LINKS_MOST:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if text.startswith("/"):
                os.close(at)
                at = os.open("/", _HANDLE)
            left += text.split("/")[::-1]
    except BaseException:
        os.close(at)
        raise
    return Handle(at)


def _text_of_link(descriptor: int) -> str | None:
    """None, and left open, if it is no link."""
    if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
        return None
    try:
        return os.readlink("", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _mount(source: str | None, target: str, flags: int) -> None:
    said = None if source is None else os.fsencode(source)
    if _libc.mount(said, os.fsencode(target), None, ctypes.c_ulong(flags), None):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)
