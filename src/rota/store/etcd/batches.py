"""A batch -> its writes, in transactions within etcd's limits; large values are split into pieces."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from rota.store.etcd import layout
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout
from rota.store.protocol import Batch

FORMAT = 1
OPERATIONS_MAX = 120  # etcd takes 128 unless told otherwise; a commit adds some of its own
BYTES_MAX = 1_000_000  # etcd takes 1.5 MiB unless told otherwise, keys and framing included
PIECE_BYTES = 512 * 1024
WHOLE, IN_PIECES = b"\0", b"\1"

Write = tuple[bytes, bytes | None]  # a key and its value; None: it is deleted


class CommitHead(NamedTuple):
    """Metadata of the last commit; its mark identifies it after a lost answer."""

    format: int = FORMAT
    time_ms: int = 0
    mark: str = ""


class Pending(NamedTuple):
    """A large commit that is durable and not yet in place."""

    mark: str
    parts: int


_HEAD = msgspec.msgpack.Decoder(CommitHead)
_PENDING = msgspec.msgpack.Decoder(Pending)
_WRITES = msgspec.msgpack.Decoder(list[Write])


def encode(value: CommitHead | Pending) -> bytes:
    return msgspec.msgpack.encode(value)


def decode_head(value: bytes) -> CommitHead:
    return _HEAD.decode(value)


def decode_pending(value: bytes) -> Pending:
    return _PENDING.decode(value)


class PackedBatch(NamedTuple):
    """The writes of a batch. `pieces` go first: they have no effect until a record names them."""

    pieces: list[Write]
    writes: list[Write]
    large: dict[str, str]  # by record: the name of its pieces
    freed: list[str]  # names of pieces that no record refers to after this batch


def pack_batch(keys: Layout, batch: Batch, mark: str, large: dict[str, str]) -> PackedBatch:
    """Pack a batch; `large` names the records in pieces so far.

    A transaction of etcd must not contain a key twice; a delete wins over a put.
    """
    packed = PackedBatch([], [], {}, [])
    # One dictionary for both, because etcd rejects a transaction that contains a key twice.
    writes: dict[str, bytes | None] = {**dict(batch.puts), **dict.fromkeys(batch.deletes)}
    for key, value in writes.items():
        if value is None:
            packed.writes.append((keys.record(key), None))
        elif len(value) <= PIECE_BYTES:
            packed.writes.append((keys.record(key), WHOLE + value))
        else:
            packed.large[key] = name = f"{mark}/{len(packed.large)}"
            packed.pieces.extend((keys.piece(name, n), part) for n, part in enumerate(_pieces(value)))
            packed.writes.append((keys.record(key), IN_PIECES + name.encode()))
    packed.freed.extend(large[key] for key in writes if key in large)
    if batch.events is not None:
        packed.writes.extend(event_writes(keys, [(batch.after + 1, batch.wall_ms, batch.events)]))
    return packed


def event_writes(keys: Layout, rows: Iterable[tuple[int, int, bytes]]) -> Iterator[Write]:
    """Writes of event rows, given with their revision and wall clock time."""
    for revision, wall_ms, row in rows:
        for n, part in enumerate(_pieces(row)):
            yield keys.event_part(revision, wall_ms, n), part


def fits(writes: Sequence[Write]) -> bool:
    return len(writes) <= OPERATIONS_MAX and sum(map(_size, writes)) <= BYTES_MAX


def split_writes(writes: Iterable[Write]) -> Iterator[list[Write]]:
    """The writes in portions that fit into one transaction each."""
    portion: list[Write] = []
    size = 0
    for write in writes:
        if portion and (len(portion) == OPERATIONS_MAX or size + _size(write) > BYTES_MAX):
            yield portion
            portion, size = [], 0
        portion.append(write)
        size += _size(write)
    if portion:
        yield portion


def encode_staged(writes: list[Write]) -> list[bytes]:
    """All writes, packed and split into parts."""
    return list(_pieces(msgspec.msgpack.encode(writes)))


def decode_staged(parts: Iterable[bytes]) -> list[Write]:
    return _WRITES.decode(b"".join(parts))


def operations(writes: Iterable[Write]) -> list[pb.RequestOp]:
    return [layout.delete(key) if value is None else layout.put(key, value) for key, value in writes]


def _pieces(value: bytes) -> Iterator[bytes]:
    for start in range(0, max(1, len(value)), PIECE_BYTES):
        yield value[start : start + PIECE_BYTES]


def _size(write: Write) -> int:
    key, value = write
    return len(key) + len(value or b"")
