"""What etcd holds at one of its revisions -> records, as the last commit left them. [I/O]"""

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from rota.model.errors import Unavailable
from rota.store.etcd import layout, packing
from rota.store.etcd.client import Client
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout
from rota.store.etcd.packing import Pending, Write
from rota.store.etcd.state import State, looks, state_of
from rota.store.protocol import Snapshot

_PAGE = 1000


class Kept(NamedTuple):
    snapshot: Snapshot
    large: dict[str, str]  # by record: the name of its pieces


class Reader:
    def __init__(self, client: Client, keys: Layout) -> None:
        self._client = client
        self._keys = keys

    async def look(self, patience_seconds: float | None = None) -> State:
        request = pb.TxnRequest(success=looks(self._keys))
        return state_of(await self._client.look(request, patience_seconds))

    async def read(self, state: State) -> Kept:
        """Everything, as of then."""
        kept: dict[bytes, bytes | None] = {}
        async for kv in self.between(self._keys.records, None, state.at):
            kept[kv.key] = kv.value
        if state.pending is not None:
            kept |= self.records_among(await self.staged_writes(state.pending, state.at))
        pieces: dict[str, list[bytes]] = {}
        async for kv in self.between(self._keys.pieces, None, state.at):
            name = kv.key[len(self._keys.pieces) :].decode().rpartition("/")[0]
            pieces.setdefault(name, []).append(kv.value)
        records: dict[str, bytes] = {}
        large: dict[str, str] = {}
        for place, value in kept.items():
            key = self.key_of(place)
            if value is None:
                continue
            if value[:1] == packing.WHOLE:
                records[key] = value[1:]
            else:
                large[key] = name = value[1:].decode()
                if name not in pieces:
                    raise Unavailable(f"etcd lacks the pieces of {key}")
                records[key] = b"".join(pieces[name])
        return Kept(Snapshot(state.revision, state.epoch, state.head.time_ms, records), large)

    def records_among(self, writes: Mapping[bytes, bytes | None] | list[Write]) -> dict[bytes, bytes | None]:
        return {place: value for place, value in dict(writes).items() if place.startswith(self._keys.records)}

    def key_of(self, place: bytes) -> str:
        return place[len(self._keys.records) :].decode()

    async def pieces_of(self, name: str, at: int) -> bytes:
        parts = [kv.value async for kv in self.between(self._keys.pieces_of(name), None, at)]
        if not parts:
            raise Unavailable(f"etcd lacks the pieces {name}")
        return b"".join(parts)

    async def staged_writes(self, pending: Pending, at: int) -> list[Write]:
        parts = [kv.value async for kv in self.between(self._keys.staged_by(pending.mark), None, at)]
        if len(parts) != pending.parts:
            raise Unavailable(f"etcd holds {len(parts)} of the {pending.parts} parts of a commit")
        return packing.unstaged(parts)

    async def between(
        self, first: bytes, end: bytes | None, at: int = 0, *, keys_only: bool = False
    ) -> AsyncIterator[pb.KeyValue]:
        """Everything there at one revision of etcd, in pages; no end: all that begins with `first`."""
        end = layout.past(first) if end is None else end
        while True:
            page = await self._client.range(
                pb.RangeRequest(key=first, range_end=end, limit=_PAGE, revision=at, keys_only=keys_only)
            )
            for kv in page.kvs:
                yield kv
            if not page.more:
                return
            at = at or page.header.revision
            first = page.kvs[-1].key + b"\0"
