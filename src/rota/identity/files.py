"""Private files: only the owner can read them, and after a crash each is either old or new, never partial."""

import fcntl
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rota.identity.errors import Unsafe

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
OPEN_TO_OTHERS = 0o077
SHOWN_TO_OTHERS = 0o066  # passing through a directory (x) shows nothing of it


def own_directory(path: Path) -> None:
    """Make `path` a directory that only its owner can read. Raises Unsafe."""
    make_directory(path)
    mode = path.stat().st_mode
    if mode & stat.S_ISVTX:
        raise Unsafe(f"{path} is shared with other users (sticky bit); name a directory of its own")
    if mode & SHOWN_TO_OTHERS:
        path.chmod(PRIVATE_DIRECTORY)


def make_directory(path: Path) -> None:
    """Create `path` as a private directory; an existing one is left as it is."""
    if path.is_dir():
        return
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    # The directory itself must survive a power failure before a file in it is reported as stored.
    with _directory_handle(path.parent) as parent:
        os.fsync(parent)


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` atomically; durable on return. A symlink at `path` is replaced, not followed."""
    temporary = f".{path.name}.{secrets.token_hex(8)}.new"
    with _directory_handle(path.parent) as directory:
        try:
            _write_new(temporary, content, directory)
            os.replace(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
        os.fsync(directory)  # or a crash could undo the rename


def read_private(path: Path, limit_bytes: int) -> bytes:
    with open(path, "rb", opener=_open_without_waiting) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise Unsafe(f"{path} is not a regular file")
        if mode & OPEN_TO_OTHERS:
            fix = f"chmod 600 {shlex.quote(str(path))}"
            raise Unsafe(f"{path} is open to other users (mode {stat.S_IMODE(mode):04o}); fix it with: {fix}")
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise Unsafe(f"{path} is larger than {limit_bytes} bytes, more than such a file can have")
    return content


@contextmanager
def locked(directory: Path, name: str) -> Iterator[None]:
    """Exclusive lock, across threads and processes, on the files `name.*` in `directory`."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(directory / f".{name}.lock", flags, PRIVATE_FILE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under the lock no one else writes, so a temporary file is left from a crash. It may hold a key.
        for leftover in directory.glob(f".{name}.*.new"):
            leftover.unlink()
        yield
    finally:
        os.close(lock)


def _write_new(name: str, content: bytes, directory: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, PRIVATE_FILE, dir_fd=directory)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        # Before the rename: a crash in between must not leave the final name without its content.
        os.fsync(descriptor)


def _open_without_waiting(path: str, flags: int) -> int:
    # Opening a named pipe here would otherwise block until another process writes to it.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


@contextmanager
def _directory_handle(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
