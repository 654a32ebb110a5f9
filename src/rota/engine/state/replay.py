"""A commit of another server + a standby's mirror -> the mirror after it, as if it had been loaded."""

from collections.abc import Iterable, Sequence

from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import changes
from rota.model.ids import JobId, Key
from rota.model.plan import Record
from rota.model.task import TaskBlock

_OF_JOBS = ("job", "task", "attempt", "status", "pin")


def replay_commit(mirror: Mirror, puts: Sequence[Record], deletes: Iterable[Key]) -> None:
    """Apply the records of one commit, of which only the last value of each key is known.

    Within the commit an attempt may have ended on one node and the next one started on another. So all that a
    block held is released first, as it was known before, and reserved again from the new records.
    """
    for record in puts:
        if isinstance(record, TaskBlock | AttemptBlock | StatusBlock):
            _release_block(mirror, record.job, record.block)
    mirror.apply_all(puts)
    for key in deletes:
        # Before `forget`, which assumes that a deleted job holds nothing on nodes.
        _release_job(mirror, key)
        mirror.forget(key)
    mirror.touched.clear()  # only the leader sends orders to nodes


def _release_job(mirror: Mirror, key: Key) -> None:
    """Release what a deleted job held: between two replayed commits it may have gone from live to deleted."""
    head, name, *_ = key.split("/")
    job = mirror.jobs.get(JobId(name)) if head in _OF_JOBS else None
    if job is not None:
        for block in list(job.phases):
            _release_block(mirror, job.spec.id, block)
        mirror._queues.remove(job)


def _release_block(mirror: Mirror, name: JobId, block: int) -> None:
    job = mirror.jobs.get(name)
    if job is None or block not in job.phases:
        return
    phases = job.phases.pop(block)
    none = bytes(len(phases))
    # Blocks of scaled-down tasks that were never placed have phases and no holds.
    holds = job.holds.pop(block, none)
    attempt = job.attempts.get(block)
    if attempt is not None:
        mirror._shift_holds(job, attempt, holds, none)
    job.task_counts.shift(phases, none, changes(phases, none))
    job.clear_retries(block)
