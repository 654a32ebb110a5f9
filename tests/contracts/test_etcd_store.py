"""EtcdStore keeps the contract, on one member and on three."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.store.etcd.client import Access
from rota.store.etcd.store import EtcdStore
from rota.store.protocol import Store
from rota.testing.etcd import LocalEtcd
from rota.testing.store_contract import StoreContract

TTL_SECONDS = 5  # so long a test waits for one that leads and does not renew


@pytest.fixture(scope="module", params=[1, 3])
def etcd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path_factory.mktemp("etcd"), request.param) as running:
        yield running


class TestEtcdStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _reach(self, etcd: LocalEtcd) -> None:
        self.endpoints = tuple(etcd.endpoints)

    async def make(self, directory: Path) -> Store:
        prefix = f"{directory}/"
        return EtcdStore(Access(self.endpoints), prefix, TTL_SECONDS)
