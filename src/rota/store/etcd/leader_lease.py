"""The leader key: the server that created it leads for as long as it renews the lease of the key. [I/O]"""

import asyncio
import contextlib
import time
from typing import NamedTuple

from rota.model.errors import LostLeadership, Unavailable
from rota.store.etcd import layout
from rota.store.etcd.client import EtcdClient
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout

_POLL_SECONDS = 1.0  # a watch notifies immediately; polling covers an etcd member cut off from its quorum


class LeaderRecord(NamedTuple):
    """The server that holds the leader key."""

    epoch: int
    server_record: bytes  # what the server published about itself
    lease: int
    etcd_revision: int  # etcd's revision when this was read


class LeaderLease:
    def __init__(self, client: EtcdClient, keys: Layout, ttl_seconds: int, server_record: bytes) -> None:
        self.ttl_seconds = ttl_seconds
        self._client = client
        self._keys = keys
        self._server_record = server_record
        self._lease = 0
        self.acquired = asyncio.Event()
        # When the last granted renewal was sent, not when it was answered: by our clock the lease ends first.
        self.renewed_at_ms = 0

    async def acquire(self) -> int:
        """Wait until the leader key is absent, then create it; returns its creation revision.

        A lease held so far is released first.
        """
        # Otherwise this server would wait for a key that its own lease keeps alive.
        await self.release()
        while True:
            while (leader := await self.read_leader()) is not None:
                await self.wait_for_change(leader)
            # Before the request is sent: etcd counts from its
            # receipt, so by our clock the lease ends first.
            self.renewed_at_ms = boot_ms()
            self._lease = (await self._client.grant_lease(self.ttl_seconds)).ID
            epoch = await self._try_acquire()
            if epoch is not None:
                self.acquired.set()
                return epoch
            # Another server was faster. Its lease is not ours;
            # ours is given back and the wait starts again.
            await self.release()

    async def renew(self) -> None:
        # See `renewed_at_ms`: the time of sending, so that a slow answer cannot stretch the lease.
        asked_at_ms = boot_ms()
        if not self._lease or await self._client.keep_alive(self._lease) <= 0:
            raise LostLeadership("the leader lease has expired")
        self.renewed_at_ms = asked_at_ms

    async def release(self) -> None:
        """Revoke the lease, so that another server can lead without waiting for its end."""
        # Before the await: no coroutine may take the lease for held while it is being revoked.
        self.acquired.clear()
        lease, self._lease = self._lease, 0
        if lease:
            with contextlib.suppress(Unavailable):  # then it expires by itself, or already has
                await self._client.revoke_lease(lease)

    async def read_leader(self) -> LeaderRecord | None:
        found = await self._client.range(pb.RangeRequest(key=self._keys.leader))
        if not found.kvs:
            return None
        (kv,) = found.kvs
        return LeaderRecord(kv.create_revision, kv.value, kv.lease, found.header.revision)

    async def _try_acquire(self) -> int | None:
        """Create the leader key; returns its creation revision, or None if another server was faster."""
        request = pb.TxnRequest(
            compare=[layout.absent(self._keys.leader)],
            success=[
                # The key disappears with the lease, however the
                # server dies; `epoch` stays and records the last one.
                layout.put(self._keys.leader, self._server_record, self._lease),
                layout.put(self._keys.epoch, b""),
            ],
        )
        try:
            answer = await self._client.write(request)
        except Unavailable:  # outcome unknown: the key is ours if it has our lease
            leader = await self.read_leader()
            return leader.epoch if leader is not None and leader.lease == self._lease else None
        return int(answer.header.revision) if answer.succeeded else None

    async def wait_for_change(self, leader: LeaderRecord) -> None:
        """Wait until the leader key changes after that read, at most for `_POLL_SECONDS`."""
        # From the revision of the read: a change between read and watch is delivered, not missed.
        create = pb.WatchCreateRequest(key=self._keys.leader, start_revision=leader.etcd_revision + 1)
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(_POLL_SECONDS),
                contextlib.aclosing(self._client.watch(create)) as changes,
            ):
                async for change in changes:
                    if change.events or change.canceled:
                        return


def boot_ms() -> int:
    """Milliseconds since boot, by a clock that also runs while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
