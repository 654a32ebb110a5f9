"""A job that has not begun and can no longer be over by its deadline -> the verdict that it is too late."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobVerdict
from rota.model.plan import NOTHING, Event, Instant, Plan, Record, look_again
from rota.model.view import View


def wakes(record: Record) -> Iterable[str]:
    return (record.id,) if isinstance(record, JobSpec) and record.deadline_at_ms is not None else ()


def start(view: View) -> Iterable[str]:
    return (job for job, entry in view.jobs.items() if entry.spec.deadline_at_ms is not None)


def decide(view: View, key: str, now: Instant) -> Plan:
    job = view.jobs.get(JobId(key))
    if (
        job is None
        or job.attempts
        or job.verdict is not None
        or (job.status is not None and job.status.ended)
    ):
        return NOTHING
    assert job.spec.deadline_at_ms is not None
    last_start_ms = job.spec.deadline_at_ms - (job.spec.expect_ms or 0)
    if now.wall_ms <= last_start_ms:
        return look_again(now.ms + last_start_ms - now.wall_ms + 1)
    reason = "it can no longer be over by its deadline"
    verdict = JobVerdict(job.spec.id, reason, late=True)
    why = f"job {key} is too late: {reason}"
    return Plan((verdict,), events=(Event("placement.impossible", reason, job=job.spec.id),), why=why)


RECONCILER = Reconciler("deadline", "scheduler", wakes, decide, start)
