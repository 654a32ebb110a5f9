"""The last acknowledged epoch and revision, in a file beside the database: it detects lost commits.

It is written after each commit and not synced. The commit it names was durable before, so the marker is never
ahead of the database. A database that is behind its marker has lost its last commits, by a damaged
write-ahead log or because an older file was put in its place.
"""

import contextlib
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

_FORM = struct.Struct("<QQ")
_SUM = struct.Struct("<I")


class Acknowledged(NamedTuple):
    epoch: int
    revision: int


class AckMarker:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.at_start = _decoded(os.pread(self._fd, _FORM.size + _SUM.size, 0))

    def write(self, epoch: int, revision: int) -> None:
        """Update the marker. Never raises: the commit is durable, and an old marker only detects less.

        On a full or copy-on-write file system even overwriting the file may fail.
        """
        text = _FORM.pack(epoch, revision)
        with contextlib.suppress(OSError):
            # No fsync: the marker guards against a lost database,
            # not against a lost marker; an old one detects less.
            os.pwrite(self._fd, text + _SUM.pack(zlib.crc32(text)), 0)

    def close(self) -> None:
        os.close(self._fd)


def _decoded(text: bytes) -> Acknowledged:
    """The content of a marker; one that is torn or damaged counts as none."""
    form, checksum = text[: _FORM.size], text[_FORM.size :]
    if len(checksum) != _SUM.size or zlib.crc32(form) != _SUM.unpack(checksum)[0]:
        return Acknowledged(0, 0)
    return Acknowledged(*_FORM.unpack(form))
