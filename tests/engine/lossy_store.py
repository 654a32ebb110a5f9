"""A real store that, on request, writes and reports a failure, or reads an old state."""

from rota.model.errors import Unavailable
from rota.store.protocol import Batch, Snapshot, Store
from tests.engine.gated_store import GatedStore


class LossyStore(GatedStore):
    answers_lost = 0  # of the next commits

    def __init__(self, below: Store) -> None:
        super().__init__(below)
        self.old_snapshots: list[Snapshot] = []  # one for each of the next reads

    async def read(self) -> Snapshot:
        snapshot = await super().read()
        return self.old_snapshots.pop() if self.old_snapshots else snapshot

    async def commit(self, batch: Batch) -> int:
        revision = await super().commit(batch)
        if self.answers_lost:
            self.answers_lost -= 1
            raise Unavailable("the answer was lost")
        return revision
