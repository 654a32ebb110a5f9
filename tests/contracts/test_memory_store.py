"""MemoryStore keeps the contract; of what it holds only the epoch is on disk."""

from pathlib import Path

from rota.store.memory import MemoryStore
from rota.store.protocol import Store
from rota.testing.store_contract import StoreContract, batch, commit


class TestMemoryStore(StoreContract):
    durable = False

    async def make(self, directory: Path) -> Store:
        return MemoryStore(directory)

    async def test_no_record_reaches_the_disk(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await commit(store, batch(await store.lead(), puts={"job/1/spec": b"a secret command"}))

        assert files(tmp_path) == {"epoch": b"1\n"}


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}
