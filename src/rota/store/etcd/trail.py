"""The commits of whoever leads, one after the other, by a watch: everything once, then what changes. [I/O]"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import groupby
from typing import NamedTuple

from rota.model.errors import Outdated, Unavailable
from rota.store.etcd import layout, packing
from rota.store.etcd.client import Client, Compacted
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout
from rota.store.etcd.reading import Reader
from rota.store.protocol import Change, Snapshot


class Notice(NamedTuple):
    """What servers share beside records has changed; None: it is no more."""

    name: str
    value: bytes | None


Step = Snapshot | Change | Notice
Written = dict[bytes, bytes | None]


class Trail:
    def __init__(self, client: Client, keys: Layout, reader: Reader) -> None:
        self._client = client
        self._keys = keys
        self._reader = reader
        self._at = 0  # up to this revision of etcd all was heard; 0: nothing was read yet
        self._revision = 0
        self.large: dict[str, str] = {}  # by record: the name of its pieces

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Until etcd hangs up, which is `Unavailable`: asked again it goes on from where it stood.

        Where history has a gap, because it was compacted or restored, everything is read again.
        """
        try:
            if not self._at:
                yield await self._begin()
            everything = self._keys.prefix
            create = pb.WatchCreateRequest(
                key=everything, range_end=layout.past(everything), start_revision=self._at + 1
            )
            async with aclosing(self._client.watch(create)) as responses:
                async for response in responses:
                    _check(response)
                    for at, written in _transactions(response.events):
                        steps = await self._steps_of(at, written)
                        self._at = at
                        for step in steps:
                            yield step
        except (Compacted, Outdated):
            self._at = 0
            raise

    async def _begin(self) -> Snapshot:
        state = await self._reader.look()
        kept = await self._reader.read(state)
        self._at, self._revision, self.large = state.at, state.revision, kept.large
        return kept.snapshot

    async def _steps_of(self, at: int, written: Written) -> list[Step]:
        """Records that are written without a revision are put in their places only: they were told before."""
        shared = self._keys.shared
        steps: list[Step] = [
            Notice(place[len(shared) :].decode(), value)
            for place, value in written.items()
            if place.startswith(shared)
        ]
        if written.get(self._keys.revision) is not None:
            steps.append(await self._change(at, written))
        return steps

    async def _change(self, at: int, written: Written) -> Change:
        revision = int(written[self._keys.revision] or 0)
        if revision != self._revision + 1:
            raise Outdated(f"revision {revision} was heard of after {self._revision}")
        marker = written.get(self._keys.pending)
        if marker is not None:
            written |= dict(await self._reader.staged_writes(packing.pending(marker), at))
        change = Change(
            revision,
            packing.head(written[self._keys.head] or b"").time_ms,
            await self._puts(at, written),
            [self._reader.key_of(place) for place in self._deleted(written)],
            _joined(value for place, value in written.items() if place.startswith(self._keys.events)),
        )
        self._revision = revision
        return change

    async def _puts(self, at: int, written: Written) -> list[tuple[str, bytes]]:
        puts: list[tuple[str, bytes]] = []
        for place, value in self._reader.records_among(written).items():
            key = self._reader.key_of(place)
            self.large.pop(key, None)
            if value is None:
                continue
            if value[:1] == packing.IN_PIECES:
                self.large[key] = name = value[1:].decode()
                puts.append((key, await self._reader.pieces_of(name, at)))
            else:
                puts.append((key, value[1:]))
        return puts

    def _deleted(self, written: Written) -> Iterator[bytes]:
        return (place for place, value in self._reader.records_among(written).items() if value is None)


def _check(response: pb.WatchResponse) -> None:
    if response.compact_revision:
        raise Compacted("what was to be heard is no longer kept")
    if response.canceled:
        raise Unavailable("etcd ended a watch")


def _transactions(events: Iterable[pb.Event]) -> Iterator[tuple[int, Written]]:
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
