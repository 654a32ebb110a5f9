"""An adopted job + the time -> the end of waiting for tasks that no node has offered back.

A server whose store is in memory loses its jobs with a restart; nodes offer what they run for adoption.
"""

from collections.abc import Iterator

from rota.model.adoption import GONE
from rota.model.columns import Draft, Ranges, ints, small, where
from rota.model.job import JobKind
from rota.model.lifecycle import TASK, TaskEvent, TaskState, step
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import EventRecord, Instant, Plan, wake_at
from rota.model.task import TaskBlock
from rota.model.view import JobView

_HELD = int(TaskState.HELD)


def expire_adoption(job: JobView, now: Instant) -> Plan | None:
    """The plan that ends the adoption window; None: nothing to do.

    Missing tasks of a service are started again: it has to keep its number of tasks. Those of other jobs are
    lost once nothing else of the job is left: a node may still offer them, and they may have succeeded before
    the server restarted, so they must not run twice.
    """
    adoption = job.adoption
    if adoption is None or adoption.closed:
        return None
    if now.ms < adoption.until_ms:
        return wake_at(adoption.until_ms)
    # Waiting costs nothing while other tasks of the job are unfinished, and a node may still offer the
    # missing ones. When the last of them ends, this key is woken again.
    if job.spec.kind is JobKind.BATCH and (job.task_counts.live or job.task_counts.pending):
        return None
    blocks = list(_changed_blocks(job))
    missing = [index for block in blocks for index in _missing_tasks(job, job.tasks[block.block])]
    why = f"no node is waited for any more to bring back tasks of job {job.spec.id}"
    events = [_missing_event(job, missing)] if missing else []
    # One commit: after a crash the window is still open, or its tasks are decided.
    return Plan((adoption.close(), *blocks), events=tuple(events), why=why)


def _changed_blocks(job: JobView) -> Iterator[TaskBlock]:
    # Only a service is started again. A batch task may have succeeded before the restart, and its
    # result is what the missing node knows.
    event = TaskEvent.RELEASED if job.spec.is_service else TaskEvent.ADOPTION_EXPIRED
    state = step(TASK, TaskState.HELD, event)
    for block in sorted(job.tasks):
        task = job.tasks[block]
        positions = [index % BLOCK_TASKS for index in _missing_tasks(job, task)]
        if positions:
            draft = Draft(task)
            draft["state"][positions] = state
            draft["not_before"][positions] = 0
            yield draft.done()


def _missing_tasks(job: JobView, task: TaskBlock) -> list[int]:
    """Indices of tasks that wait for their node to offer them; other held tasks are in quarantine."""
    held = where(small(task.state) == _HELD)
    attempt = job.attempts.get(task.block)
    numbers = None if attempt is None else ints(attempt, "number")
    first = task.block * BLOCK_TASKS
    # A quarantined task has been placed by this server, so its attempt number is not 0. That distinguishes
    # the two kinds of held tasks without a state of their own.
    return [first + at for at in held if numbers is None or not numbers[at]]


def _missing_event(job: JobView, missing: list[int]) -> EventRecord:
    ranges = Ranges(missing)
    tasks = f"task{'s' if missing[1:] else ''} {ranges} of job {job.spec.id}"
    if job.spec.is_service:
        why = f"{tasks} wanted again: no node has brought {'them' if missing[1:] else 'it'} back"
        return EventRecord("task.released", why, job=job.spec.id, indices=tuple(ranges.pairs))
    why = f"{tasks} lost: {GONE}"
    return EventRecord("task.ended", why, job=job.spec.id, indices=tuple(ranges.pairs), state="lost")
