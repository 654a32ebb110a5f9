"""A newer spec whose user wants what runs to be replaced -> which attempts make way now, a few at a time."""

from collections.abc import Iterable, Iterator

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.attempt import StatusBlock
from rota.model.columns import Ranges, ints
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus, JobWish
from rota.model.lifecycle import JobState
from rota.model.limits import BLOCK_TASKS
from rota.model.phase import FIRST_END, Phase
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.task import TaskBlock
from rota.model.view import JobView, View

_RUNNING = int(Phase.RUNNING)


WAKES: Wakes = {
    JobSpec: lambda spec: (spec.id,) if spec.version > 1 else (),
    JobWish: lambda wish: (wish.id,) if wish.replace else (),
    JobStatus: lambda status: (status.id,) if status.state is JobState.ACTIVE else (),
    StatusBlock: lambda block: (block.job,),
}


def start(view: View) -> Iterable[str]:
    return [job for job, entry in view.jobs.items() if entry.wish is not None and entry.wish.replace]


def decide(view: View, key: str, now: Instant) -> Plan:
    """The next makes way when the replacement of the former runs, or its task has ended."""
    del now
    job = view.jobs.get(JobId(key))
    if job is None or job.wish is None or not job.wish.replace or job.wish.paused:
        return NOTHING
    if job.status is None or job.status.state is not JobState.ACTIVE:
        return NOTHING
    under_way = {index: number for index, number in _making_way(job) if not _is_replaced(job, index, number)}
    free = job.wish.max_parallel - len(under_way)
    chosen = dict(_outdated(job, under_way, free)) if free > 0 else {}
    blocks = list(_changed(job, {**under_way, **chosen}))
    if not blocks:
        return NOTHING
    return Plan(
        tuple(blocks), events=_told(job, chosen), why=f"job {key} moves on to version {job.wish.replace}"
    )


def _making_way(job: JobView) -> Iterator[tuple[int, int]]:
    for block, task in job.tasks.items():
        for position, number in task.renew.items():
            yield block * BLOCK_TASKS + position, number


def _is_replaced(job: JobView, index: int, number: int) -> bool:
    """By a later attempt, which runs; or its task has ended."""
    block, position = divmod(index, BLOCK_TASKS)
    phase = job.phases[block][position]
    later = ints(job.attempts[block], "number")[position] > number
    return phase >= FIRST_END or (later and phase >= _RUNNING)


def _outdated(job: JobView, under_way: dict[int, int], most: int) -> Iterator[tuple[int, int]]:
    """Tasks that run an older version, lowest index first, each with the number of its attempt."""
    assert job.wish is not None
    for block in sorted(job.phases):
        attempts, status = job.attempts.get(block), job.statuses.get(block)
        if attempts is None or status is None or _RUNNING not in job.phases[block]:
            continue
        numbers = ints(attempts, "number")
        for position, phase in enumerate(job.phases[block]):
            index = block * BLOCK_TASKS + position
            old = phase == _RUNNING and status.versions.get(position, 1) < job.wish.replace
            if old and index not in under_way:
                yield index, int(numbers[position])
                most -= 1
                if most == 0:
                    return


def _changed(job: JobView, renew: dict[int, int]) -> Iterator[TaskBlock]:
    """Blocks whose record says something else of who makes way."""
    blocks = {index // BLOCK_TASKS for index in renew}
    blocks |= {block for block, task in job.tasks.items() if task.renew}
    for block in sorted(blocks):
        task = job.tasks.get(block) or TaskBlock.new(job.spec.id, block, job.spec.block_size(block))
        wanted = {
            index % BLOCK_TASKS: number for index, number in renew.items() if index // BLOCK_TASKS == block
        }
        if wanted != task.renew:
            yield task.making_way(wanted)


def _told(job: JobView, chosen: dict[int, int]) -> tuple[Event, ...]:
    if not chosen:
        return ()
    assert job.wish is not None
    ranges = Ranges(list(chosen))
    what = f"task{'s' if len(chosen) > 1 else ''} {ranges} of job {job.spec.id}"
    why = f"{what} begin{'' if len(chosen) > 1 else 's'} again as version {job.wish.replace}"
    return (Event("task.replaced", why, job=job.spec.id, indices=tuple(ranges.pairs)),)


RECONCILER = Reconciler("rollout", "controllers", WAKES, decide, start)
