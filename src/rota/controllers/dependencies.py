"""A waiting job + the states of its dependencies -> it starts, keeps waiting, or is canceled."""

from collections.abc import Iterable

from rota.controllers.job_result import final_status
from rota.engine.reconciler import Reconciler
from rota.model.dependency import Dependency
from rota.model.ids import JobId
from rota.model.job import JobStatus
from rota.model.lifecycle import JOB, JobEvent, JobState, step
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.view import JobView, View, state_of
from rota.rules.reconciler_names import ReconcilerName


def _on_job_status(status: JobStatus) -> Iterable[str]:
    """Wake for a job that starts to wait, and for an ended one that others may depend on."""
    # A job that starts to wait is decided immediately: its dependencies may have ended before it was
    # submitted, and then no later record would wake it.
    return (status.id,) if status.ended or status.state is JobState.WAITING else ()


def start(view: View) -> Iterable[str]:
    # After a crash between the end of a dependency and the start that follows, no record wakes the waiting
    # job.
    return (job for job, entry in view.jobs.items() if _is_waiting(entry))


def decide(view: View, key: str, now: Instant) -> Plan:
    """Decide the job itself if it waits, else all jobs that depend on it; deciding twice is harmless."""
    job = view.jobs.get(JobId(key))
    if job is not None and _is_waiting(job):
        return _merge_plans([decide_waiting(view, job, now)])
    dependents = (view.jobs[dependent] for dependent in view.dependents(JobId(key)))
    return _merge_plans([decide_waiting(view, job, now) for job in dependents if _is_waiting(job)])


def decide_waiting(view: View, job: JobView, now: Instant) -> Plan:
    unmet = 0
    for dependency in job.spec.after:
        match dependency.is_met(state_of(view, dependency.job)):
            # One dependency that can no longer be met decides, regardless of the others:
            # the job would wait for nothing.
            case False:
                return _end_unmet(view, job, dependency, now)
            case None:
                unmet += 1
            case True:
                pass
    return NO_CHANGE if unmet else _start_job(job, now)


def _start_job(job: JobView, now: Instant) -> Plan:
    spec = job.spec
    tasks = f"{spec.size} task{'s' if spec.size > 1 else ''} of job {spec.id}"
    others = "the job it waited for has" if len(spec.after) == 1 else "the jobs it waited for have"
    why = f"{tasks} wanted: {others} ended"
    state = step(JOB, JobState.WAITING, JobEvent.TASKS_CREATED)
    status = JobStatus(spec.id, state, wanted_at_ms=now.ms)
    return Plan((status,), events=(EventRecord("job.active", why, job=spec.id),), why=why)


def _end_unmet(view: View, job: JobView, dependency: Dependency, now: Instant) -> Plan:
    state = state_of(view, dependency.job)
    outcome = "was deleted" if state is None else _STATE_PHRASES[state]
    reason = f"it waited for {dependency.description}, which {outcome}"
    status = final_status(job, step(JOB, JobState.WAITING, JobEvent.DEPENDENCY_FAILED), now, reason)
    why = f"job {job.spec.id} {status.state.value}: {reason}"
    event = EventRecord("job.ended", why, job=job.spec.id, state=status.state.value)
    return Plan((status,), events=(event,), why=why)


_STATE_PHRASES = {
    JobState.SUCCEEDED: "has succeeded",
    JobState.FAILED: "has failed",
    JobState.CANCELED: "was canceled",
    JobState.TIMED_OUT: "ran over its time limit",
    JobState.REJECTED: "was rejected",
}


def _is_waiting(job: JobView) -> bool:
    return job.status is not None and job.status.state is JobState.WAITING


def _merge_plans(plans: list[Plan]) -> Plan:
    puts = tuple(record for plan in plans for record in plan.puts)
    events = tuple(event for plan in plans for event in plan.events)
    return Plan(puts, events=events, why="; ".join(plan.why for plan in plans if plan.why))


RECONCILER = Reconciler(
    ReconcilerName.DEPENDENCIES, "controllers", {JobStatus: _on_job_status}, decide, start
)
