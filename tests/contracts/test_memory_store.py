"""MemoryStore keeps the contract; jobs are never on disk, but nodes and settings are."""

from pathlib import Path

import pytest

from rota.model.errors import Damaged
from rota.store.memory import MemoryStore
from rota.store.protocol import Store
from rota.testing.store_contract import StoreContract, batch, commit


class TestMemoryStore(StoreContract):
    durable = False

    async def make(self, directory: Path) -> Store:
        return MemoryStore(directory)

    async def test_no_record_reaches_the_disk(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await commit(store, batch(await store.acquire_epoch(), puts={"job/1/spec": b"a secret command"}))

        assert files(tmp_path) == {"epoch": b"1\n"}

    async def test_nodes_and_settings_survive_a_restart_and_jobs_do_not(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            epoch = await store.acquire_epoch()
            await commit(store, batch(epoch, puts={"node/n1/spec": b"n1", "job/1/spec": b"secret"}))
            await commit(store, batch(epoch, puts={"node/n2/spec": b"n2", "cron/a/b": b"nightly"}))
            await commit(store, batch(epoch, deletes=("node/n1/spec",)))

        async with self.opened(tmp_path) as again:
            assert (await again.read()).records == {"node/n2/spec": b"n2", "cron/a/b": b"nightly"}
        assert b"secret" not in b"".join(files(tmp_path).values())

    async def test_cluster_time_does_not_go_back_behind_durable_records(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await commit(
                store, batch(await store.acquire_epoch(), time_ms=77, puts={"node/n1/wish": b"drain by 99"})
            )

        async with self.opened(tmp_path) as again:
            assert (await again.read()).time_ms == 77

    async def test_a_line_torn_by_a_crash_is_ignored(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await commit(store, batch(await store.acquire_epoch(), puts={"node/n1/spec": b"n1"}))
        with (tmp_path / "kept").open("ab") as file:
            file.write(b'[9,{"node/n2/spec":"bj')

        async with self.opened(tmp_path) as again:
            epoch = await again.acquire_epoch()
            assert (await again.read()).records == {"node/n1/spec": b"n1"}
            await commit(again, batch(epoch, puts={"node/n3/spec": b"n3"}))
        async with self.opened(tmp_path) as third:
            assert set((await third.read()).records) == {"node/n1/spec", "node/n3/spec"}

    async def test_an_unreadable_line_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "kept").write_bytes(b"nonsense\n")

        with pytest.raises(Damaged, match="line 1"):
            await self.make(tmp_path)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}
