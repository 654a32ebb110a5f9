"""A job whose tasks have all ended -> its final status: exit code, times, and the reason in one sentence."""

from rota.controllers.user_actions import cluster_failure
from rota.model.adoption import GONE
from rota.model.attempt import NO_EXIT_CODE
from rota.model.columns import Ranges, column
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import Instant
from rota.model.view import JobView, is_placed
from rota.rules.phases import Phase

_UNSUCCESSFUL = (int(Phase.FAILED), int(Phase.LOST), int(Phase.TIMED_OUT))
_NAMED = 8  # indices named in a sentence


def final_status(job: JobView, state: JobState, now: Instant, reason: str | None = None) -> JobStatus:
    """The final status; `reason` is given where no task has one."""
    bad = _unsuccessful_indices(job)
    first = bad[0] if bad else 0  # the lowest failed index gives the job its exit code
    exit_code, signal = _exit_code(job, first) if bad or job.spec.size == 1 else (None, 0)
    if exit_code is None and state is JobState.SUCCEEDED:
        exit_code = 0
    return JobStatus(
        job.spec.id,
        state,
        reason or _sentence(job, state, bad),
        started_at_ms=job.started_at_ms,
        ended_at_ms=now.wall_ms,
        exit_code=exit_code,
        signal=signal or None,
        ended_ms=now.ms,
    )


def _unsuccessful_indices(job: JobView) -> list[int]:
    found: list[int] = []
    for block in sorted(job.phases):
        phases = job.phases[block]
        if any(bad in phases for bad in _UNSUCCESSFUL):
            found += [block * BLOCK_TASKS + at for at, phase in enumerate(phases) if phase in _UNSUCCESSFUL]
    return found


def _exit_code(job: JobView, index: int) -> tuple[int | None, int]:
    block, position = divmod(index, BLOCK_TASKS)
    status = job.statuses.get(block)
    if status is None:
        return None, 0
    code = int(column(status, "exit_code")[position])
    return (None if code == NO_EXIT_CODE else code), status.signal[position]


def _sentence(job: JobView, state: JobState, bad: list[int]) -> str:
    if state is JobState.SUCCEEDED:
        return "exit 0" if job.spec.size == 1 else f"all {job.spec.size} tasks succeeded"
    if job.verdict is not None and state in (JobState.REJECTED, JobState.TIMED_OUT):
        return job.verdict.reason
    by_user = job.intent is not None and job.intent.cancel
    if state is JobState.CANCELED and not by_user and (failed := cluster_failure(job)) is not None:
        return failed  # takes precedence over failures of its tasks
    if not bad:
        is_of_job = job.intent is not None and (by_user or not job.tasks)  # or no task ever started
        reason = job.intent.reason if job.intent is not None and is_of_job else _canceled_task_reason(job)
        return reason or "canceled by its user"
    first = describe_task_end(job, bad[0])
    if job.spec.count == 1:
        return first
    named = str(Ranges(bad[:_NAMED])) + (", ..." if len(bad) > _NAMED else "")
    return f"{len(bad)} of {job.spec.count} tasks did not succeed: index {named}; the first: {first}"


def _canceled_task_reason(job: JobView) -> str | None:
    """Reason of the first canceled task, if any has one."""
    for block in sorted(job.tasks):
        for position, reason in sorted(job.tasks[block].reasons.items()):
            if job.phases[block][position] == Phase.CANCELED:
                return reason
    return None


def describe_task_end(job: JobView, index: int) -> str:
    """Text on how a task ended."""
    block, position = divmod(index, BLOCK_TASKS)
    status, task = job.statuses.get(block), job.tasks.get(block)
    if task is not None and position in task.reasons:
        return task.reasons[position]
    if job.adoption is not None and not is_placed(job, index):
        return GONE
    if status is None:
        return "never started"
    code, signal = _exit_code(job, index)
    return f"killed by signal {signal}" if signal else f"exit {code}"
