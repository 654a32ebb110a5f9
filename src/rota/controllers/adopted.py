"""An adopted job + the time -> the end of waiting for tasks that no node has brought back."""

from collections.abc import Iterator

from rota.model.adoption import GONE
from rota.model.columns import Draft, Ranges, ints, small, where
from rota.model.job import Kind
from rota.model.lifecycle import TASK, TaskEvent, TaskState, step
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import Event, Instant, Plan, look_again
from rota.model.task import TaskBlock
from rota.model.view import JobView

_HELD = int(TaskState.HELD)


def close(job: JobView, now: Instant) -> Plan | None:
    """None: nothing is to be done.

    Missing tasks of a service are wanted again: its user wants so many at any time. Those of other jobs are
    lost, when nothing else of the job is left: a node may still bring them, and they may have ended well
    before the server was restarted, so they must not run once more.
    """
    adoption = job.adoption
    if adoption is None or adoption.closed:
        return None
    if now.ms < adoption.until_ms:
        return look_again(adoption.until_ms)
    if job.spec.kind is Kind.BATCH and (job.tally.live or job.tally.pending):
        return None
    blocks = list(_changed(job))
    missed = [index for block in blocks for index in _missing(job, job.tasks[block.block])]
    why = f"no node is waited for any more to bring back tasks of job {job.spec.id}"
    events = [_event(job, missed)] if missed else []
    return Plan((adoption.close(), *blocks), events=tuple(events), why=why)


def _changed(job: JobView) -> Iterator[TaskBlock]:
    event = TaskEvent.RELEASED if job.spec.stays else TaskEvent.MISSED
    state = step(TASK, TaskState.HELD, event)
    for block in sorted(job.tasks):
        task = job.tasks[block]
        positions = [index % BLOCK_TASKS for index in _missing(job, task)]
        if positions:
            draft = Draft(task)
            draft["state"][positions] = state
            draft["not_before"][positions] = 0
            yield draft.done()


def _missing(job: JobView, task: TaskBlock) -> list[int]:
    """Indices of tasks that wait for their node to bring them; others are held as suspects."""
    held = where(small(task.state) == _HELD)
    attempt = job.attempts.get(task.block)
    numbers = None if attempt is None else ints(attempt, "number")
    first = task.block * BLOCK_TASKS
    return [first + at for at in held if numbers is None or not numbers[at]]


def _event(job: JobView, missed: list[int]) -> Event:
    ranges = Ranges(missed)
    tasks = f"task{'s' if missed[1:] else ''} {ranges} of job {job.spec.id}"
    if job.spec.stays:
        why = f"{tasks} wanted again: no node has brought {'them' if missed[1:] else 'it'} back"
        return Event("task.released", why, job=job.spec.id, indices=tuple(ranges.pairs))
    why = f"{tasks} lost: {GONE}"
    return Event("task.ended", why, job=job.spec.id, indices=tuple(ranges.pairs), state="lost")
