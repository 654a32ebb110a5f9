"""Files sent with a job -> its working directory, before the first start and never through a link."""

import contextlib
import os
from base64 import b64decode
from collections.abc import Mapping

OPEN_DIRECTORY = os.O_DIRECTORY | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def write_files(directory: str, files: Mapping[str, str]) -> None:
    """Write files for the directory's owner, each atomically. Existing files stay: tasks may change them."""
    if not files:
        return
    root_fd = os.open(directory, OPEN_DIRECTORY)
    try:
        for path, content in files.items():
            _write_below(root_fd, path, b64decode(content))
    finally:
        os.close(root_fd)


def write_secret(directory: str, name: str, content: bytes, beside: str) -> None:
    """Write a read-only file for the owner of the directory `beside`, which is below `directory`."""
    with contextlib.ExitStack() as opened:
        root_fd = os.open(directory, OPEN_DIRECTORY)
        opened.callback(os.close, root_fd)
        owner_fd = os.open(beside, OPEN_DIRECTORY, dir_fd=root_fd)
        opened.callback(os.close, owner_fd)
        _write(root_fd, name, content, owner_fd, mode=0o400)


def _write_below(root_fd: int, path: str, content: bytes) -> None:
    *parents, name = path.split("/")
    with contextlib.ExitStack() as opened:
        at_fd = root_fd
        for parent in parents:
            # Through descriptors without following links: a task
            # could replace a directory by a link meanwhile.
            at_fd = _enter(at_fd, parent)
            opened.callback(os.close, at_fd)
        _write(at_fd, name, content, at_fd)


def _enter(at_fd: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=at_fd)
    inner_fd = os.open(name, OPEN_DIRECTORY, dir_fd=at_fd)
    _give_to_owner(inner_fd, at_fd)
    return inner_fd


def _write(at_fd: int, name: str, content: bytes, owner_fd: int, mode: int | None = None) -> None:
    # A task may have changed its file, or be writing it: it is never overwritten.
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=at_fd, follow_symlinks=False)
        return
    is_script = content.startswith((b"#!", b"\x7fELF"))
    partial = f".{os.urandom(8).hex()}.rota"  # random: several threads may write the same file
    fd = os.open(partial, OPEN_NEW, 0o600, dir_fd=at_fd)
    try:
        written = 0
        while written < len(content):
            written += os.write(fd, content[written:])
        os.fchmod(fd, mode if mode is not None else 0o700 if is_script else 0o600)
        # Owner and mode are set before the rename, so that a task never sees the file with others.
        _give_to_owner(fd, owner_fd)
        os.rename(partial, name, src_dir_fd=at_fd, dst_dir_fd=at_fd)
    except OSError:
        os.unlink(partial, dir_fd=at_fd)
        raise
    finally:
        os.close(fd)


def _give_to_owner(fd: int, directory_fd: int) -> None:
    """Give a file to the owner of the directory, which may be another user than the keeper's."""
    owner, mine = os.fstat(directory_fd), os.fstat(fd)
    if (owner.st_uid, owner.st_gid) != (mine.st_uid, mine.st_gid):
        os.fchown(fd, owner.st_uid, owner.st_gid)
