"""The life of a job: its start, the outcome of ended attempts, user actions, and its end.

Two kinds of keys: a job's id for the job as a whole, and `job/block` for the ended attempts of one block of
tasks. All kinds of jobs are decided here; services and system jobs differ in when a task is started again.
"""

from collections.abc import Iterable

from rota.controllers import adoption_timeout, quarantine
from rota.controllers.attempt_end import AttemptEnd, RetryOutcome, end_of_attempt
from rota.controllers.job_result import final_status
from rota.controllers.recovery import BlockRecords, ask_recovery_controller
from rota.controllers.retry import (
    SERVICE_BACKOFF,
    backoff_ms,
    decide_restart,
    decide_retry,
    fault_backoff_ms,
)
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
from rota.model.recovery import Loss, RecoveryAnswers
from rota.model.shape import RunMode
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.rules.phases import Phase
from rota.rules.reconciler_names import ReconcilerName

# Plain numbers: enum members are slow to look up, and these are needed at every report.
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
    # Version 1 waits for its cluster, and JobCluster wakes the job then.
    JobSpec: lambda spec: _keys_of_updated(spec) if spec.version > 1 else (),
    TaskBlock: lambda block: (block.job,),
    StatusBlock: lambda block: (f"{block.job}/{block.block}",),
    RecoveryAnswers: lambda answers: {
        f"{answers.id}/{index // BLOCK_TASKS}": None for index in answers.decisions
    },
}


def _keys_of_updated(spec: JobSpec) -> Iterable[str]:
    """Keys of an updated job: only ended tasks may be left, and lost ones may be decided differently."""
    yield spec.id
    yield from (f"{spec.id}/{block}" for block in range(spec.blocks))


def start(view: View) -> Iterable[str]:
    for job, entry in view.jobs.items():
        # Blocks are decided as well: a crash may have come between the commit of a
        # report and that of its outcome.
        if entry.status is None or not entry.status.ended:
            yield from (f"{job}/{block}" for block in entry.statuses)
            yield job


def decide(view: View, key: str, now: Instant) -> Plan:
    job_id, _, block = key.partition("/")
    job = view.jobs.get(JobId(job_id))
    # Results are final: a late report or a repeated action changes nothing of an ended job.
    if job is None or (job.status is not None and job.status.ended):
        return NO_CHANGE
    if not block:
        return decide_job(job, now)
    return finish_attempts(view, job, int(block), now) if int(block) in job.statuses else NO_CHANGE


def decide_job(job: JobView, now: Instant) -> Plan:
    """The job as a whole: start it, pause it, cancel it, end it."""
    cancel = is_cancel_requested(job)
    if job.status is None or job.status.state is _WAITING:
        return _before_start(job, now, canceled=cancel or are_all_tasks_canceled(job))
    # The order of these checks is the order of precedence: a job that has ended by itself is not canceled any
    # more, and a verdict of the scheduler ends a job only when none of its attempts is live.
    if job.status.state is _CANCELING:
        return (
            _end_job(job, JobEvent.ALL_STOPPED, job.status.state, now)
            if job.task_counts.live == 0
            else NO_CHANGE
        )
    if job.task_counts.ended == job.spec.count and job.spec.kind is not _SYSTEM:  # new nodes get tasks
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
    """Ended attempts of a block -> the outcome of their tasks: success, retry, quarantine, or the end."""
    attempt, status = job.attempts[block], job.statuses[block]
    task = job.tasks.get(block) or TaskBlock.new(job.spec.id, block, job.spec.block_size(block))
    positions = _newly_ended(task, attempt, status)
    if not positions:
        # A withdrawn offer may have been the last live attempt of a job that was rejected or scaled down.
        is_over = job.verdict is not None or job.spec.desired_count is not None
        return decide_job(job, now) if is_over else NO_CHANGE
    # Losses first: a task that waits for its recovery controller must not be decided by the retry policy.
    request = ask_recovery_controller(view, job, BlockRecords(task, attempt, status), positions, now)
    positions = [position for position in positions if position not in request.losses]
    # Nothing to write: no notice is due. Only the timer is kept.
    if not positions and request.losses == task.losses:
        return Plan(wake_at_ms=request.wake_at_ms)
    outcomes = _BlockOutcomes(view, job, BlockRecords(task, attempt, status), now)
    for position in outcomes.finish_successful(positions):
        outcomes.finish(position, request.decisions.get(position))
    return Plan(
        (outcomes.task_block(request.losses),),
        events=(*request.events, *outcomes.events()),
        why=f"{len(positions) + len(request.losses)} tries of job {job.spec.id} ended",
        wake_at_ms=request.wake_at_ms,
    )


class _BlockOutcomes:
    """The outcomes of ended attempts of one block, collected into its next task block."""

    def __init__(self, view: View, job: JobView, records: BlockRecords, now: Instant) -> None:
        self._job, self._records, self._now = job, records, now
        self._draft = Draft(records.task)
        self._reasons, self._faults = dict(records.task.reasons), dict(records.task.faults)
        self._blame = quarantine.Blame(view, records, now)
        self._retried: list[int] = []
        self._held: dict[str, list[int]] = {}  # reason -> indices

    def finish_successful(self, positions: list[int]) -> list[int]:
        """Finish all tasks that succeeded, with one write per column; returns the other positions."""
        spec, (task, _, status) = self._job.spec, self._records
        succeeded = [
            at
            for at in positions
            if status.state[at] == _SUCCEEDED and not _restarts_after_success(spec, task, at)
        ]
        # This includes tasks that ended well before a cancel reached them.
        self._draft.fill("state", succeeded, [_DONE] * len(succeeded))
        stable = _stable(spec, status, positions)
        self._draft.fill("failures", stable, [0] * len(stable))
        return sorted(set(positions).difference(succeeded))

    def finish(self, position: int, decision: TaskEvent | None) -> None:
        """Finish one task, as its recovery controller decided or by the retry policy."""
        job, (task, attempt, status) = self._job, self._records
        index = task.block * BLOCK_TASKS + position
        # Order: blame may mark the end as suspect, and the number of faults decides about the backoff. Both
        # come before the decision that uses them.
        end = self._blame.record(end_of_attempt(job.spec, attempt, status, position), position)
        _count_fault(self._faults, self._draft, position, end, self._now)
        outcome = (
            _decide_retry(job.spec, self._draft, index, end) if decision is None else RetryOutcome(decision)
        )
        faults = self._faults.get(position, 0)
        # A decision of the recovery controller takes the same path, so that "again" is
        # followed by the same backoff.
        outcome = _apply_outcome(job, self._draft, index, outcome, self._now, faults=faults)
        reason = outcome.reason or status.reasons.get(position) or end.reason
        if outcome.event is TaskEvent.RETRY:
            # The next attempt of a scaled-down task is desired only on paper until the
            # job is scaled up: no event.
            self._retried += [] if job.spec.is_scaled_down(index) else [index]
        elif outcome.event is TaskEvent.QUARANTINED:
            reason = self._blame.reasons[position]
            self._held.setdefault(reason, []).append(index)
        if reason is not None:
            self._reasons[position] = reason

    def task_block(self, losses: dict[int, Loss]) -> TaskBlock:
        return self._draft.done(
            reasons=self._reasons,
            downed=self._blame.lost_nodes,
            downed_ms=self._blame.lost_at_ms,
            deaths=self._blame.keeper_deaths,
            faults=self._faults,
            losses=losses,
        )

    def events(self) -> list[EventRecord]:
        retried = [_retry_event(self._job, self._retried)] if self._retried else []
        held = [quarantine.held_event(self._job, indices, reason) for reason, indices in self._held.items()]
        return retried + held


def _newly_ended(task: TaskBlock, attempt: AttemptBlock, status: StatusBlock) -> list[int]:
    """Positions whose current attempt was for the desired try and has ended.

    Attempt numbers fence reports: an end of an older attempt is ignored. A refusal or withdrawal ends no try:
    the same try is placed again, unless the task is no longer desired.
    """
    number, known = ints(attempt, "number"), ints(status, "number")
    tries, wanted = ints(attempt, "tries"), ints(task, "wanted")
    return [
        at
        for at in _ended(task, status)
        # The comparison of `tries` makes this idempotent: once the outcome is written, the task wants a newer
        # try than this attempt was for, or has ended.
        if (task.state[at] == _UNWANTED or status.state[at] < _REFUSED)
        and known[at] == number[at] > 0
        and tries[at] == wanted[at]
    ]


def _ended(task: TaskBlock, status: StatusBlock) -> list[int]:
    """Positions of ended attempts whose tasks have not ended."""
    # Arrays pay off for large blocks only; most jobs have one task, and this runs at every report.
    if len(status.state) > FEW:
        return where((small(status.state) >= _END) & (small(task.state) <= _UNWANTED))
    both = enumerate(zip(status.state, task.state, strict=True))
    return [at for at, (state, desired) in both if state >= _END and desired <= _UNWANTED]


def _restarts_after_success(spec: JobSpec, task: TaskBlock, position: int) -> bool:
    """Whether the task is started again even after exit code 0."""
    # A system task that is no longer desired (its job is canceled) may end with its exit code.
    return spec.is_service or (spec.kind is JobKind.SYSTEM and task.state[position] == _WANTED)


def _stable(spec: JobSpec, status: StatusBlock, positions: list[int]) -> list[int]:
    """Positions of attempts that ran long enough to reset the backoff of a service or system job."""
    # Retries of a batch task are a budget for its whole life. Restarts of a service only pace each other.
    if spec.kind is JobKind.BATCH:
        return []
    ran_us = ints(status, "ran_us")
    least_us = SERVICE_STABLE_US if spec.is_service else RETRY_BACKOFF_MAX_MS * 1000
    return [at for at in positions if ran_us[at] >= least_us]


def _count_fault(
    faults: dict[int, int], draft: Draft[TaskBlock], position: int, end: AttemptEnd, now: Instant
) -> None:
    """Count consecutive faults of the cluster; any other end, or a try that lasted, resets the count."""
    if not end.is_fault:
        faults.pop(position, None)
        return
    # `not_before` is when this try was allowed to start. It is in the record, so the count survives a
    # change of the leader without another field.
    lasted = now.ms - int(draft["not_before"][position]) >= FAULT_RESET_MS
    faults[position] = 1 if lasted else faults.get(position, 0) + 1


def _decide_retry(spec: JobSpec, draft: Draft[TaskBlock], index: int, end: AttemptEnd) -> RetryOutcome:
    """Outcome of an ended attempt. A scaled-down task is retried once the job is scaled up again."""
    position = index % BLOCK_TASKS
    failures, is_wanted = int(draft["failures"][position]), bool(draft["state"][position] == _WANTED)
    # An at-most-once task has no next attempt that a later scale-up could place: it ends as canceled.
    is_wanted &= not (spec.is_scaled_down(index) and spec.run is RunMode.AT_MOST_ONCE)
    return (decide_restart if spec.is_service else decide_retry)(spec, end, failures, is_wanted)


def _apply_outcome(
    job: JobView, draft: Draft[TaskBlock], index: int, outcome: RetryOutcome, now: Instant, *, faults: int
) -> RetryOutcome:
    """Write the outcome of one task into the draft; `faults` are the consecutive faults of the cluster."""
    spec, position = job.spec, index % BLOCK_TASKS
    before = TaskState(draft["state"][position])
    tries, failures = int(draft["wanted"][position]), int(draft["failures"][position])
    # The number of a try has a bounded column. Faults of the cluster cost no retry, so only this bound
    # ends a task that never stops being lost.
    if outcome.event is TaskEvent.RETRY and tries >= TRIES_MAX:
        outcome = RetryOutcome(
            TaskEvent.RETRIES_EXHAUSTED, reason=f"tried {TRIES_MAX} times, which is the most"
        )
    # The stop was ordered because of the deadline. The result says so, not that a user canceled the task.
    if outcome.event in _STOPPED and job.verdict is not None and job.verdict.ends:
        outcome = RetryOutcome(TaskEvent.TIMED_OUT, reason=job.verdict.reason)
    draft["state"][position] = step(TASK, before, outcome.event)
    if outcome.event in (TaskEvent.RETRY, TaskEvent.QUARANTINED):
        # The scheduler places a task whose desired try is newer than the one its attempt was for: this line
        # is the retry.
        draft["wanted"][position] = tries + 1
        draft["failures"][position] = min(failures + outcome.counts_as_retry, TRIES_MAX)
        # The try is part of the name: the jitter differs from try to try, and tasks
        # that fail together spread out.
        name = f"{spec.id}/{index}/{tries}"
        retry = SERVICE_BACKOFF if spec.is_service else spec.retry
        delay_ms = (
            backoff_ms(retry, failures, name) if outcome.counts_as_retry else fault_backoff_ms(faults, name)
        )
        draft["not_before"][position] = now.ms + (
            HELD_MS if outcome.event is TaskEvent.QUARANTINED else delay_ms
        )
    return outcome


def _retry_event(job: JobView, indices: list[int]) -> EventRecord:
    ranges = Ranges(indices)
    why = f"tried again: task{'s' if len(indices) > 1 else ''} {ranges} of job {job.spec.id}"
    return EventRecord("task.retry", why, job=job.spec.id, indices=tuple(ranges.pairs))


def _before_start(job: JobView, now: Instant, *, canceled: bool) -> Plan:
    """No task has started: start the job, or end it immediately."""
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
        (status, *_carried_blocks(spec)), events=(EventRecord("job.active", why, job=spec.id),), why=why
    )


def _carried_blocks(spec: JobSpec) -> tuple[TaskBlock, ...]:
    """Task blocks of a rerun: tasks that succeeded in the previous job count as succeeded here."""
    drafts: dict[int, Draft[TaskBlock]] = {}
    for first, last in spec.carried:
        for block in range(first // BLOCK_TASKS, last // BLOCK_TASKS + 1):
            if block not in drafts:
                drafts[block] = Draft(TaskBlock.new(spec.id, block, spec.block_size(block)))
            start = block * BLOCK_TASKS
            drafts[block]["state"][max(first - start, 0) : last - start + 1] = _DONE
    return tuple(draft.done() for draft in drafts.values())


def _wait_for_dependencies(spec: JobSpec) -> Plan:
    """Enter WAITING; the dependencies reconciler then checks whether the job has to wait at all."""
    state = step(JOB, _ASSIGNED, JobEvent.DEPENDENCIES_PENDING)
    others = spec.after[0].description if len(spec.after) == 1 else f"{len(spec.after)} jobs to end"
    return Plan((JobStatus(spec.id, state),), why=f"job {spec.id} waits for {others}")


def _result_event(job: JobView) -> JobEvent:
    counts = job.task_counts.as_dict()
    # Ranked by severity: one failed task makes a failed job, even if others timed out or were canceled.
    if counts["failed"] or counts["lost"]:
        return JobEvent.SOME_FAILED
    if counts["timed_out"]:
        return JobEvent.SOME_TIMED_OUT
    return JobEvent.ALL_STOPPED if counts["canceled"] > _count_scaled_down(job) else JobEvent.ALL_SUCCEEDED


def _count_scaled_down(job: JobView) -> int:
    """Tasks canceled by scale-down; excluded from the job result."""
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


RECONCILER = Reconciler(ReconcilerName.BATCH, "controllers", WAKES, decide, start)
