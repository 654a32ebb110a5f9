"""EtcdStore fulfils the contract, on one member and on three."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.store.etcd.client import EtcdAccess
from rota.store.etcd.store import EtcdStore
from rota.store.protocol import Store
from rota.testing.etcd import LocalEtcd
from rota.testing.store_contract import StoreContract
from tests.machine import needs

pytestmark = needs("etcd")

CALL_SECONDS = 30.0  # long enough for a busy machine
TTL_SECONDS = 300


@pytest.fixture(scope="module", params=[1, 3])
def etcd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path_factory.mktemp("etcd"), request.param) as running:
        yield running


class ExpiredLeaderStore(EtcdStore):
    """Revokes the lease of the previous leader before it campaigns, as if that had expired."""

    async def acquire_epoch(self, above: int = 0) -> int:
        holder = await self.leader_lease.read_leader()
        if holder is not None and not self.leader_lease.acquired.is_set():
            await self._client.revoke_lease(holder.lease)
        return await super().acquire_epoch(above)


class TestEtcdStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _reach(self, etcd: LocalEtcd) -> None:
        self.endpoints = tuple(etcd.endpoints)

    async def make(self, directory: Path) -> Store:
        access = EtcdAccess(self.endpoints, call_seconds=CALL_SECONDS)
        return ExpiredLeaderStore(access, f"{directory}/", TTL_SECONDS)
