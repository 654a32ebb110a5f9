"""A store in memory: after a restart it has nodes and settings, and no jobs.

The epoch is on disk, so that it never goes back, and so are the records that operators and nodes would have
to create again: nodes, clusters and their machines, namespaces, crons. Jobs, tasks and attempts are not; a
server adopts those that run from its nodes (`rota.watcher.adoption`).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rota.model.errors import LostLeadership, StaleState
from rota.store.codec import decode_events
from rota.store.durable_records import DurableRecords
from rota.store.protocol import Batch, EventRow, Snapshot, next_epoch

DURABLE_KINDS = frozenset(  # first parts of the keys of records that are on disk
    (
        "node",
        "cluster",
        "cluster_wish",
        "machine",
        "namespace",
        "cron",
        "cron_status",
        "pace",
        "restored",
    )
)


def is_durable(key: str) -> bool:
    return key.partition("/")[0] in DURABLE_KINDS


class MemoryStore:
    name = "memory"

    def __init__(self, directory: Path) -> None:
        self._epoch_file = directory / "epoch"
        self._durable = DurableRecords(directory / "kept")
        self._records: dict[str, bytes] = dict(self._durable.records)
        self._events: list[tuple[int, EventRow]] = []
        self._revision = 0
        self._time_ms = self._durable.time_ms  # durable records contain cluster times: it must not go back

    async def acquire_epoch(self, above: int = 0) -> int:
        epoch = next_epoch(max(self._epoch(), above))
        self._write_epoch(epoch)
        return epoch

    async def read(self) -> Snapshot:
        return Snapshot(self._revision, self._epoch(), self._time_ms, dict(self._records))

    async def commit(self, batch: Batch) -> int:
        epoch = self._epoch()
        if batch.epoch != epoch:
            raise LostLeadership(f"epoch {batch.epoch} is over, {epoch} leads")
        if batch.after != self._revision:
            raise StaleState(f"revision {batch.after} is not the last, {self._revision} is")
        # Durable records first: if that raises, nothing has
        # changed in memory and the batch fails as a whole.
        self._write_durable(batch.time_ms, dict(batch.puts), batch.deletes)
        self._records.update(batch.puts)
        for key in batch.deletes:
            self._records.pop(key, None)
        self._revision += 1
        self._time_ms = batch.time_ms
        if batch.events is not None:
            self._events.append((batch.wall_ms, EventRow(self._revision, batch.events)))
        return self._revision

    async def events(self, after: int, limit: int) -> list[EventRow]:
        return [row for _, row in self._events if row.revision > after][:limit]

    async def forget_events(self, before_wall_ms: int) -> None:
        self._events = [(wall_ms, row) for wall_ms, row in self._events if wall_ms >= before_wall_ms]

    async def load_snapshot(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        if self._revision:
            raise StaleState(f"there are {self._revision} commits already")
        # The epoch before the records: nodes reject a server whose epoch is lower than they have seen.
        self._write_epoch(max(self._epoch(), snapshot.epoch))
        self._write_durable(snapshot.time_ms, snapshot.records, ())
        self._records = dict(snapshot.records)
        self._events = [(decode_events(event.row)[0], event) for event in events]
        self._revision, self._time_ms = snapshot.revision, snapshot.time_ms

    async def has_space(self) -> bool:
        return True

    async def close(self) -> None:
        self._durable.close()

    def _write_durable(self, time_ms: int, puts: Mapping[str, bytes], deletes: Sequence[str]) -> None:
        written = {key: value for key, value in puts.items() if is_durable(key)}
        deleted = [key for key in deletes if is_durable(key)]
        if written or deleted:
            self._durable.write(time_ms, written, deleted)

    def _epoch(self) -> int:
        try:
            return int(self._epoch_file.read_text())
        except FileNotFoundError:
            return 0

    def _write_epoch(self, epoch: int) -> None:
        partial = self._epoch_file.with_suffix(".new")
        with partial.open("w") as file:
            file.write(f"{epoch}\n")
            file.flush()
            # Durable before the rename: after a power cut a
            # rename without data could leave an empty epoch file.
            os.fsync(file.fileno())
        partial.replace(self._epoch_file)
