"""Files in a task's output directory, as a list or a tar archive, without following links. [I/O]

The agent may be root and able to read everything. So a file counts only if it belongs to the user that the
directory was given to: a file of another user may be a hard link to something the task could not read.
"""

import asyncio
import contextlib
import errno
import json
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from rota.keeper.protocol.result_endpoint import OUT
from rota.keeper.task_dirs import PLACE
from rota.wire.agent import DONE
from rota.wire.generated import agent_pb2 as pb

_CHUNK_BYTES = 256 * 1024
_FILES_MAX = 100_000  # per directory: each file costs a call to open it
_DEPTH_MAX = 32
_BENEATH = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_END = bytes(2 * tarfile.BLOCKSIZE)


class _OutputsRefused(Exception):
    """The request cannot be answered: the reason, and the code of the error for the API."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class NotItsOwn(PermissionError):
    """The file is not a regular one, or belongs to another user: the task could not have read it itself."""


class _OutputFile(NamedTuple):
    path: str
    found: os.stat_result


async def read(root: Path, request: pb.OpenOutputs, most_bytes: int) -> AsyncIterator[pb.LogChunk]:
    """Yield the list or archive in chunks. An empty first chunk tells the server that the request arrived."""
    yield pb.LogChunk(id=request.id)
    chunks = _chunks(root, request, most_bytes)
    try:
        while data := await asyncio.to_thread(next, chunks, b""):
            yield pb.LogChunk(id=request.id, data=data)
        yield pb.LogChunk(id=request.id, code=DONE)
    except _OutputsRefused as refused:
        yield pb.LogChunk(id=request.id, error=str(refused), code=refused.code)
    except OSError as error:
        yield pb.LogChunk(id=request.id, error=f"cannot be read: {error.strerror}", code="unavailable")


def listed(root: Path, job: str, index: int) -> list[tuple[str, int]]:
    """The paths and sizes of a task's output files; empty if they cannot be read."""
    try:
        top_fd = _open_top(root, job, index)
        if top_fd is None:
            return []
        try:
            return [(file.path, file.found.st_size) for file in _walk(top_fd, os.fstat(top_fd).st_uid)]
        finally:
            os.close(top_fd)
    except (_OutputsRefused, OSError):
        return []


@contextlib.contextmanager
def open_directory_beneath(directory: Path, name: str) -> Iterator[int]:
    """Open a directory below another one without following links."""
    top_fd = os.open(directory, _BENEATH)
    try:
        fd = os.open(name, _BENEATH, dir_fd=top_fd)
    finally:
        os.close(top_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _chunks(root: Path, request: pb.OpenOutputs, most_bytes: int) -> Iterator[bytes]:
    with contextlib.ExitStack() as opened:
        top_fd = _open_top(root, request.job, request.index)
        if top_fd is None:
            files, owner = _chosen([], list(request.paths)), -1
        else:
            opened.callback(os.close, top_fd)
            owner = os.fstat(top_fd).st_uid
            files = _chosen(list(_walk(top_fd, owner)), list(request.paths))
        if request.list:
            yield "".join(map(_line, files)).encode()
            return
        total = sum(file.found.st_size for file in files)
        if total > most_bytes:
            problem = f"the outputs are {total} bytes, and this node sends at most {most_bytes}"
            raise _OutputsRefused(
                "conflict", f"{problem} at once: name some of them, or raise its output_bytes"
            )
        for file in files:
            assert top_fd is not None
            yield from _archived(top_fd, file, owner)
        yield _END


def _open_top(root: Path, job: str, index: int) -> int | None:
    """Open the output directory of a task; None: it has none, because its directory was reused."""
    tasks = root / PLACE / job
    if not job.isdecimal() or not tasks.is_dir():
        raise _OutputsRefused("not_found", "the outputs are no longer on the node")
    try:
        return os.open(tasks / str(index) / OUT, _BENEATH)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise _OutputsRefused("not_found", "the outputs are no longer on the node") from None


def _walk(directory_fd: int, owner: int, above: str = "", depth: int = 0) -> Iterator[_OutputFile]:
    """Yield regular files of the owner in order of their names; links, pipes and the like are skipped."""
    if depth > _DEPTH_MAX:
        raise _OutputsRefused("conflict", f"the outputs are nested more than {_DEPTH_MAX} directories deep")
    for count, name in enumerate(sorted(os.listdir(directory_fd))):
        if count > _FILES_MAX:
            raise _OutputsRefused(
                "conflict", f"the outputs are more than {_FILES_MAX} files in one directory"
            )
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            found = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and found.st_uid == owner:
                yield _OutputFile(above + name, found)
            elif stat.S_ISDIR(found.st_mode):
                inner_fd = os.open(name, _BENEATH, dir_fd=directory_fd)
                try:
                    yield from _walk(inner_fd, owner, f"{above}{name}/", depth + 1)
                finally:
                    os.close(inner_fd)


def _chosen(files: list[_OutputFile], paths: list[str]) -> list[_OutputFile]:
    """Select files by path, directory or pattern; each of `paths` must match at least one."""
    if not paths:
        return files
    for path in paths:
        if not any(_names(path, file.path) for file in files):
            raise _OutputsRefused("not_found", f"there is no output {path[:200]!r}")
    return [file for file in files if any(_names(path, file.path) for path in paths)]


def _names(path: str, file: str) -> bool:
    return file == path or file.startswith(path.rstrip("/") + "/") or fnmatchcase(file, path)


def _line(file: _OutputFile) -> str:
    modified_at_ms = file.found.st_mtime_ns // 1_000_000
    fields = {"path": file.path, "bytes": file.found.st_size, "modified_at_ms": modified_at_ms}
    return json.dumps(fields, ensure_ascii=True) + "\n"


def _archived(top_fd: int, file: _OutputFile, owner: int) -> Iterator[bytes]:
    """The archive entry of a file with its listed size: a file that grew is cut, one that shrank padded."""
    with _opened(top_fd, file.path, owner) as fd:
        yield from _entry(file, fd)


def _entry(file: _OutputFile, fd: int) -> Iterator[bytes]:
    header = tarfile.TarInfo(file.path)
    header.size, header.mtime = file.found.st_size, file.found.st_mtime
    header.mode = file.found.st_mode & 0o777
    yield header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    left = header.size
    while left:
        data = os.read(fd, min(left, _CHUNK_BYTES)) or bytes(min(left, _CHUNK_BYTES))
        left -= len(data)
        yield data
    if remainder := header.size % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - remainder)


@contextlib.contextmanager
def _opened(top_fd: int, path: str, owner: int) -> Iterator[int]:
    """Open a file by walking its directories one by one, so that no link is followed on the way."""
    *above, name = path.split("/")
    with contextlib.ExitStack() as opened:
        at_fd = top_fd
        for part in above:
            at_fd = os.open(part, _BENEATH, dir_fd=at_fd)
            opened.callback(os.close, at_fd)
        with opened_file(at_fd, name, owner) as fd:
            yield fd


@contextlib.contextmanager
def opened_file(directory_fd: int, name: str, owner: int) -> Iterator[int]:
    """Open a regular file of the owner; raises NotItsOwn for any other.

    Race: the file may have been replaced since it was listed, so the open descriptor is checked.
    """
    fd = os.open(name, FILE, dir_fd=directory_fd)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            raise NotItsOwn(errno.EACCES, os.strerror(errno.EACCES), name)
        yield fd
    finally:
        os.close(fd)
