"""The epoch of every commit that a store on etcd has ever taken. [I/O]"""

import asyncio

from rota.store.etcd import batches
from rota.store.etcd.client import EtcdAccess, EtcdClient
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.testing.election import ElectedCluster


def epochs_written(cluster: ElectedCluster) -> list[int]:
    """Epochs of all commits, in the order of the store; a fenced leader would break their order."""

    async def read() -> list[int]:
        client = EtcdClient(EtcdAccess(tuple(cluster.etcd.endpoints)))
        head = f"{cluster.directory}/head".encode()
        marks: list[str] = []
        revision = int((await client.range(pb.RangeRequest(key=head))).kvs[0].mod_revision)
        async for response in client.watch(pb.WatchCreateRequest(key=head, start_revision=1)):
            assert not response.canceled
            marks += [batches.decode_head(event.kv.value).mark for event in response.events]
            if any(event.kv.mod_revision >= revision for event in response.events):
                break
        await client.close()
        return [int(mark.partition(".")[0]) for mark in marks]

    return asyncio.run(read())
