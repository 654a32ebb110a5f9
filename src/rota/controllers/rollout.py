"""A newer spec whose user wants what runs to be replaced -> which attempts make way now, a few at a time."""

from collections.abc import Iterable, Iterator

from rota.controllers import service_rollout
from rota.controllers.making_way import changed, told
from rota.engine.reconciler import Reconciler, Wakes
from rota.model.attempt import LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import ints
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus, JobWish
from rota.model.lifecycle import JobState
from rota.model.limits import BLOCK_TASKS
from rota.model.phase import FIRST_END, Phase
from rota.model.plan import NOTHING, Instant, Plan
from rota.model.rollout import JobRollout, RolloutState
from rota.model.task import TaskBlock
from rota.model.view import JobView, View

_RUNNING = int(Phase.RUNNING)
_NOT_EVICTED = bytes((0, LOOKAHEAD))  # values of the flags of attempts that stay


WAKES: Wakes = {
    JobSpec: lambda spec: (spec.id,) if spec.version > 1 else (),
    JobWish: lambda wish: (wish.id,) if wish.replace else (),
    JobStatus: lambda status: (status.id,) if status.state is JobState.ACTIVE else (),
    JobRollout: lambda rollout: (rollout.id,) if rollout.state is RolloutState.GOING else (),
    **dict.fromkeys((StatusBlock, TaskBlock), lambda block: (block.job,)),
    # A replacement that is evicted does not prove the new version any longer.
    AttemptBlock: lambda block: (block.job,) if block.flags.strip(_NOT_EVICTED) else (),
}


def start(view: View) -> Iterable[str]:
    return [job for job, entry in view.jobs.items() if entry.wish is not None and entry.wish.replace]


def decide(view: View, key: str, now: Instant) -> Plan:
    job = view.jobs.get(JobId(key))
    if job is None or job.wish is None or not job.wish.replace or job.wish.paused:
        return NOTHING
    if job.status is None or job.status.state is not JobState.ACTIVE:
        return NOTHING
    if job.spec.stays:
        return service_rollout.decide(view, job, job.wish, job.status, now)
    return _one_after_the_other(job, job.wish)


def _one_after_the_other(job: JobView, wish: JobWish) -> Plan:
    """The next makes way when the replacement of the former runs, or its task has ended."""
    under_way = {index: number for index, number in _making_way(job) if not _is_replaced(job, index, number)}
    free = wish.max_parallel - len(under_way)
    chosen = dict(_outdated(job, wish, under_way, free)) if free > 0 else {}
    blocks = changed(job, {**under_way, **chosen}, {})
    if not blocks:
        return NOTHING
    return Plan(blocks, events=told(job, chosen), why=f"job {job.spec.id} moves on to version {wish.replace}")


def _making_way(job: JobView) -> Iterator[tuple[int, int]]:
    for block, task in job.tasks.items():
        for position, number in task.renew.items():
            yield block * BLOCK_TASKS + position, number


def _is_replaced(job: JobView, index: int, number: int) -> bool:
    """By a later attempt that runs (not one that was evicted before it ran), or its task has ended."""
    block, position = divmod(index, BLOCK_TASKS)
    phase = job.phases[block][position]
    later = ints(job.attempts[block], "number")[position] > number
    return phase >= FIRST_END or (later and phase == _RUNNING)


def _outdated(job: JobView, wish: JobWish, under_way: dict[int, int], most: int) -> Iterator[tuple[int, int]]:
    """Tasks that run an older version, lowest index first, each with the number of its attempt."""
    for block in sorted(job.phases):
        attempts, status = job.attempts.get(block), job.statuses.get(block)
        if attempts is None or status is None or _RUNNING not in job.phases[block]:
            continue
        numbers = ints(attempts, "number")
        for position, phase in enumerate(job.phases[block]):
            index = block * BLOCK_TASKS + position
            old = phase == _RUNNING and status.versions.get(position, 1) < wish.replace
            if old and index not in under_way:
                yield index, int(numbers[position])
                most -= 1
                if most == 0:
                    return


RECONCILER = Reconciler("rollout", "controllers", WAKES, decide, start)
