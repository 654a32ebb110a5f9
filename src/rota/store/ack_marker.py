"""What was acknowledged last, beside the database: whether it has lost commits that somebody relies on.

Written after each commit and not forced to disk: what it says was on disk before, so it is never ahead.
A database that is behind it has lost its end, by a damaged log or by a file that was put in its place.
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
        """Never raises: the commit is on disk, and a mark that stays behind only proves less.

        On a full or copy-on-write file system even writing over an old mark may fail.
        """
        text = _FORM.pack(epoch, revision)
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, text + _SUM.pack(zlib.crc32(text)), 0)

    def close(self) -> None:
        os.close(self._fd)


def _decoded(text: bytes) -> Acknowledged:
    """A mark that is no mark says nothing."""
    form, said = text[: _FORM.size], text[_FORM.size :]
    if len(said) != _SUM.size or zlib.crc32(form) != _SUM.unpack(said)[0]:
        return Acknowledged(0, 0)
    return Acknowledged(*_FORM.unpack(form))
