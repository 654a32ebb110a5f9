"""Backup file of a store: everything at one revision, in a format that any store can be restored from.

A line that names the format, then frames: length, CRC-32, and a kind with its content as msgpack. The first
frame is the header. The last one has the number of frames and the SHA-256 of all bytes before it, so that a
truncated file is detected.
"""

import hashlib
import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import msgspec

from rota.model.errors import Damaged
from rota.store.protocol import EventRow, Snapshot, Store

MAGIC = b"rota backup 1\n"
_FRAME = struct.Struct("<II")
_FRAME_BYTES_MAX = 256 << 20  # above the largest record: more is a damaged length
_PART_BYTES = 1 << 20  # of records that share a frame
_EVENT_ROWS = 500
_DECODER = msgspec.msgpack.Decoder(tuple[str, Any])


class BackupHeader(msgspec.Struct, frozen=True):
    """The revision and time of a backup, and the program that made it."""

    revision: int
    epoch: int
    time_ms: int
    taken_at_ms: int = 0  # wall clock
    store: str = ""
    version: str = ""  # of Rota


class Backup(NamedTuple):
    header: BackupHeader
    records: dict[str, bytes]
    events: list[EventRow]
    files: dict[str, bytes]  # by path below the data directory: the keys of the cluster, its tokens

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.header.revision, self.header.epoch, self.header.time_ms, self.records)


class BackupOrigin(NamedTuple):
    """What a backup contains beside the contents of the store."""

    wall_ms: int
    version: str
    files: Mapping[str, bytes]


async def stream(store: Store, origin: BackupOrigin) -> AsyncIterator[bytes]:
    """The backup file in chunks; all of it is at one revision, whatever is committed meanwhile."""
    # One snapshot in memory: a cursor over a changing store would mix records of several revisions.
    snapshot = await store.read()
    frames = _Frames()
    head = BackupHeader(*snapshot[:3], origin.wall_ms, store.name, origin.version)
    yield frames.start(head)
    for part in _parts(snapshot.records):
        yield frames.add("records", part)
    after = 0
    # Events of commits after the snapshot are left out, to match the records.
    while rows := [
        row for row in await store.events(after, _EVENT_ROWS) if row.revision <= snapshot.revision
    ]:
        yield frames.add("events", rows)
        after = rows[-1].revision
    yield frames.add("files", origin.files)
    yield frames.end()


def read(file: BinaryIO, name: str) -> Backup:
    """Read a backup. Raises Damaged unless it is complete and every byte is as it was written."""
    frames = _frames(file, name)
    kind, first = next(frames)
    if kind != "head":
        raise damaged(name, "it does not begin with a header")
    head = msgspec.convert(first, BackupHeader)
    records: dict[str, bytes] = {}
    events: list[EventRow] = []
    files: dict[str, bytes] = {}
    for kind, content in frames:
        match kind:
            case "records":
                records.update(content)
            case "events":
                events += [EventRow(*row) for row in content]
            case "files":
                files.update(content)
            case _:
                raise damaged(
                    name, f"it holds {kind!r}, which this program does not know: a newer Rota wrote it"
                )
    return Backup(head, records, events, files)


def damaged(name: str, what: str) -> Damaged:
    return Damaged(f"{name} cannot be used: {what}", hint="take another backup")


class _Frames:
    def __init__(self) -> None:
        self._count = 0
        self._digest = hashlib.sha256()

    def start(self, head: BackupHeader) -> bytes:
        self._digest.update(MAGIC)
        return MAGIC + self.add("head", head)

    def add(self, kind: str, content: Any) -> bytes:
        text = msgspec.msgpack.encode((kind, content))
        frame = _FRAME.pack(len(text), zlib.crc32(text)) + text
        self._digest.update(frame)
        self._count += 1
        return frame

    def end(self) -> bytes:
        # The digest comes last, so that a file cut off at a frame boundary is still detected.
        return self.add("end", (self._count, self._digest.digest()))


def _parts(records: Mapping[str, bytes]) -> Iterator[list[tuple[str, bytes]]]:
    part: list[tuple[str, bytes]] = []
    size = 0
    for key, value in records.items():
        part.append((key, value))
        size += len(key) + len(value)
        if size > _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _frames(file: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Frames of a file, checked; raises Damaged if the end frame is missing or does not match."""
    if file.read(len(MAGIC)) != MAGIC:
        raise damaged(name, "it is no backup of Rota, or of a newer one")
    digest = hashlib.sha256(MAGIC)
    count = 0
    while True:
        frame = file.read(_FRAME.size)
        if len(frame) < _FRAME.size:
            raise damaged(name, "it is cut off")
        length, checksum = _FRAME.unpack(frame)
        text = file.read(length) if length <= _FRAME_BYTES_MAX else b""
        if len(text) < length:
            raise damaged(name, "it is cut off")
        if zlib.crc32(text) != checksum:
            raise damaged(name, f"its part {count + 1} is not what was written")
        kind, content = _DECODER.decode(text)
        if kind == "end":
            if content != [count, digest.digest()] or file.read(1):
                raise damaged(name, "it is not as it was written")
            return
        digest.update(frame + text)
        count += 1
        yield kind, content
