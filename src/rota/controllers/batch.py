"""A job -> tasks that are wanted; ended attempts -> results; all results -> the job's end."""

from collections.abc import Iterable

from rota.controllers import adopted, hold, service
from rota.controllers.carried import carried
from rota.controllers.ending import ending
from rota.controllers.owner import Block, ask_owner
from rota.controllers.retry import fault_pause_ms, judge, pause_ms
from rota.controllers.verdict import End, Verdict, end_of
from rota.controllers.wishes import is_canceled, is_nothing_left, pause, stop_late, unwant, unwant_tasks
from rota.engine.reconciler import Reconciler, Wakes, own_id
from rota.model.adoption import JobAdoption
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.columns import FEW, Draft, Ranges, ints, small, where
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobSpec, JobStatus, JobVerdict, JobWish, Kind
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
    RETRY_LAST_MS,
    SERVICE_LASTED_US,
    TRIES_MAX,
)
from rota.model.phase import Phase
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.recovery import JobAnswers
from rota.model.shape import RunMode
from rota.model.task import TaskBlock
from rota.model.view import JobView, View

# Plain numbers: enum members are slow to look up, and these are needed at every change.
_SUCCEEDED, _REFUSED, _END = int(AttemptState.SUCCEEDED), int(AttemptState.REFUSED), int(ATTEMPT_FIRST_END)
_STOPPED = (TaskEvent.STOPPED, TaskEvent.GONE)
_DONE = int(step(TASK, TaskState.WANTED, TaskEvent.DONE))
_WANTED, _UNWANTED = int(TaskState.WANTED), int(TaskState.UNWANTED)
_WAITING, _CANCELING, _SYSTEM = JobState.WAITING, JobState.CANCELING, Kind.SYSTEM
_SUBMITTED, _ACTIVE = JobState.SUBMITTED, JobState.ACTIVE
_ASSIGNED = step(JOB, _SUBMITTED, JobEvent.CLUSTER_CHOSEN)
_BEGUN = step(JOB, _ASSIGNED, JobEvent.TASKS_WANTED)


WAKES: Wakes = {
    **dict.fromkeys((JobCluster, JobWish, JobStatus, JobVerdict, JobAdoption), own_id),
    JobSpec: lambda spec: _updated(spec) if spec.version > 1 else (),
    TaskBlock: lambda block: (block.job,),
    StatusBlock: lambda block: (f"{block.job}/{block.block}",),
    JobAnswers: lambda answers: {f"{answers.id}/{index // BLOCK_TASKS}": None for index in answers.words},
}


def _updated(spec: JobSpec) -> Iterable[str]:
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
        return NOTHING
    if not block:
        return look(job, now)
    return settle(view, job, int(block), now) if int(block) in job.statuses else NOTHING


def look(job: JobView, now: Instant) -> Plan:
    """The job as a whole: begin it, pause it, cancel it, end it."""
    cancel = is_canceled(job)
    if job.status is None or job.status.state is _WAITING:
        return _before(job, now, canceled=cancel or is_nothing_left(job))
    if job.status.state is _CANCELING:
        return _end(job, JobEvent.ALL_STOPPED, job.status.state, now) if job.tally.live == 0 else NOTHING
    if job.tally.ended == job.spec.count and job.spec.kind is not _SYSTEM:  # that goes on
        return _end(job, _result(job), job.status.state, now)
    if job.verdict is not None and job.tally.live == 0 and (job.verdict.late or job.status.state is _ACTIVE):
        too_late = JobEvent.SOME_TIMED_OUT if job.verdict.late else JobEvent.NOWHERE_TO_RUN
        return _end(job, too_late, job.status.state, now)
    if cancel:
        return unwant(job)
    if job.verdict is not None and job.verdict.ends:
        return stop_late(job, job.verdict)
    if (plan := unwant_tasks(job) or pause(job, now) or adopted.close(job, now)) is not None:
        return plan
    return hold.tend(job, now) if job.tally.held else NOTHING


def settle(view: View, job: JobView, block: int, now: Instant) -> Plan:
    """Attempts of a block that ended -> what becomes of their tasks."""
    attempt, status = job.attempts[block], job.statuses[block]
    task = job.tasks.get(block) or TaskBlock.new(job.spec.id, block, job.spec.block_size(block))
    positions = _unsettled(task, attempt, status)
    if not positions:  # what was taken back may have been the last of a job that is given up, or made smaller
        is_over = job.verdict is not None or job.spec.kept is not None
        return look(job, now) if is_over else NOTHING
    asked = ask_owner(view, job, Block(task, attempt, status), positions, now)
    positions = [position for position in positions if position not in asked.losses]
    if not positions and asked.losses == task.losses:
        return Plan(wake_at_ms=asked.wake_at_ms)
    draft = Draft(task)
    reasons, faults = dict(task.reasons), dict(task.faults)
    blame = hold.Blame(view, Block(task, attempt, status), now)
    again: list[int] = []
    held: dict[str, list[int]] = {}  # by the reason
    done = [at for at in positions if status.state[at] == _SUCCEEDED and not _goes_on(job.spec, task, at)]
    draft.fill("state", done, [_DONE] * len(done))  # also of what was unwanted too late
    lasted = _lasted(job.spec, status, positions)
    draft.fill("failures", lasted, [0] * len(lasted))
    for position in sorted(set(positions).difference(done)):
        index = block * BLOCK_TASKS + position
        end = blame.on(end_of(job.spec, attempt, status, position), position)
        _count_fault(faults, draft, position, end, now)
        word = asked.words.get(position)
        verdict = Verdict(word) if word is not None else _judge(job.spec, draft, index, end)
        settled = _settle_one(job, draft, index, verdict, now, faults=faults.get(position, 0))
        reason = settled.reason or status.reasons.get(position) or end.reason
        if settled.event is TaskEvent.AGAIN:
            again += [] if job.spec.is_beyond(index) else [index]
        elif settled.event is TaskEvent.SUSPECTED:
            reason = blame.reasons[position]
            held.setdefault(reason, []).append(index)
        if reason is not None:
            reasons[position] = reason
    events = [] if not again else [_again_event(job, again)]
    events += [hold.held_event(job, indices, reason) for reason, indices in held.items()]
    changed = draft.done(
        reasons=reasons,
        downed=blame.nodes,
        downed_ms=blame.times_ms,
        deaths=blame.deaths,
        faults=faults,
        losses=asked.losses,
    )
    return Plan(
        (changed,),
        events=(*asked.events, *events),
        why=f"{len(positions) + len(asked.losses)} tries of job {job.spec.id} ended",
        wake_at_ms=asked.wake_at_ms,
    )


def _unsettled(task: TaskBlock, attempt: AttemptBlock, status: StatusBlock) -> list[int]:
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


def _goes_on(spec: JobSpec, task: TaskBlock, position: int) -> bool:
    """It is started again also when it has ended well."""
    return spec.stays or (spec.kind is Kind.SYSTEM and task.state[position] == _WANTED)


def _lasted(spec: JobSpec, status: StatusBlock, positions: list[int]) -> list[int]:
    """Those of what ran so long that the pause before its next start is a short one again."""
    if spec.kind is Kind.BATCH:
        return []
    ran_us = ints(status, "ran_us")
    least_us = SERVICE_LASTED_US if spec.stays else RETRY_LAST_MS * 1000
    return [at for at in positions if ran_us[at] >= least_us]


def _count_fault(
    faults: dict[int, int], draft: Draft[TaskBlock], position: int, end: End, now: Instant
) -> None:
    """Count the faults of the cluster in a row: any other end, or a try that lasted, begins a new row."""
    if not end.is_fault:
        faults.pop(position, None)
        return
    lasted = now.ms - int(draft["not_before"][position]) >= FAULT_RESET_MS
    faults[position] = 1 if lasted else faults.get(position, 0) + 1


def _judge(spec: JobSpec, draft: Draft[TaskBlock], index: int, end: End) -> Verdict:
    """What is beyond the wanted has its next try when more are wanted again, unless it may have none."""
    position = index % BLOCK_TASKS
    failures, wanted = int(draft["failures"][position]), bool(draft["state"][position] == _WANTED)
    wanted &= not (spec.is_beyond(index) and spec.run is RunMode.AT_MOST_ONCE)
    return (service.judge if spec.stays else judge)(spec, end, failures, wanted)


def _settle_one(
    job: JobView, draft: Draft[TaskBlock], index: int, verdict: Verdict, now: Instant, *, faults: int
) -> Verdict:
    """Enter what becomes of one task. `faults`: of the cluster in a row, if one has ended its last try."""
    spec, position = job.spec, index % BLOCK_TASKS
    before = TaskState(draft["state"][position])
    tries, failures = int(draft["wanted"][position]), int(draft["failures"][position])
    if verdict.event is TaskEvent.AGAIN and tries >= TRIES_MAX:
        verdict = Verdict(TaskEvent.SPENT, reason=f"tried {TRIES_MAX} times, which is the most")
    if verdict.event in _STOPPED and job.verdict is not None and job.verdict.ends:
        verdict = Verdict(TaskEvent.OVERTIME, reason=job.verdict.reason)
    draft["state"][position] = step(TASK, before, verdict.event)
    if verdict.event in (TaskEvent.AGAIN, TaskEvent.SUSPECTED):
        draft["wanted"][position] = tries + 1
        draft["failures"][position] = min(failures + verdict.spends_a_retry, TRIES_MAX)
        name = f"{spec.id}/{index}/{tries}"
        pauses = service.PAUSES if spec.stays else spec.retry
        pause = pause_ms(pauses, failures, name) if verdict.spends_a_retry else fault_pause_ms(faults, name)
        draft["not_before"][position] = now.ms + (HELD_MS if verdict.event is TaskEvent.SUSPECTED else pause)
    return verdict


def _again_event(job: JobView, again: list[int]) -> Event:
    ranges = Ranges(again)
    why = f"tried again: task{'s' if len(again) > 1 else ''} {ranges} of job {job.spec.id}"
    return Event("task.retry", why, job=job.spec.id, indices=tuple(ranges.pairs))


def _before(job: JobView, now: Instant, *, canceled: bool) -> Plan:
    """Nothing of it has begun: it begins, or ends at once."""
    state = job.status.state if job.status is not None else _SUBMITTED if job.cluster is None else _ASSIGNED
    if canceled:
        return _end(job, JobEvent.CANCEL_WISHED, state, now)
    if job.verdict is not None and job.verdict.late:
        return _end(job, JobEvent.SOME_TIMED_OUT, state, now)
    if state is _ASSIGNED:
        return _wait(job.spec) if job.spec.after else _begin(job.spec, now)
    return NOTHING


def _begin(spec: JobSpec, now: Instant) -> Plan:
    why = f"{spec.size} task{'s' if spec.size > 1 else ''} of job {spec.id} wanted"
    if spec.kind is _SYSTEM:
        why = f"a task of job {spec.id} wanted on every node that fits"
    done = sum(last - first + 1 for first, last in spec.carried)
    if done:
        why = (
            f"{spec.count - done} of {spec.count} tasks of job {spec.id} wanted: {done} have succeeded before"
        )
    status = JobStatus(spec.id, _BEGUN, wanted_at_ms=now.ms)
    return Plan((status, *carried(spec)), events=(Event("job.active", why, job=spec.id),), why=why)


def _wait(spec: JobSpec) -> Plan:
    """Whether it has to is seen next, by who looks at the others."""
    state = step(JOB, _ASSIGNED, JobEvent.OTHERS_FIRST)
    others = spec.after[0].words if len(spec.after) == 1 else f"{len(spec.after)} jobs to end"
    return Plan((JobStatus(spec.id, state),), why=f"job {spec.id} waits for {others}")


def _result(job: JobView) -> JobEvent:
    counts = job.tally.as_dict()
    if counts["failed"] or counts["lost"]:
        return JobEvent.SOME_FAILED
    if counts["timed_out"]:
        return JobEvent.SOME_TIMED_OUT
    return JobEvent.ALL_STOPPED if counts["canceled"] > _beyond(job) else JobEvent.ALL_SUCCEEDED


def _beyond(job: JobView) -> int:
    """Tasks that ended because fewer are wanted: the others alone make the result."""
    spec = job.spec
    blocks = range(spec.size // BLOCK_TASKS, spec.blocks if spec.kept is not None else 0)
    starts = {block: max(0, spec.size - block * BLOCK_TASKS) for block in blocks}
    return sum(job.phases[block].count(Phase.CANCELED, start) for block, start in starts.items())


def _end(job: JobView, event: JobEvent, before: JobState, now: Instant) -> Plan:
    status = ending(job, step(JOB, before, event), now)
    why = f"job {job.spec.id} {status.state.value}: {status.reason}"
    return Plan(
        (status,),
        events=(
            Event("job.ended", why, job=job.spec.id, state=status.state.value, exit_code=status.exit_code),
        ),
        why=why,
    )


RECONCILER = Reconciler("batch", "controllers", WAKES, decide, start)
