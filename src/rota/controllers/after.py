"""A job that waits for others + how those ended -> it begins, goes on waiting, or can never begin."""

from collections.abc import Iterable

from rota.controllers.ending import ending
from rota.engine.reconciler import Reconciler
from rota.model.after import After
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JOB, JobEvent, JobState, step
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.view import JobView, View, state_of

NAME = "after"


def _wakes(status: JobStatus) -> Iterable[str]:
    """Of a job that begins to wait, and of one that others may have waited for."""
    return (status.id,) if status.ended or status.state is JobState.WAITING else ()


def start(view: View) -> Iterable[str]:
    return (job for job, entry in view.jobs.items() if _waits(entry))


def decide(view: View, key: str, now: Instant) -> Plan:
    """The job itself if it waits, else all that wait for it: what two looks find is the same."""
    job = view.jobs.get(JobId(key))
    if job is not None and _waits(job):
        return _together([settle(view, job, now)])
    waiting = (view.jobs[follower] for follower in view.followers(JobId(key)))
    return _together([settle(view, one, now) for one in waiting if _waits(one)])


def settle(view: View, job: JobView, now: Instant) -> Plan:
    unmet = 0
    for after in job.spec.after:
        match after.holds(state_of(view, after.job)):
            case False:
                return _never(view, job, after, now)
            case None:
                unmet += 1
            case True:
                pass
    return NOTHING if unmet else _begin(job, now)


def _begin(job: JobView, now: Instant) -> Plan:
    spec = job.spec
    tasks = f"{spec.size} task{'s' if spec.size > 1 else ''} of job {spec.id}"
    others = "the job it waited for has" if len(spec.after) == 1 else "the jobs it waited for have"
    why = f"{tasks} wanted: {others} ended"
    state = step(JOB, JobState.WAITING, JobEvent.TASKS_WANTED)
    status = JobStatus(spec.id, state, wanted_at_ms=now.ms)
    return Plan((status,), events=(Event("job.active", why, job=spec.id),), why=why)


def _never(view: View, job: JobView, after: After, now: Instant) -> Plan:
    state = state_of(view, after.job)
    became = "was deleted" if state is None else _BECAME[state]
    reason = f"it waited for {after.words}, which {became}"
    status = ending(job, step(JOB, JobState.WAITING, JobEvent.NEVER_TO_BEGIN), now, reason)
    why = f"job {job.spec.id} {status.state.value}: {reason}"
    event = Event("job.ended", why, job=job.spec.id, state=status.state.value)
    return Plan((status,), events=(event,), why=why)


_BECAME = {
    JobState.SUCCEEDED: "has succeeded",
    JobState.FAILED: "has failed",
    JobState.CANCELED: "was canceled",
    JobState.TIMED_OUT: "ran over its time limit",
    JobState.REJECTED: "was rejected",
}


def _waits(job: JobView) -> bool:
    return job.status is not None and job.status.state is JobState.WAITING


def _together(plans: list[Plan]) -> Plan:
    puts = tuple(record for plan in plans for record in plan.puts)
    events = tuple(event for plan in plans for event in plan.events)
    return Plan(puts, events=events, why="; ".join(plan.why for plan in plans if plan.why))


RECONCILER = Reconciler(NAME, "controllers", {JobStatus: _wakes}, decide, start)
