"""The commits of whoever leads, one after the other, by a watch: everything once, then what changes. [I/O]"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import groupby
from typing import NamedTuple

from rota.model.errors import StaleState, Unavailable
from rota.store.etcd import batches, layout
from rota.store.etcd.client import Compacted, EtcdClient
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout
from rota.store.etcd.reader import EtcdReader
from rota.store.protocol import CommitChange, Snapshot


class SharedChange(NamedTuple):
    """What servers share beside records has changed; None: it is no more."""

    name: str
    value: bytes | None


WatchStep = Snapshot | CommitChange | SharedChange
WrittenKeys = dict[bytes, bytes | None]


class CommitWatch:
    def __init__(self, client: EtcdClient, keys: Layout, reader: EtcdReader) -> None:
        self._client = client
        self._keys = keys
        self._reader = reader
        self._etcd_revision = 0  # up to this revision of etcd all was heard; 0: nothing was read yet
        self._revision = 0
        self.large: dict[str, str] = {}  # by record: the name of its pieces

    async def steps(self) -> AsyncGenerator[WatchStep, None]:
        """Until etcd hangs up, which is `Unavailable`: asked again it goes on from where it stood.

        Where history has a gap, because it was compacted or restored, everything is read again.
        """
        try:
            if not self._etcd_revision:
                yield await self._read_snapshot()
            everything = self._keys.prefix
            create = pb.WatchCreateRequest(
                key=everything,
                range_end=layout.prefix_end(everything),
                start_revision=self._etcd_revision + 1,
            )
            async with aclosing(self._client.watch(create)) as responses:
                async for response in responses:
                    _check(response)
                    for at, written in _transactions(response.events):
                        steps = await self._parse_transaction(at, written)
                        self._etcd_revision = at
                        for step in steps:
                            yield step
        except (Compacted, StaleState):
            self._etcd_revision = 0
            raise

    async def _read_snapshot(self) -> Snapshot:
        state = await self._reader.read_state()
        kept = await self._reader.read(state)
        self._etcd_revision, self._revision, self.large = state.etcd_revision, state.revision, kept.large
        return kept.snapshot

    async def _parse_transaction(self, at: int, written: WrittenKeys) -> list[WatchStep]:
        """Records that are written without a revision are put in their places only: they were told before."""
        shared = self._keys.shared
        steps: list[WatchStep] = [
            SharedChange(place[len(shared) :].decode(), value)
            for place, value in written.items()
            if place.startswith(shared)
        ]
        if written.get(self._keys.revision) is not None:
            steps.append(await self._change(at, written))
        return steps

    async def _change(self, at: int, written: WrittenKeys) -> CommitChange:
        revision = int(written[self._keys.revision] or 0)
        if revision != self._revision + 1:
            raise StaleState(f"revision {revision} was heard of after {self._revision}")
        marker = written.get(self._keys.pending)
        if marker is not None:
            written |= dict(await self._reader.read_staged(batches.decode_pending(marker), at))
        change = CommitChange(
            revision,
            batches.decode_head(written[self._keys.head] or b"").time_ms,
            await self._puts(at, written),
            [self._reader.record_key(place) for place in self._deleted(written)],
            _joined(value for place, value in written.items() if place.startswith(self._keys.events)),
        )
        self._revision = revision
        return change

    async def _puts(self, at: int, written: WrittenKeys) -> list[tuple[str, bytes]]:
        puts: list[tuple[str, bytes]] = []
        for place, value in self._reader.filter_records(written).items():
            key = self._reader.record_key(place)
            self.large.pop(key, None)
            if value is None:
                continue
            if value[:1] == batches.IN_PIECES:
                self.large[key] = name = value[1:].decode()
                puts.append((key, await self._reader.read_pieces(name, at)))
            else:
                puts.append((key, value[1:]))
        return puts

    def _deleted(self, written: WrittenKeys) -> Iterator[bytes]:
        return (place for place, value in self._reader.filter_records(written).items() if value is None)


def _check(response: pb.WatchResponse) -> None:
    if response.compact_revision:
        raise Compacted("what was to be heard is no longer kept")
    if response.canceled:
        raise Unavailable("etcd ended a watch")


def _transactions(events: Iterable[pb.Event]) -> Iterator[tuple[int, WrittenKeys]]:
    """What each wrote: etcd tells all of a transaction at once, with its revision."""
    for at, together in groupby(events, key=lambda event: int(event.kv.mod_revision)):
        yield (
            at,
            {event.kv.key: None if event.type == pb.Event.DELETE else event.kv.value for event in together},
        )


def _joined(parts: Iterable[bytes | None]) -> bytes | None:
    """The row of a commit; parts stand in their order."""
    whole = b"".join(part for part in parts if part is not None)
    return whole or None
