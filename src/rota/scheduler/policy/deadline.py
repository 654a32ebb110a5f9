"""A job that misses its deadline, or exceeds its queue timeout -> the verdict that it is too late."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.columns import ints
from rota.model.ids import JobId
from rota.model.job import JobSpec, SchedulerVerdict
from rota.model.lifecycle import JobState
from rota.model.limits import TICK_MS, WALL_CLOCK_CHECK_MS
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, wake_at
from rota.model.view import JobView, View
from rota.rules.phases import Phase
from rota.rules.reconciler_names import ReconcilerName

WAKES: Wakes = {JobSpec: lambda spec: (spec.id,) if _has_limit(spec) else ()}


def start(view: View) -> Iterable[str]:
    return (job for job, entry in view.jobs.items() if _has_limit(entry.spec))


def decide(view: View, key: str, now: Instant) -> Plan:
    job = view.jobs.get(JobId(key))
    if job is None or (job.status is not None and job.status.ended) or not _has_limit(job.spec):
        return NO_CHANGE
    # Only a deadline can still change a verdict: from "cannot start in time" to "was not over in time".
    if job.verdict is not None and (job.verdict.ends or job.spec.deadline_at_ms is None):
        return NO_CHANGE
    verdict = _overdue(job, now) or _unstarted(job, now)
    if verdict is not None and verdict != job.verdict:
        event = EventRecord("placement.impossible", verdict.reason, job=job.spec.id)
        wake_at_ms = None if verdict.ends else _next_check_ms(job, now)
        return Plan(
            (verdict,), events=(event,), why=f"job {key} is too late: {verdict.reason}", wake_at_ms=wake_at_ms
        )
    return wake_at(_next_check_ms(job, now))


def _has_limit(spec: JobSpec) -> bool:
    return spec.deadline_at_ms is not None or spec.queue_timeout_seconds is not None


def _overdue(job: JobView, now: Instant) -> SchedulerVerdict | None:
    """Verdict by deadline: a started job may run until then, another one needs its expected time."""
    deadline_ms = job.spec.deadline_at_ms
    if deadline_ms is None:
        return None
    if now.wall_ms > deadline_ms and job.attempts:
        return SchedulerVerdict(job.spec.id, "it was not over by its deadline", late=True, ends=True)
    # It would use resources that others need, and still end too late.
    if now.wall_ms > deadline_ms - (job.spec.expect_ms or 0) and not job.attempts:
        return SchedulerVerdict(job.spec.id, "it can no longer be over by its deadline", late=True)
    return None


def _unstarted(job: JobView, now: Instant) -> SchedulerVerdict | None:
    """Verdict by queue timeout: some tasks have been pending for longer than that."""
    seconds, since_ms = job.spec.queue_timeout_seconds, _waits_since_ms(job)
    if seconds is None or since_ms is None or job.verdict is not None or now.ms < since_ms + seconds * 1000:
        return None
    tasks = "it" if job.spec.count == 1 else f"{job.task_counts.pending} of its {job.spec.count} tasks"
    reason = f"{tasks} waited for longer than its queue_timeout of {seconds:g} s"
    return SchedulerVerdict(job.spec.id, reason, late=True)


def _waits_since_ms(job: JobView) -> int | None:
    """Cluster time since which its first task is pending; backoff after a failure does not count."""
    if job.status is None or job.status.state is not JobState.ACTIVE or job.task_counts.pending == 0:
        return None
    since_ms: list[int] = []
    for block, task in job.tasks.items():
        not_before = ints(task, "not_before")
        pending = (at for at, phase in enumerate(job.phases[block]) if phase == Phase.PENDING)
        since_ms += [max(job.status.wanted_at_ms, not_before[at]) for at in pending]
    if len(since_ms) < job.task_counts.pending:  # some tasks were never tried, and have no entry
        return job.status.wanted_at_ms
    return min(since_ms)


def _next_check_ms(job: JobView, now: Instant) -> int:
    """When a verdict may be due: at the deadline or timeout, and periodically, as the wall clock may jump."""
    spec, found = job.spec, [now.ms + WALL_CLOCK_CHECK_MS]
    if spec.deadline_at_ms is not None:
        last_ms = spec.deadline_at_ms - (0 if job.attempts else spec.expect_ms or 0)
        found += [now.ms + at_ms - now.wall_ms + 1 for at_ms in (last_ms, spec.deadline_at_ms)]
    if spec.queue_timeout_seconds is not None and job.verdict is None:
        timeout_ms, since_ms = round(spec.queue_timeout_seconds * 1000), _waits_since_ms(job)
        # No task is pending, and no record wakes this key when one is: poll, but not faster than TICK_MS.
        found.append(now.ms + max(TICK_MS, timeout_ms) if since_ms is None else since_ms + timeout_ms)
    return min(at_ms for at_ms in found if at_ms > now.ms)


RECONCILER = Reconciler(ReconcilerName.DEADLINE, "scheduler", WAKES, decide, start)
