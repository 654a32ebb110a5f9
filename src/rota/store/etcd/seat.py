"""The leader's key: whoever made it leads, for as long as its lease is renewed. [I/O]"""

import asyncio
import contextlib
import time
from typing import NamedTuple

from rota.model.errors import Deposed, Unavailable
from rota.store.etcd import layout
from rota.store.etcd.client import Client
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout

_LOOK_AGAIN_SECONDS = 1.0  # a watch tells at once; this is for a member that was cut off, without a word


class Holder(NamedTuple):
    """Who leads."""

    epoch: int
    card: bytes  # what it wrote down of itself
    lease: int
    at: int  # etcd's revision, then


class Seat:
    def __init__(self, client: Client, keys: Layout, ttl_seconds: int, card: bytes) -> None:
        self.ttl_seconds = ttl_seconds
        self._client = client
        self._keys = keys
        self._card = card
        self._lease = 0
        self.taken = asyncio.Event()
        self.renewed_at_ms = 0  # when it was asked for what was then granted

    async def take(self) -> int:
        """Wait until nobody leads, then be the one who does; its epoch. Leadership held so far is left."""
        await self.leave()
        while True:
            while (holder := await self.holder()) is not None:
                await self.changed(holder)
            self.renewed_at_ms = boot_ms()
            self._lease = (await self._client.grant(self.ttl_seconds)).ID
            epoch = await self._claim()
            if epoch is not None:
                self.taken.set()
                return epoch
            await self.leave()

    async def renew(self) -> None:
        asked_at_ms = boot_ms()
        if not self._lease or await self._client.keep_alive(self._lease) <= 0:
            raise Deposed("the lease has run out")
        self.renewed_at_ms = asked_at_ms

    async def leave(self) -> None:
        """At once, so that nobody has to wait for the lease to run out."""
        self.taken.clear()
        lease, self._lease = self._lease, 0
        if lease:
            with contextlib.suppress(Unavailable):  # then it runs out by itself, or has
                await self._client.revoke(lease)

    async def holder(self) -> Holder | None:
        found = await self._client.range(pb.RangeRequest(key=self._keys.leader))
        if not found.kvs:
            return None
        (kv,) = found.kvs
        return Holder(kv.create_revision, kv.value, kv.lease, found.header.revision)

    async def _claim(self) -> int | None:
        """The epoch, if nobody was quicker."""
        request = pb.TxnRequest(
            compare=[layout.absent(self._keys.leader)],
            success=[
                layout.put(self._keys.leader, self._card, self._lease),
                layout.put(self._keys.epoch, b""),
            ],
        )
        try:
            answer = await self._client.write(request)
        except Unavailable:
            holder = await self.holder()
            return holder.epoch if holder is not None and holder.lease == self._lease else None
        return int(answer.header.revision) if answer.succeeded else None

    async def changed(self, holder: Holder) -> None:
        create = pb.WatchCreateRequest(key=self._keys.leader, start_revision=holder.at + 1)
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(_LOOK_AGAIN_SECONDS),
                contextlib.aclosing(self._client.watch(create)) as changes,
            ):
                async for change in changes:
                    if change.events or change.canceled:
                        return


def boot_ms() -> int:
    """By a clock that goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
