"""The keys of etcd at one of its revisions -> records, as the last commit left them. [I/O]"""

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from rota.model.errors import Unavailable
from rota.store.etcd import batches, layout
from rota.store.etcd.batches import Pending, Write
from rota.store.etcd.client import EtcdClient
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout
from rota.store.etcd.state import State, parse_state, state_reads
from rota.store.protocol import Snapshot

_PAGE = 1000


class StoredSnapshot(NamedTuple):
    snapshot: Snapshot
    large: dict[str, str]  # by record: the name of its pieces


class EtcdReader:
    def __init__(self, client: EtcdClient, keys: Layout) -> None:
        self._client = client
        self._keys = keys

    async def read_state(self, timeout_seconds: float | None = None) -> State:
        # One transaction for all keys, so that the state is of a single revision of etcd.
        request = pb.TxnRequest(success=state_reads(self._keys))
        return parse_state(await self._client.read_transaction(request, timeout_seconds))

    async def read(self, state: State) -> StoredSnapshot:
        """All records at the revision of that state."""
        stored: dict[bytes, bytes | None] = {}
        async for kv in self.scan(self._keys.records, None, state.etcd_revision):
            stored[kv.key] = kv.value
        if state.pending is not None:  # a durable commit that is not in place yet lies over the records
            stored |= self.filter_records(await self.read_staged(state.pending, state.etcd_revision))
        pieces: dict[str, list[bytes]] = {}
        async for kv in self.scan(self._keys.pieces, None, state.etcd_revision):
            name = kv.key[len(self._keys.pieces) :].decode().rpartition("/")[0]
            pieces.setdefault(name, []).append(kv.value)
        records: dict[str, bytes] = {}
        large: dict[str, str] = {}
        for place, value in stored.items():
            key = self.record_key(place)
            if value is None:
                continue
            if value[:1] == batches.WHOLE:
                records[key] = value[1:]
            else:
                large[key] = name = value[1:].decode()
                # Invariant: pieces are written before the record that names them.
                if name not in pieces:
                    raise Unavailable(f"etcd lacks the pieces of {key}")
                records[key] = b"".join(pieces[name])
        return StoredSnapshot(Snapshot(state.revision, state.epoch, state.head.time_ms, records), large)

    def filter_records(self, writes: Mapping[bytes, bytes | None] | list[Write]) -> dict[bytes, bytes | None]:
        return {place: value for place, value in dict(writes).items() if place.startswith(self._keys.records)}

    def record_key(self, place: bytes) -> str:
        return place[len(self._keys.records) :].decode()

    async def read_pieces(self, name: str, at: int) -> bytes:
        parts = [kv.value async for kv in self.scan(self._keys.pieces_prefix(name), None, at)]
        if not parts:
            raise Unavailable(f"etcd lacks the pieces {name}")
        return b"".join(parts)

    async def read_staged(self, pending: Pending, at: int) -> list[Write]:
        parts = [kv.value async for kv in self.scan(self._keys.staged_prefix(pending.mark), None, at)]
        # Invariant: all parts are written before `pending`, so
        # a reader at one revision finds all of them or none.
        if len(parts) != pending.parts:
            raise Unavailable(f"etcd holds {len(parts)} of the {pending.parts} parts of a commit")
        return batches.decode_staged(parts)

    async def scan(
        self, first: bytes, end: bytes | None, at: int = 0, *, keys_only: bool = False
    ) -> AsyncIterator[pb.KeyValue]:
        """Keys of a range at one revision of etcd, page by page; no end: all keys with the prefix `first`."""
        end = layout.prefix_end(first) if end is None else end
        while True:
            page = await self._client.range(
                pb.RangeRequest(key=first, range_end=end, limit=_PAGE, revision=at, keys_only=keys_only)
            )
            for kv in page.kvs:
                yield kv
            if not page.more:
                return
            at = at or page.header.revision  # later pages at the revision of the first: a consistent read
            first = page.kvs[-1].key + b"\0"
