"""A store that is short of room takes how work ends, and nothing that is new."""

from typing import Any

from rota.model.attempt import AttemptBlock
from rota.model.columns import column
from rota.model.job import JobSpec
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.store import SimStore
from rota.store import codec
from rota.store.protocol import Batch

KNOWN_MS = 10_000  # by then whoever leads has been told, and what it decided before is long written


def check_commit(medium: SimStore, known: dict[str, Any], batch: Batch) -> None:
    """Before what is known is brought up to date."""
    since_ms = medium.short_since_ms
    if since_ms is None or medium.world.now_ms - since_ms < KNOWN_MS:
        return
    medium.world.count("store: short, and written to")
    for key, value in batch.puts:
        record, before = codec.decode(key, value), known.get(key)
        if isinstance(record, JobSpec) and before is None:
            raise InvariantBroken(f"job {record.id} was taken while the store was short of room")
        if isinstance(record, AttemptBlock) and _placed(record) > (0 if before is None else _placed(before)):
            raise InvariantBroken(f"tasks of job {record.job} were placed while the store was short of room")


def _placed(block: AttemptBlock) -> int:
    return int(column(block, "number").sum())
