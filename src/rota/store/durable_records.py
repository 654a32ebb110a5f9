"""A file of records that survive a restart of the memory store: appended, synced, rewritten at each start."""

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rota.model.errors import Damaged, StoreFull, Unavailable


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One line of the file: the changes of one commit."""

    time_ms: int  # cluster time of the commit
    puts: dict[str, bytes]
    deletes: list[str]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Entry)


class DurableRecords:
    """Records by key, equal to the content of the file, which is created with the first record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.records: dict[str, bytes] = {}
        self.time_ms = 0  # cluster time of the last commit that changed them
        self._read()

    def write(self, time_ms: int, puts: Mapping[str, bytes], deletes: Sequence[str]) -> None:
        """Apply a change; durable on return. Raises StoreFull or Unavailable, and then nothing is changed."""
        line = _line(_Entry(time_ms, dict(puts), list(deletes)))
        try:
            # The first write after a start compacts the file. That
            # also drops bytes that a crash had torn at its end.
            if self._fd < 0:
                self._rewrite()
            self._append(line)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise StoreFull(f"the disk of {self._path} is full") from error
            raise Unavailable(f"{self._path}: {error.strerror}") from error
        # After the append: if that raised, memory must equal the file, which was truncated back.
        self._apply(_Entry(time_ms, dict(puts), list(deletes)))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for number, line in enumerate(lines[:-1], 1):  # bytes after the last newline were torn by a crash
            try:
                self._apply(_DECODER.decode(line))
            except msgspec.DecodeError as error:
                hint = f"restore {self._path.name} from a backup, or remove it: then all nodes join again"
                raise Damaged(f"line {number} of {self._path} cannot be read: {error}", hint=hint) from error

    def _apply(self, entry: _Entry) -> None:
        self.time_ms = entry.time_ms
        self.records.update(entry.puts)
        for key in entry.deletes:
            self.records.pop(key, None)

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._fd).st_size
        try:
            # A short write means a full disk. It is undone below,
            # because the rest could not be appended safely later.
            if os.write(self._fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # fdatasync is enough: it includes the file size,
            # without which the appended data could not be read.
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, size)  # a partial line would corrupt the next one
            raise

    def _rewrite(self) -> None:
        """Compact the file into one line, and open it for appending."""
        partial = self._path.with_suffix(".new")
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        text = _line(_Entry(self.time_ms, self.records, []))
        try:
            if os.write(fd, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Ordering: content first, then the rename, then the
            # directory. A crash at any point leaves one whole file.
            os.fsync(fd)
            partial.replace(self._path)
            _sync_directory(self._path.parent)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd


def _line(entry: _Entry) -> bytes:
    return _ENCODER.encode(entry) + b"\n"


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
