"""A store that keeps records in memory; only the epoch is on disk, so that it never goes back."""

import os
from collections.abc import Iterable
from pathlib import Path

from rota.model.errors import Deposed, Outdated
from rota.store.codec import decode_events
from rota.store.protocol import Batch, EventRow, Snapshot, next_epoch


class MemoryStore:
    name = "memory"

    def __init__(self, directory: Path) -> None:
        self._epoch_file = directory / "epoch"
        self._records: dict[str, bytes] = {}
        self._events: list[tuple[int, EventRow]] = []
        self._revision = 0
        self._time_ms = 0

    async def lead(self, above: int = 0) -> int:
        epoch = next_epoch(max(self._epoch(), above))
        self._write_epoch(epoch)
        return epoch

    async def read(self) -> Snapshot:
        return Snapshot(self._revision, self._epoch(), self._time_ms, dict(self._records))

    async def commit(self, batch: Batch) -> int:
        epoch = self._epoch()
        if batch.epoch != epoch:
            raise Deposed(f"epoch {batch.epoch} is over, {epoch} leads")
        if batch.after != self._revision:
            raise Outdated(f"revision {batch.after} is not the last, {self._revision} is")
        self._records.update(batch.puts)
        for key in batch.deletes:
            self._records.pop(key, None)
        self._revision += 1
        self._time_ms = batch.time_ms
        if batch.events is not None:
            self._events.append((batch.wall_ms, EventRow(self._revision, batch.events)))
        return self._revision

    async def events(self, after: int, most: int) -> list[EventRow]:
        return [row for _, row in self._events if row.revision > after][:most]

    async def forget_events(self, before_wall_ms: int) -> None:
        self._events = [(wall_ms, row) for wall_ms, row in self._events if wall_ms >= before_wall_ms]

    async def fill(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        if self._revision:
            raise Outdated(f"there are {self._revision} commits already")
        self._write_epoch(max(self._epoch(), snapshot.epoch))
        self._records = dict(snapshot.records)
        self._events = [(decode_events(one.row)[0], one) for one in events]
        self._revision, self._time_ms = snapshot.revision, snapshot.time_ms

    async def has_room(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is open."""

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
            os.fsync(file.fileno())
        partial.replace(self._epoch_file)
