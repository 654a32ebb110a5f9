"""A commit that somebody else made + the mirror before it -> the mirror after it, as if read anew."""

from collections.abc import Iterable, Sequence

from rota.engine.state.mirror import Mirror
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import changes
from rota.model.ids import JobId, Key
from rota.model.plan import Record
from rota.model.task import TaskBlock

_OF_JOBS = ("job", "task", "attempt", "status", "pin")


def replay_commit(mirror: Mirror, puts: Sequence[Record], deletes: Iterable[Key]) -> None:
    """Of each record only its last value is known, not the steps between.

    An attempt may have ended on one node and the next begun on another: so what a block held is given back
    by what was known of it, then taken anew.
    """
    for record in puts:
        if isinstance(record, TaskBlock | AttemptBlock | StatusBlock):
            _release_block(mirror, record.job, record.block)
    mirror.apply_all(puts)
    for key in deletes:
        _release_job(mirror, key)
        mirror.forget(key)
    mirror.touched.clear()  # it is for who orders nodes: that is who leads


def _release_job(mirror: Mirror, key: Key) -> None:
    """A job that was known as one under way may be gone by the next that is heard of it."""
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
    # Of tasks that are wanted no more and were never placed there are none.
    holds = job.holds.pop(block, none)
    attempt = job.attempts.get(block)
    if attempt is not None:
        mirror._shift_holds(job, attempt, holds, none)
    job.task_counts.shift(phases, none, changes(phases, none))
    job.clear_retries(block)
