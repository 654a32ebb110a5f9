"""While the disk of the store is low, only terminal states are written: no new jobs, no placements."""

from typing import Any

from rota.model.attempt import AttemptBlock
from rota.model.columns import column
from rota.model.job import JobSpec
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.store import SimStore
from rota.store import codec
from rota.store.protocol import Batch

KNOWN_MS = 10_000  # by then the leader knows, and earlier decisions are committed


def check_commit(store: SimStore, known: dict[str, Any], batch: Batch) -> None:
    """Check a commit before `known` is updated with it."""
    since_ms = store.disk_low_since_ms
    if since_ms is None or store.world.now_ms - since_ms < KNOWN_MS:
        return
    store.world.count("store: written to while the disk was low")
    for key, value in batch.puts:
        record, before = codec.decode(key, value), known.get(key)
        if isinstance(record, JobSpec) and before is None:
            raise InvariantBroken(f"job {record.id} was accepted while the disk was low")
        if isinstance(record, AttemptBlock) and _placed(record) > (0 if before is None else _placed(before)):
            raise InvariantBroken(f"tasks of job {record.job} were placed while the disk was low")


def _placed(block: AttemptBlock) -> int:
    return int(column(block, "number").sum())
