"""A real store that writes and, when told to, says that it did not."""

from rota.model.errors import Unavailable
from rota.store.protocol import Batch
from tests.engine.gated_store import GatedStore


class DeafStore(GatedStore):
    answers_lost = 0  # of the next commits

    async def commit(self, batch: Batch) -> int:
        revision = await super().commit(batch)
        if self.answers_lost:
            self.answers_lost -= 1
            raise Unavailable("nobody heard the answer")
        return revision
