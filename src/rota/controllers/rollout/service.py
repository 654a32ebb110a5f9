"""Rollout of a service: replace the next tasks once the previous ones are healthy, or fail the rollout."""

from itertools import islice

from rota.controllers.rollout.health_gate import RolloutGate
from rota.controllers.rollout.replacements import changed_blocks, replaced_events
from rota.model.columns import Draft, small
from rota.model.job import JobIntent, JobStatus
from rota.model.lifecycle import TaskState
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, Record
from rota.model.rollout import JobRollout, RolloutState
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.rules.phases import Phase


def decide_service(view: View, job: JobView, intent: JobIntent, status: JobStatus, now: Instant) -> Plan:
    """One step of a rollout. Invariant: at most `max_parallel` tasks are unavailable, for whatever reason."""
    # The record comes first: the deadline counts from it, also after a crash or under another leader.
    if job.rollout is None or job.rollout.version != intent.replace:
        return _start_rollout(job, intent, now)
    rollout = job.rollout
    # Some tasks may be of the new version. The rollback reconciler, or the user, decides what follows.
    if rollout.state is RolloutState.FAILED:
        return NO_CHANGE
    gate = RolloutGate(view, job, intent, _healthy_ms(job, rollout), now)
    since_ms = max(rollout.moved_ms, status.wanted_at_ms)  # a paused job makes no progress
    deadline_ms = since_ms + round(job.spec.rollout.deadline_seconds * 1000)
    # A rollback is never failed: there is no older version to return to.
    is_tried = rollout.state is RolloutState.IN_PROGRESS and not intent.back_from
    if is_tried and (gate.failure is not None or now.ms >= deadline_ms):
        return _fail_rollout(job, rollout, gate, gate.failure or _describe_stall(job, rollout, gate))
    # Unhealthy old tasks do not serve: replacing them makes no further task unavailable, so they are not
    # limited.
    free = intent.max_parallel - len(gate.unavailable)
    chosen = dict(sorted((gate.unhealthy_old | dict(islice(gate.healthy_old.items(), max(0, free)))).items()))
    is_done = not (gate.unavailable or gate.healthy_old or gate.unhealthy_old)
    updated = _with_progress(rollout, gate, now, is_done=is_done)
    # The proofs are needed only until the rollout ends, and are dropped with it:
    # they cost space in every block.
    proofs = {} if updated.state is RolloutState.DONE else gate.healthy_since
    puts: tuple[Record, ...] = changed_blocks(job, {**gate.being_replaced, **chosen}, proofs)
    puts += (updated,) if updated != rollout else ()
    events = replaced_events(job, chosen)
    if updated.state is not rollout.state:
        events += (_event(job, updated, f"job {job.spec.id} runs as version {rollout.version}"),)
    times = (gate.wake_at_ms, deadline_ms if is_tried and not is_done else None)
    wake_at_ms = min((at_ms for at_ms in times if at_ms is not None), default=None)
    why = f"job {job.spec.id} moves on to version {rollout.version}" if puts else ""
    return Plan(puts, events=events, why=why, wake_at_ms=wake_at_ms)


def _healthy_ms(job: JobView, rollout: JobRollout) -> int:
    """How long a new task has to be healthy; 0 once all tasks have been."""
    return 0 if rollout.state is RolloutState.DONE else round(job.spec.rollout.healthy_seconds * 1000)


def _start_rollout(job: JobView, intent: JobIntent, now: Instant) -> Plan:
    """Start a rollout. Backoff after failures of an older version does not delay the newer one."""
    rollout = JobRollout(job.spec.id, intent.replace, moved_ms=now.ms)
    blocks = [_without_backoff(job, task, now) for task in job.tasks.values()]
    puts = [block for block in blocks if block is not None]
    return Plan((rollout, *puts), why=f"job {job.spec.id} begins to move on to version {intent.replace}")


def _without_backoff(job: JobView, task: TaskBlock, now: Instant) -> TaskBlock | None:
    draft = Draft(task)
    pending = small(job.phases[task.block]) == Phase.PENDING
    backing_off = pending & (draft["state"] == TaskState.WANTED) & (draft["not_before"] > now.ms)
    if not backing_off.any():
        return None
    draft["not_before"][backing_off] = now.ms
    # The failures belong to the version that is being replaced; a fix must not wait for its backoff.
    draft["failures"][backing_off] = 0
    return draft.done()


def _with_progress(rollout: JobRollout, gate: RolloutGate, now: Instant, *, is_done: bool) -> JobRollout:
    if rollout.state is RolloutState.DONE:
        return rollout
    moved = rollout.with_progress(gate.healthy_new, now.ms)
    return moved.done() if is_done else moved


def _describe_stall(job: JobView, rollout: JobRollout, gate: RolloutGate) -> str:
    seconds = f"{job.spec.rollout.deadline_seconds:g} s"
    index, reason = next(iter(gate.unavailable.items()), (None, ""))
    detail = "" if index is None else f": task {index} {reason}"
    return f"no task became healthy as version {rollout.version} within {seconds}{detail}"


def _fail_rollout(job: JobView, rollout: JobRollout, gate: RolloutGate, reason: str) -> Plan:
    failed = rollout.failed(reason)
    why = f"version {rollout.version} of job {job.spec.id} has failed: {reason}"
    return Plan(
        (failed, *changed_blocks(job, gate.being_replaced, {})), events=(_event(job, failed, why),), why=why
    )


def _event(job: JobView, rollout: JobRollout, why: str) -> EventRecord:
    return EventRecord("job.rollout", why, job=job.spec.id, state=rollout.state.value)
