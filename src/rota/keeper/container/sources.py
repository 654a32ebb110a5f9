"""Mount sources of containers, resolved and pinned so that they cannot be replaced. [I/O]

Race: a runtime mounts long after the keeper has checked the policy, and a user that can write to a directory
on the way could put a link there in between. So a root keeper opens the source, checks the path of the
opened file or directory, and bind-mounts it to a place that only root can change (a *pin*); podman gets that
place. It cannot get /proc/PID/fd/N: the kernel does not bind-mount from another mount namespace, and a
container has its own.

Pins are below /run and not in the keeper's directory: deleting that directory would delete the sources
through them. A keeper that is killed leaves its pins to the next keeper of its directory.
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
    """An O_PATH descriptor, closed with its last reference."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def place(self) -> str:
        """Its current path, without links."""
        return os.readlink(self.link)

    @property
    def link(self) -> str:
        """A path by which this process reaches it, also after a rename."""
        return f"/proc/self/fd/{self._descriptor}"

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(os.fstat(self._descriptor).st_mode)


class Pin:
    """A bind mount of a handle's file or directory; unmounted with its last reference."""

    def __init__(self, handle: Handle, path: str) -> None:
        self.path = path
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if handle.is_directory:
            os.mkdir(path, 0o700)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            _mount(handle.link, path, _MS_BIND | _MS_REC)
            # Otherwise unmounting the copy would propagate to the mounts below the source.
            _mount(None, path, _MS_REC | _MS_PRIVATE)
        except OSError:
            unpin(path)
            raise

    def __del__(self) -> None:
        unpin(self.path)


def unpin(path: str) -> None:
    """Unmount a pin, then remove its mount point."""
    _libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW)
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            os.rmdir(path)
        else:
            os.unlink(path)


def pins_of(mark: str) -> str:
    """The directory of a keeper's pins."""
    return f"{PINS}/{mark[:12]}"


def unpin_all(mark: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(pins_of(mark)):
            unpin(f"{pins_of(mark)}/{name}")
        os.rmdir(pins_of(mark))


def open_source(path: str) -> Handle:
    """Open a path, resolving links one by one by their text; OSError if it does not exist.

    The kernel would follow links of /proc into other mount namespaces, where a path means something else.
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
    """The target of a link, whose descriptor is closed; None: not a link, and it is left open."""
    if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
        return None
    try:
        return os.readlink("", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _mount(source: str | None, target: str, flags: int) -> None:
    encoded = None if source is None else os.fsencode(source)
    if _libc.mount(encoded, os.fsencode(target), None, ctypes.c_ulong(flags), None):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)
