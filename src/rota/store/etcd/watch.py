"""Watch on the leader's commits for a standby: a snapshot first, then one step per commit. [I/O]"""

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
    """A shared value was written; None: deleted."""

    name: str
    value: bytes | None


WatchStep = Snapshot | CommitChange | SharedChange
WrittenKeys = dict[bytes, bytes | None]


class CommitWatch:
    def __init__(self, client: EtcdClient, keys: Layout, reader: EtcdReader) -> None:
        self._client = client
        self._keys = keys
        self._reader = reader
        self._etcd_revision = 0  # the last revision of etcd that was processed; 0: none yet
        self._revision = 0
        self.large: dict[str, str] = {}  # by record: the name of its pieces

    async def steps(self) -> AsyncGenerator[WatchStep, None]:
        """Steps until etcd ends the watch, which raises `Unavailable`; called again, it resumes.

        If history has a gap, because it was compacted or restored, the next call starts with a snapshot.
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
                        # Advanced before the yield: a resumed watch must not repeat a transaction. A
                        # consumer that was cut off within one starts over from a snapshot.
                        self._etcd_revision = at
                        for step in steps:
                            yield step
        # History has a gap: resuming would replay commits over a state that misses some.
        except (Compacted, StaleState):
            self._etcd_revision = 0
            raise

    async def _read_snapshot(self) -> Snapshot:
        state = await self._reader.read_state()
        stored = await self._reader.read(state)
        self._etcd_revision, self._revision, self.large = state.etcd_revision, state.revision, stored.large
        return stored.snapshot

    async def _parse_transaction(self, at: int, written: WrittenKeys) -> list[WatchStep]:
        """Steps of one transaction of etcd. Records without a new revision belong to an earlier large commit,
        which was a step of its own when it became pending."""
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
        # Invariant: commits are replayed without a gap. A restore or a lost watch event shows here.
        if revision != self._revision + 1:
            raise StaleState(f"revision {revision} came after {self._revision}: a commit is missing")
        marker = written.get(self._keys.pending)
        # A large commit is durable when `pending` appears, before its records are in place.
        if marker is not None:
            # At the revision of the event: the parts are deleted once they are in place.
            written |= dict(await self._reader.read_staged(batches.decode_pending(marker), at))
        change = CommitChange(
            revision,
            batches.decode_head(written[self._keys.head] or b"").time_ms,
            await self._puts(at, written),
            [self._reader.record_key(place) for place in self._deleted(written)],
            _joined(value for place, value in written.items() if place.startswith(self._keys.events)),
        )
        # Last: if reading pieces fails, the commit counts as not seen and is read again.
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
        raise Compacted("the history of the watch was compacted")
    if response.canceled:
        raise Unavailable("etcd ended a watch")


def _transactions(events: Iterable[pb.Event]) -> Iterator[tuple[int, WrittenKeys]]:
    """The writes of each transaction: etcd delivers all of them together, with one revision."""
    for at, together in groupby(events, key=lambda event: int(event.kv.mod_revision)):
        yield (
            at,
            {event.kv.key: None if event.type == pb.Event.DELETE else event.kv.value for event in together},
        )


def _joined(parts: Iterable[bytes | None]) -> bytes | None:
    """The event row of a commit, from its parts in order."""
    row = b"".join(part for part in parts if part is not None)
    return row or None
