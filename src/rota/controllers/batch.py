"""A job -> tasks that are wanted; ended attempts -> results; all results -> the job's end."""

from collections.abc import Iterable

from rota.controllers import adoption_timeout, quarantine, service_restart
from rota.controllers.attempt_end import AttemptEnd, RetryOutcome, end_of_attempt
from rota.controllers.job_result import final_status
from rota.controllers.recovery import BlockRecords, ask_recovery_controller
from rota.controllers.rerun import carried_blocks
from rota.controllers.retry import backoff_ms, decide_retry, fault_backoff_ms
from rota.controllers.user_actions import (
    are_all_tasks_canceled,
    cancel_job,
    cancel_tasks,
    is_cancel_requested,
    pause_or_resume,
    stop_overdue,
)
from rota.engine.reconciler import Reconciler, Wakes, own_id
from rota.model.adoption import JobAdoption
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import FEW, Draft, Ranges, ints, small, where
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobIntent, JobKind, JobSpec, JobStatus, SchedulerVerdict
from rota.model.lifecycle import (
    ATTEMPT_FIRST_END,
    JOB,
    TASK,
    AttemptState,
    JobEvent,
    JobState,
    TaskEvent,
    TaskState,
    step,
)
from rota.model.limits import (
    BLOCK_TASKS,
    FAULT_RESET_MS,
    HELD_MS,
    RETRY_BACKOFF_MAX_MS,
    SERVICE_STABLE_US,
    TRIES_MAX,
)
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.recovery import RecoveryAnswers
from rota.model.shape import RunMode
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.rules.phases import Phase

# Plain numbers: enum members are slow to look up, and these are needed at every change.
_SUCCEEDED, _REFUSED, _END = int(AttemptState.SUCCEEDED), int(AttemptState.REFUSED), int(ATTEMPT_FIRST_END)
_STOPPED = (TaskEvent.STOPPED, TaskEvent.NODE_LOST)
_DONE = int(step(TASK, TaskState.WANTED, TaskEvent.SUCCEEDED))
_WANTED, _UNWANTED = int(TaskState.WANTED), int(TaskState.UNWANTED)
_WAITING, _CANCELING, _SYSTEM = JobState.WAITING, JobState.CANCELING, JobKind.SYSTEM
_SUBMITTED, _ACTIVE = JobState.SUBMITTED, JobState.ACTIVE
_ASSIGNED = step(JOB, _SUBMITTED, JobEvent.CLUSTER_CHOSEN)
_STARTED = step(JOB, _ASSIGNED, JobEvent.TASKS_CREATED)


WAKES: Wakes = {
    **dict.fromkeys((JobCluster, JobIntent, JobStatus, SchedulerVerdict, JobAdoption), own_id),
    JobSpec: lambda spec: _keys_of_updated(spec) if spec.version > 1 else (),
    TaskBlock: lambda block: (block.job,),
    StatusBlock: lambda block: (f"{block.job}/{block.block}",),
    RecoveryAnswers: lambda answers: {
        f"{answers.id}/{index // BLOCK_TASKS}": None for index in answers.words
    },
}


def _keys_of_updated(spec: JobSpec) -> Iterable[str]:
    """What is left of it may all have ended, and others may have to say what becomes of lost tasks."""
    yield spec.id
    yield from (f"{spec.id}/{block}" for block in range(spec.blocks))


def start(view: View) -> Iterable[str]:
    for job, entry in view.jobs.items():
        if entry.status is None or not entry.status.ended:
            yield from (f"{job}/{block}" for block in entry.statuses)
            yield job


def decide(view: View, key: str, now: Instant) -> Plan:
    job_id, _, block = key.partition("/")
    job = view.jobs.get(JobId(job_id))
    if job is None or (job.status is not None and job.status.ended):
        return NO_CHANGE
    if not block:
        return decide_job(job, now)
    return finish_attempts(view, job, int(block), now) if int(block) in job.statuses else NO_CHANGE


def decide_job(job: JobView, now: Instant) -> Plan:
    """The job as a whole: begin it, pause it, cancel it, end it."""
    cancel = is_cancel_requested(job)
    if job.status is None or job.status.state is _WAITING:
        return _before_start(job, now, canceled=cancel or are_all_tasks_canceled(job))
    if job.status.state is _CANCELING:
        return (
            _end_job(job, JobEvent.ALL_STOPPED, job.status.state, now)
            if job.task_counts.live == 0
            else NO_CHANGE
        )
    if job.task_counts.ended == job.spec.count and job.spec.kind is not _SYSTEM:  # that goes on
        return _end_job(job, _result_event(job), job.status.state, now)
    if (
        job.verdict is not None
        and job.task_counts.live == 0
        and (job.verdict.late or job.status.state is _ACTIVE)
    ):
        too_late = JobEvent.SOME_TIMED_OUT if job.verdict.late else JobEvent.UNPLACEABLE
        return _end_job(job, too_late, job.status.state, now)
    if cancel:
        return cancel_job(job)
    if job.verdict is not None and job.verdict.ends:
        return stop_overdue(job, job.verdict)
    if (
        plan := cancel_tasks(job) or pause_or_resume(job, now) or adoption_timeout.expire_adoption(job, now)
    ) is not None:
        return plan
    return quarantine.resolve_held(job, now) if job.task_counts.held else NO_CHANGE


def finish_attempts(view: View, job: JobView, block: int, now: Instant) -> Plan:
    """Attempts of a block that ended -> what becomes of their tasks."""
    attempt, status = job.attempts[block], job.statuses[block]
    task = job.tasks.get(block) or TaskBlock.new(job.spec.id, block, job.spec.block_size(block))
    positions = _newly_ended(task, attempt, status)
    if not positions:  # what was taken back may have been the last of a job that is given up, or made smaller
        is_over = job.verdict is not None or job.spec.desired_count is not None
        return decide_job(job, now) if is_over else NO_CHANGE
    asked = ask_recovery_controller(view, job, BlockRecords(task, attempt, status), positions, now)
    positions = [position for position in positions if position not in asked.losses]
    if not positions and asked.losses == task.losses:
        return Plan(wake_at_ms=asked.wake_at_ms)
    draft = Draft(task)
    reasons, faults = dict(task.reasons), dict(task.faults)
    blame = quarantine.Blame(view, BlockRecords(task, attempt, status), now)
    again: list[int] = []
    held: dict[str, list[int]] = {}  # by the reason
    done = [
        at
        for at in positions
        if status.state[at] == _SUCCEEDED and not _restarts_after_success(job.spec, task, at)
    ]
    draft.fill("state", done, [_DONE] * len(done))  # also of what was unwanted too late
    lasted = _stable(job.spec, status, positions)
    draft.fill("failures", lasted, [0] * len(lasted))
    for position in sorted(set(positions).difference(done)):
        index = block * BLOCK_TASKS + position
        end = blame.record(end_of_attempt(job.spec, attempt, status, position), position)
        _count_fault(faults, draft, position, end, now)
        word = asked.decisions.get(position)
        verdict = RetryOutcome(word) if word is not None else _decide_retry(job.spec, draft, index, end)
        settled = _apply_outcome(job, draft, index, verdict, now, faults=faults.get(position, 0))
        reason = settled.reason or status.reasons.get(position) or end.reason
        if settled.event is TaskEvent.RETRY:
            again += [] if job.spec.is_scaled_down(index) else [index]
        elif settled.event is TaskEvent.QUARANTINED:
            reason = blame.reasons[position]
            held.setdefault(reason, []).append(index)
        if reason is not None:
            reasons[position] = reason
    events = [] if not again else [_retry_event(job, again)]
    events += [quarantine.held_event(job, indices, reason) for reason, indices in held.items()]
    changed = draft.done(
        reasons=reasons,
        downed=blame.lost_nodes,
        downed_ms=blame.lost_at_ms,
        deaths=blame.keeper_deaths,
        faults=faults,
        losses=asked.losses,
    )
    return Plan(
        (changed,),
        events=(*asked.events, *events),
        why=f"{len(positions) + len(asked.losses)} tries of job {job.spec.id} ended",
        wake_at_ms=asked.wake_at_ms,
    )


def _newly_ended(task: TaskBlock, attempt: AttemptBlock, status: StatusBlock) -> list[int]:
    """Positions whose current attempt served the wanted try and has ended.

    A refusal or withdrawal ends no try: the same try is placed again, unless nobody wants it any more.
    """
    number, known = ints(attempt, "number"), ints(status, "number")
    tries, wanted = ints(attempt, "tries"), ints(task, "wanted")
    return [
        at
        for at in _ended(task, status)
        if (task.state[at] == _UNWANTED or status.state[at] < _REFUSED)
        and known[at] == number[at] > 0
        and tries[at] == wanted[at]
    ]


def _ended(task: TaskBlock, status: StatusBlock) -> list[int]:
    """Positions of ended attempts whose tasks have not ended."""
    if len(status.state) > FEW:
        return where((small(status.state) >= _END) & (small(task.state) <= _UNWANTED))
    both = enumerate(zip(status.state, task.state, strict=True))
    return [at for at, (state, wish) in both if state >= _END and wish <= _UNWANTED]


def _restarts_after_success(spec: JobSpec, task: TaskBlock, position: int) -> bool:
    """It is started again also when it has ended well."""
    return spec.is_service or (spec.kind is JobKind.SYSTEM and task.state[position] == _WANTED)


def _stable(spec: JobSpec, status: StatusBlock, positions: list[int]) -> list[int]:
    """Those of what ran so long that the pause before its next start is a short one again."""
    if spec.kind is JobKind.BATCH:
        return []
    ran_us = ints(status, "ran_us")
    least_us = SERVICE_STABLE_US if spec.is_service else RETRY_BACKOFF_MAX_MS * 1000
    return [at for at in positions if ran_us[at] >= least_us]


def _count_fault(
    faults: dict[int, int], draft: Draft[TaskBlock], position: int, end: AttemptEnd, now: Instant
) -> None:
    """Count the faults of the cluster in a row: any other end, or a try that lasted, begins a new row."""
    if not end.is_fault:
        faults.pop(position, None)
        return
    lasted = now.ms - int(draft["not_before"][position]) >= FAULT_RESET_MS
    faults[position] = 1 if lasted else faults.get(position, 0) + 1


def _decide_retry(spec: JobSpec, draft: Draft[TaskBlock], index: int, end: AttemptEnd) -> RetryOutcome:
    """What is beyond the wanted has its next try when more are wanted again, unless it may have none."""
    position = index % BLOCK_TASKS
    failures, wanted = int(draft["failures"][position]), bool(draft["state"][position] == _WANTED)
    wanted &= not (spec.is_scaled_down(index) and spec.run is RunMode.AT_MOST_ONCE)
    return (service_restart.decide_restart if spec.is_service else decide_retry)(spec, end, failures, wanted)


def _apply_outcome(
    job: JobView, draft: Draft[TaskBlock], index: int, outcome: RetryOutcome, now: Instant, *, faults: int
) -> RetryOutcome:
    """Enter what becomes of one task. `faults`: of the cluster in a row, if one has ended its last try."""
    spec, position = job.spec, index % BLOCK_TASKS
    before = TaskState(draft["state"][position])
    tries, failures = int(draft["wanted"][position]), int(draft["failures"][position])
    if outcome.event is TaskEvent.RETRY and tries >= TRIES_MAX:
        outcome = RetryOutcome(
            TaskEvent.RETRIES_EXHAUSTED, reason=f"tried {TRIES_MAX} times, which is the most"
        )
    if outcome.event in _STOPPED and job.verdict is not None and job.verdict.ends:
        outcome = RetryOutcome(TaskEvent.TIMED_OUT, reason=job.verdict.reason)
    draft["state"][position] = step(TASK, before, outcome.event)
    if outcome.event in (TaskEvent.RETRY, TaskEvent.QUARANTINED):
        draft["wanted"][position] = tries + 1
        draft["failures"][position] = min(failures + outcome.counts_as_retry, TRIES_MAX)
        name = f"{spec.id}/{index}/{tries}"
        pauses = service_restart.BACKOFF if spec.is_service else spec.retry
        pause = (
            backoff_ms(pauses, failures, name) if outcome.counts_as_retry else fault_backoff_ms(faults, name)
        )
        draft["not_before"][position] = now.ms + (
            HELD_MS if outcome.event is TaskEvent.QUARANTINED else pause
        )
    return outcome


def _retry_event(job: JobView, again: list[int]) -> EventRecord:
    ranges = Ranges(again)
    why = f"tried again: task{'s' if len(again) > 1 else ''} {ranges} of job {job.spec.id}"
    return EventRecord("task.retry", why, job=job.spec.id, indices=tuple(ranges.pairs))


def _before_start(job: JobView, now: Instant, *, canceled: bool) -> Plan:
    """Nothing of it has begun: it begins, or ends at once."""
    state = job.status.state if job.status is not None else _SUBMITTED if job.cluster is None else _ASSIGNED
    if canceled:
        return _end_job(job, JobEvent.CANCEL_REQUESTED, state, now)
    if job.verdict is not None and job.verdict.late:
        return _end_job(job, JobEvent.SOME_TIMED_OUT, state, now)
    if state is _ASSIGNED:
        return _wait_for_dependencies(job.spec) if job.spec.after else _start_job(job.spec, now)
    return NO_CHANGE


def _start_job(spec: JobSpec, now: Instant) -> Plan:
    why = f"{spec.size} task{'s' if spec.size > 1 else ''} of job {spec.id} wanted"
    if spec.kind is _SYSTEM:
        why = f"a task of job {spec.id} wanted on every node that fits"
    done = sum(last - first + 1 for first, last in spec.carried)
    if done:
        why = (
            f"{spec.count - done} of {spec.count} tasks of job {spec.id} wanted: {done} have succeeded before"
        )
    status = JobStatus(spec.id, _STARTED, wanted_at_ms=now.ms)
    return Plan(
        (status, *carried_blocks(spec)), events=(EventRecord("job.active", why, job=spec.id),), why=why
    )


def _wait_for_dependencies(spec: JobSpec) -> Plan:
    """Whether it has to is seen next, by who looks at the others."""
    state = step(JOB, _ASSIGNED, JobEvent.DEPENDENCIES_PENDING)
    others = spec.after[0].description if len(spec.after) == 1 else f"{len(spec.after)} jobs to end"
    return Plan((JobStatus(spec.id, state),), why=f"job {spec.id} waits for {others}")


def _result_event(job: JobView) -> JobEvent:
    counts = job.task_counts.as_dict()
    if counts["failed"] or counts["lost"]:
        return JobEvent.SOME_FAILED
    if counts["timed_out"]:
        return JobEvent.SOME_TIMED_OUT
    return JobEvent.ALL_STOPPED if counts["canceled"] > _count_scaled_down(job) else JobEvent.ALL_SUCCEEDED


def _count_scaled_down(job: JobView) -> int:
    """Tasks that ended because fewer are wanted: the others alone make the result."""
    spec = job.spec
    blocks = range(spec.size // BLOCK_TASKS, spec.blocks if spec.desired_count is not None else 0)
    starts = {block: max(0, spec.size - block * BLOCK_TASKS) for block in blocks}
    return sum(job.phases[block].count(Phase.CANCELED, start) for block, start in starts.items())


def _end_job(job: JobView, event: JobEvent, before: JobState, now: Instant) -> Plan:
    status = final_status(job, step(JOB, before, event), now)
    why = f"job {job.spec.id} {status.state.value}: {status.reason}"
    return Plan(
        (status,),
        events=(
            EventRecord(
                "job.ended", why, job=job.spec.id, state=status.state.value, exit_code=status.exit_code
            ),
        ),
        why=why,
    )


RECONCILER = Reconciler("batch", "controllers", WAKES, decide, start)
