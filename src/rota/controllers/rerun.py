"""A job that runs once more what had failed -> the tasks of it that have succeeded before."""

from rota.model.columns import Draft
from rota.model.job import JobSpec
from rota.model.lifecycle import TASK, TaskEvent, TaskState, step
from rota.model.limits import BLOCK_TASKS
from rota.model.task import TaskBlock


def carried_blocks(spec: JobSpec) -> tuple[TaskBlock, ...]:
    if not spec.carried:
        return ()
    drafts: dict[int, Draft[TaskBlock]] = {}
    done = step(TASK, TaskState.WANTED, TaskEvent.SUCCEEDED)
    for first, last in spec.carried:
        for block in range(first // BLOCK_TASKS, last // BLOCK_TASKS + 1):
            if block not in drafts:
                drafts[block] = Draft(TaskBlock.new(spec.id, block, spec.block_size(block)))
            start = block * BLOCK_TASKS
            drafts[block]["state"][max(first - start, 0) : last - start + 1] = done
    return tuple(draft.done() for draft in drafts.values())
