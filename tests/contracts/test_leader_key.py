"""The simulator's model of the leader key agrees with etcd on the same histories."""

import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rota.model.errors import LostLeadership
from rota.sim.world.leader_key import KeyHolder, LeaderKey
from rota.store.etcd.client import EtcdAccess, EtcdClient
from rota.store.etcd.leader_lease import boot_ms
from rota.store.etcd.store import EtcdStore
from rota.testing.etcd import LocalEtcd
from rota.testing.store_contract import batch
from tests.machine import needs

pytestmark = needs("etcd")

NAMES = ("a", "b", "c")
STEPS = 80
LONG_SECONDS, SHORT_SECONDS = 600, 2


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


class EtcdAndModel:
    """Three servers that campaign for one key, in etcd and in the model; each step returns both results."""

    def __init__(self, etcd: LocalEtcd, prefix: str, ttl_seconds: int) -> None:
        self._access = EtcdAccess(tuple(etcd.endpoints), call_seconds=30.0)
        self._prefix = prefix
        self._ttl_seconds = ttl_seconds
        self._client = EtcdClient(self._access)
        self._crashed: list[EtcdStore] = []
        self.stores = {name: self._store() for name in NAMES}
        self.lives = dict.fromkeys(NAMES, 1)
        self.key = LeaderKey(ttl_seconds * 1000)
        self.now_ms = 0  # of the model
        self.revision = 0
        self.epochs: list[int] = []

    def _store(self) -> EtcdStore:
        return EtcdStore(self._access, self._prefix, self._ttl_seconds)

    async def close(self) -> None:
        for store in (*self.stores.values(), *self._crashed):
            await store.close()
        await self._client.close()

    def holder(self, name: str) -> KeyHolder:
        return KeyHolder(name, self.lives[name])

    async def acquire(self, name: str) -> tuple[bool, bool]:
        store = self.stores[name]
        is_free = await store.leader_lease.read_leader() is None
        if is_free:
            self.epochs.append(await store.acquire_epoch())
        return is_free, self.key.acquire(self.holder(name), self.now_ms)

    async def renew(self, name: str) -> tuple[bool, bool]:
        return await succeeds(self.stores[name].leader_lease.renew()), self.key.renew(
            self.holder(name), self.now_ms
        )

    async def commit(self, name: str) -> tuple[bool, bool]:
        store = self.stores[name]
        written = await succeeds(store.commit(batch(store.epoch, after=self.revision, puts={"k": b"v"})))
        self.revision += written
        return written, self.key.is_held_by(self.holder(name), self.now_ms)

    async def resign(self, name: str) -> tuple[bool, bool]:
        await self.stores[name].leader_lease.release()
        if self.key.is_held_by(self.holder(name), self.now_ms):
            self.key.revoke()
        return True, True

    async def crash(self, name: str) -> tuple[bool, bool]:
        """Crash and restart: the server does not know of its former lease."""
        self._crashed.append(self.stores[name])
        self.stores[name] = self._store()
        self.lives[name] += 1
        return True, True

    async def revoke(self, name: str) -> tuple[bool, bool]:
        """Revoke the lease of the current holder."""
        holder = await self.stores[name].leader_lease.read_leader()
        if holder is not None:
            await self._client.revoke_lease(holder.lease)
        self.key.revoke()
        return True, True


@asynccontextmanager
async def both(etcd: LocalEtcd, directory: Path, ttl_seconds: int) -> AsyncIterator[EtcdAndModel]:
    stage = EtcdAndModel(etcd, f"{directory}/", ttl_seconds)
    try:
        yield stage
    finally:
        await stage.close()


async def succeeds(work: Awaitable[object]) -> bool:
    try:
        await work
    except LostLeadership:
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
async def test_etcd_and_the_model_agree_on_every_step_of_a_random_history(
    etcd: LocalEtcd, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with both(etcd, tmp_path, LONG_SECONDS) as stage:
        steps = [stage.acquire, stage.renew, stage.commit, stage.resign, stage.crash, stage.revoke]
        for number in range(STEPS):
            (step,) = rng.choices(steps, (4, 4, 8, 1, 1, 1))
            name = rng.choice(NAMES)
            real, model = await step(name)

            assert real == model, f"step {number}: {step.__name__} by {name}"

        assert len(stage.epochs) > 3
        assert stage.epochs == sorted(set(stage.epochs)), "each epoch is higher than all before"
        assert stage.revision > 0


async def test_a_lease_that_is_not_renewed_expires_and_not_too_early(etcd: LocalEtcd, tmp_path: Path) -> None:
    async with both(etcd, tmp_path, SHORT_SECONDS) as stage:
        await stage.acquire("a")
        asked_at_ms = boot_ms()
        assert await stage.renew("a") == (True, True)
        while (holder := await stage.stores["b"].leader_lease.read_leader()) is not None:
            await stage.stores["b"].leader_lease.wait_for_change(holder)
        stage.now_ms = boot_ms() - asked_at_ms

        assert await stage.renew("a") == (False, False)
        assert await stage.commit("a") == (False, False)
        assert await stage.acquire("b") == (True, True)
        assert await stage.commit("b") == (True, True)
