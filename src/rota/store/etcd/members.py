"""Values that servers share beside records: the registry of servers, keys and certificates. [I/O]"""

from rota.model.errors import LostLeadership, Unavailable
from rota.store.etcd import layout
from rota.store.etcd.client import EtcdClient
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout


class MemberRegistry:
    def __init__(self, client: EtcdClient, keys: Layout) -> None:
        self._client = client
        self._keys = keys

    async def read_shared(self, name: str) -> bytes | None:
        kvs = (await self._client.range(pb.RangeRequest(key=self._keys.shared + name.encode()))).kvs
        return kvs[0].value if kvs else None

    async def put_if_absent(self, name: str, value: bytes) -> bytes:
        """Write a shared value unless one exists; returns the one that is stored, ours or the other."""
        key = self._keys.shared + name.encode()
        request = pb.TxnRequest(compare=[layout.absent(key)], success=[layout.put(key, value)])
        await self._client.write(request)
        # Read back instead of trusting the answer: several servers may race to write the first value.
        stored = await self.read_shared(name)
        if stored is None:
            raise Unavailable(f"etcd does not hold {name} although it was written")
        return stored

    async def write_shared(self, name: str, value: bytes, leader_created_at: int) -> None:
        """Write a shared value, fenced by the leader key."""
        # Fenced by the creation revision: a deposed leader must not overwrite what the new one has written.
        request = pb.TxnRequest(
            compare=[layout.created_at(self._keys.leader, leader_created_at)],
            success=[layout.put(self._keys.shared + name.encode(), value)],
        )
        if not (await self._client.write(request)).succeeded:
            raise LostLeadership("another server leads")

    async def register(self, address: str, server_record: bytes) -> None:
        """Register a server; an empty record removes it. The entry stays while the server is down."""
        place = self._keys.servers + address.encode()
        operation = layout.put(place, server_record) if server_record else layout.delete(place)
        await self._client.write(pb.TxnRequest(success=[operation]))

    async def list_servers(self) -> list[bytes]:
        first = self._keys.servers
        found = await self._client.range(pb.RangeRequest(key=first, range_end=layout.prefix_end(first)))
        return [kv.value for kv in found.kvs]
