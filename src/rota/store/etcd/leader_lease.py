"""The leader's key: whoever made it leads, for as long as its lease is renewed. [I/O]"""

import asyncio
import contextlib
import time
from typing import NamedTuple

from rota.model.errors import LostLeadership, Unavailable
from rota.store.etcd import layout
from rota.store.etcd.client import EtcdClient
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout

_POLL_SECONDS = 1.0  # a watch tells at once; this is for a member that was cut off, without a word


class LeaderRecord(NamedTuple):
    """Who leads."""

    epoch: int
    server_record: bytes  # what it wrote down of itself
    lease: int
    etcd_revision: int  # etcd's revision, then


class LeaderLease:
    def __init__(self, client: EtcdClient, keys: Layout, ttl_seconds: int, server_record: bytes) -> None:
        self.ttl_seconds = ttl_seconds
        self._client = client
        self._keys = keys
        self._server_record = server_record
        self._lease = 0
        self.acquired = asyncio.Event()
        self.renewed_at_ms = 0  # when it was asked for what was then granted

    async def acquire(self) -> int:
        """Wait until nobody leads, then be the one who does; its epoch. Leadership held so far is left."""
        await self.release()
        while True:
            while (holder := await self.read_leader()) is not None:
                await self.wait_for_change(holder)
            self.renewed_at_ms = boot_ms()
            self._lease = (await self._client.grant_lease(self.ttl_seconds)).ID
            epoch = await self._try_acquire()
            if epoch is not None:
                self.acquired.set()
                return epoch
            await self.release()

    async def renew(self) -> None:
        asked_at_ms = boot_ms()
        if not self._lease or await self._client.keep_alive(self._lease) <= 0:
            raise LostLeadership("the lease has run out")
        self.renewed_at_ms = asked_at_ms

    async def release(self) -> None:
        """At once, so that nobody has to wait for the lease to run out."""
        self.acquired.clear()
        lease, self._lease = self._lease, 0
        if lease:
            with contextlib.suppress(Unavailable):  # then it runs out by itself, or has
                await self._client.revoke_lease(lease)

    async def read_leader(self) -> LeaderRecord | None:
        found = await self._client.range(pb.RangeRequest(key=self._keys.leader))
        if not found.kvs:
            return None
        (kv,) = found.kvs
        return LeaderRecord(kv.create_revision, kv.value, kv.lease, found.header.revision)

    async def _try_acquire(self) -> int | None:
        """The epoch, if nobody was quicker."""
        request = pb.TxnRequest(
            compare=[layout.absent(self._keys.leader)],
            success=[
                layout.put(self._keys.leader, self._server_record, self._lease),
                layout.put(self._keys.epoch, b""),
            ],
        )
        try:
            answer = await self._client.write(request)
        except Unavailable:
            holder = await self.read_leader()
            return holder.epoch if holder is not None and holder.lease == self._lease else None
        return int(answer.header.revision) if answer.succeeded else None

    async def wait_for_change(self, holder: LeaderRecord) -> None:
        create = pb.WatchCreateRequest(key=self._keys.leader, start_revision=holder.etcd_revision + 1)
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(_POLL_SECONDS),
                contextlib.aclosing(self._client.watch(create)) as changes,
            ):
                async for change in changes:
                    if change.events or change.canceled:
                        return


def boot_ms() -> int:
    """By a clock that goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
