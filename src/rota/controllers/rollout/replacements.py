"""Attempts to replace -> the task blocks that order it, and the event."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeVar

from rota.model.columns import Ranges
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import EventRecord
from rota.model.service import HealthySince
from rota.model.task import TaskBlock
from rota.model.view import JobView

Entry = TypeVar("Entry", int, HealthySince)


def changed_blocks(
    job: JobView, renew: Mapping[int, int], proofs: Mapping[int, HealthySince]
) -> tuple[TaskBlock, ...]:
    """Blocks that change: attempts to replace (`renew`), since when tasks are healthy (`proofs`)."""
    known = (block for block, task in job.tasks.items() if task.renew or task.proofs)
    found = []
    for block in sorted(set(chain((index // BLOCK_TASKS for index in chain(renew, proofs)), known))):
        task = job.tasks.get(block) or TaskBlock.new(job.spec.id, block, job.spec.block_size(block))
        desired = task.with_replacements(_in_block(block, renew.items()), _in_block(block, proofs.items()))
        if desired != task:
            found.append(desired)
    return tuple(found)


def replaced_events(job: JobView, chosen: Mapping[int, int]) -> tuple[EventRecord, ...]:
    if not chosen:
        return ()
    assert job.intent is not None
    ranges = Ranges(list(chosen))
    what = f"task{'s' if len(chosen) > 1 else ''} {ranges} of job {job.spec.id}"
    why = f"{what} begin{'' if len(chosen) > 1 else 's'} again as version {job.intent.replace}"
    return (EventRecord("task.replaced", why, job=job.spec.id, indices=tuple(ranges.pairs)),)


def _in_block(block: int, entries: Iterable[tuple[int, Entry]]) -> dict[int, Entry]:
    return {index % BLOCK_TASKS: entry for index, entry in entries if index // BLOCK_TASKS == block}
