"""Rollout of a newer spec: which running attempts are replaced now, at most `max_parallel` at a time.

Batch jobs are replaced task by task; services also pass a health gate (`rota.controllers.rollout.service`).
"""

from collections.abc import Iterable, Iterator

from rota.controllers.rollout import service
from rota.controllers.rollout.replacements import changed_blocks, replaced_events
from rota.engine.reconciler import Reconciler, Wakes
from rota.model.attempt import LOOKAHEAD, AttemptBlock, StatusBlock
from rota.model.columns import ints
from rota.model.ids import JobId
from rota.model.job import JobIntent, JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import NO_CHANGE, Instant, Plan
from rota.model.rollout import JobRollout, RolloutState
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.rules.phases import FIRST_END, Phase
from rota.rules.reconciler_names import ReconcilerName

_RUNNING = int(Phase.RUNNING)
_NOT_EVICTED = bytes((0, LOOKAHEAD))  # values of the flags of attempts that stay


WAKES: Wakes = {
    JobSpec: lambda spec: (spec.id,) if spec.version > 1 else (),
    JobIntent: lambda intent: (intent.id,) if intent.replace else (),
    JobStatus: lambda status: (status.id,) if status.state is JobState.ACTIVE else (),
    JobRollout: lambda rollout: (rollout.id,) if rollout.state is RolloutState.IN_PROGRESS else (),
    **dict.fromkeys((StatusBlock, TaskBlock), lambda block: (block.job,)),
    # An evicted replacement no longer proves that the new version is healthy.
    AttemptBlock: lambda block: (block.job,) if block.flags.strip(_NOT_EVICTED) else (),
}


def start(view: View) -> Iterable[str]:
    return [job for job, entry in view.jobs.items() if entry.intent is not None and entry.intent.replace]


def decide(view: View, key: str, now: Instant) -> Plan:
    job = view.jobs.get(JobId(key))
    # A paused job starts no tasks: an attempt that was stopped now would have no replacement.
    if job is None or job.intent is None or not job.intent.replace or job.intent.paused:
        return NO_CHANGE
    if job.status is None or job.status.state is not JobState.ACTIVE:
        return NO_CHANGE
    if job.spec.is_service:
        return service.decide_service(view, job, job.intent, job.status, now)
    return _replace_one_by_one(job, job.intent)


def _replace_one_by_one(job: JobView, intent: JobIntent) -> Plan:
    """Replace the next attempt when the replacement of the previous one runs, or its task has ended."""
    in_progress = {
        index: number for index, number in _being_replaced(job) if not _is_replaced(job, index, number)
    }
    # Attempts to replace are stored by number, so that after a crash the same ones are in progress.
    free = intent.max_parallel - len(in_progress)
    chosen = dict(_outdated(job, intent, in_progress, free)) if free > 0 else {}
    blocks = changed_blocks(job, {**in_progress, **chosen}, {})
    if not blocks:
        return NO_CHANGE
    return Plan(
        blocks,
        events=replaced_events(job, chosen),
        why=f"job {job.spec.id} moves on to version {intent.replace}",
    )


def _being_replaced(job: JobView) -> Iterator[tuple[int, int]]:
    for block, task in job.tasks.items():
        for position, number in task.renew.items():
            yield block * BLOCK_TASKS + position, number


def _is_replaced(job: JobView, index: int, number: int) -> bool:
    """Whether a later attempt runs (not one that was evicted before it ran), or the task has ended."""
    block, position = divmod(index, BLOCK_TASKS)
    phase = job.phases[block][position]
    later = ints(job.attempts[block], "number")[position] > number
    # A later attempt that only waits for a node is still in progress, or `max_parallel` would be
    # exceeded while the cluster is full.
    return phase >= FIRST_END or (later and phase == _RUNNING)


def _outdated(
    job: JobView, intent: JobIntent, in_progress: dict[int, int], most: int
) -> Iterator[tuple[int, int]]:
    """Tasks that run an older version, lowest index first, each with the number of its attempt."""
    for block in sorted(job.phases):
        attempts, status = job.attempts.get(block), job.statuses.get(block)
        if attempts is None or status is None or _RUNNING not in job.phases[block]:
            continue
        numbers = ints(attempts, "number")
        for position, phase in enumerate(job.phases[block]):
            index = block * BLOCK_TASKS + position
            old = phase == _RUNNING and status.versions.get(position, 1) < intent.replace
            if old and index not in in_progress:
                yield index, int(numbers[position])
                most -= 1
                if most == 0:
                    return


RECONCILER = Reconciler(ReconcilerName.ROLLOUT, "controllers", WAKES, decide, start)
