"""User actions on a running job: cancel, cancel some tasks, pause, resume; and the stop of an overdue one."""

from collections.abc import Iterable

from rota.model.columns import Draft, Ranges, small
from rota.model.job import JobKind, JobStatus, SchedulerVerdict
from rota.model.lifecycle import JOB, TASK, JobEvent, JobState, TaskEvent, TaskState, step
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.task import TaskBlock
from rota.model.view import JobView
from rota.rules.phases import FIRST_END, Phase

_PAUSED = JobState.PAUSED  # enum members are slow to look up, and this one is needed at every decision


def is_cancel_requested(job: JobView) -> bool:
    """Whether a user canceled it, or its cluster failed and no other cluster may run it."""
    return (job.intent is not None and job.intent.cancel) or cluster_failure(job) is not None


def are_all_tasks_canceled(job: JobView) -> bool:
    """Whether each of its tasks was canceled individually."""
    canceled = {} if job.intent is None else job.intent.cancel_tasks
    return len(canceled) >= job.spec.size > 0 and all(index in canceled for index in range(job.spec.size))


def cluster_failure(job: JobView) -> str | None:
    return None if job.cluster is None else job.cluster.failed


def cancel_job(job: JobView) -> Plan:
    """Cancel the job: running tasks stop, pending ones end; blocks that were never placed need no record."""
    assert job.status is not None
    reason = cluster_failure(job) if job.intent is None or not job.intent.cancel else job.intent.reason
    status = JobStatus(job.spec.id, step(JOB, job.status.state, JobEvent.CANCEL_REQUESTED), reason)
    blocks = [_cancel_block(job, block) for block in sorted(job.phases)]
    running = job.task_counts.live - job.task_counts.unresolved
    why = f"job {job.spec.id} is canceled; of its tasks {running} have to be stopped"
    event = EventRecord("job.canceling", why, job=job.spec.id)
    return Plan((status, *blocks), events=(event,), why=why)


def cancel_tasks(job: JobView) -> Plan | None:
    """Cancel some of its tasks; the others continue. None: there are none to cancel."""
    if job.intent is None or not job.intent.cancel_tasks:
        return None
    indices = [index for index in sorted(job.intent.cancel_tasks) if _is_wanted(job, index)]
    if not indices:
        return None
    by_block: dict[int, list[int]] = {}
    for index in indices:
        by_block.setdefault(index // BLOCK_TASKS, []).append(index % BLOCK_TASKS)
    ranges = Ranges(indices)
    why = f"task{'s' if len(indices) > 1 else ''} {ranges} of job {job.spec.id} canceled"
    event = EventRecord("task.canceling", why, job=job.spec.id, indices=tuple(ranges.pairs))
    blocks = [_cancel_block(job, block, positions) for block, positions in by_block.items()]
    return Plan(tuple(blocks), events=(event,), why=why)


def stop_overdue(job: JobView, verdict: SchedulerVerdict) -> Plan:
    """Stop an overdue job like a cancel, but its tasks end as timed out."""
    blocks = (_cancel_block(job, block, ended=TaskEvent.TIMED_OUT) for block in sorted(job.phases))
    changed = [block for block in blocks if block != job.tasks.get(block.block)]
    why = f"job {job.spec.id} is stopped: {verdict.reason}"
    return Plan(tuple(changed), why=why) if changed else NO_CHANGE


def pause_or_resume(job: JobView, now: Instant) -> Plan | None:
    """Pause or resume the job as requested; None: it is in the desired state."""
    assert job.status is not None
    requested = job.intent is not None and job.intent.paused
    if requested == (job.status.state is _PAUSED):
        return None
    match job.status.state:
        case JobState.ACTIVE if requested:
            event, why = JobEvent.PAUSE_REQUESTED, f"job {job.spec.id} is paused: nothing of it starts"
        case JobState.PAUSED if not requested:
            event, why = JobEvent.RESUME_REQUESTED, f"job {job.spec.id} goes on"
        case _:
            return None
    status = JobStatus(job.spec.id, step(JOB, job.status.state, event), wanted_at_ms=now.ms)
    record = EventRecord(f"job.{status.state.value}", why, job=job.spec.id, state=status.state.value)
    return Plan((status,), events=(record,), why=why)


def _is_wanted(job: JobView, index: int) -> bool:
    task = job.tasks.get(index // BLOCK_TASKS)
    return task is None or task.state[index % BLOCK_TASKS] in (TaskState.WANTED, TaskState.HELD)


def _cancel_block(
    job: JobView,
    block: int,
    positions: Iterable[int] | None = None,
    ended: TaskEvent = TaskEvent.STOPPED,
) -> TaskBlock:
    """The block with all its tasks canceled, or those at these positions."""
    size = job.spec.block_size(block)
    task = job.tasks.get(block) or TaskBlock.new(job.spec.id, block, size)
    phase = small(job.phases.get(block, bytes(size)))
    draft = Draft(task)
    chosen = phase >= 0
    if positions is not None:
        chosen[:] = False
        chosen[list(positions)] = True
    if job.spec.kind is JobKind.SYSTEM:
        chosen[len(job.pins[block].nodes) :] = False  # indices beyond the pinned nodes do not exist yet
    wanted = chosen & (draft["state"] == TaskState.WANTED)
    draft["state"][wanted & (phase != Phase.PENDING) & (phase < FIRST_END)] = step(
        TASK, TaskState.WANTED, TaskEvent.CANCEL_REQUESTED
    )
    draft["state"][wanted & (phase == Phase.PENDING)] = step(TASK, TaskState.WANTED, ended)
    # Scaled down: must not start if the job is scaled up again.
    scaled_down = wanted & (phase == Phase.CANCELED)
    draft["state"][scaled_down] = step(TASK, TaskState.WANTED, TaskEvent.STOPPED)
    draft["state"][chosen & (draft["state"] == TaskState.HELD)] = step(TASK, TaskState.HELD, ended)
    lost = [at for at in task.losses if chosen[at]]
    draft["state"][lost] = step(TASK, TaskState.WANTED, ended)
    return draft.done(losses={at: loss for at, loss in task.losses.items() if at not in lost})
