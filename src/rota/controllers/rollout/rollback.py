"""A failed rollout -> an update back to the previous version, which is rolled out in the same way."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.rollout import JobRollout, RolloutState
from rota.model.view import View
from rota.rules.reconciler_names import ReconcilerName
from rota.rules.rollback import plan_rollback


def _on_rollout(rollout: JobRollout) -> Iterable[str]:
    return (rollout.id,) if rollout.state is RolloutState.FAILED else ()


def _on_job_spec(spec: JobSpec) -> Iterable[str]:
    return (spec.id,) if spec.version > 1 else ()


def start(view: View) -> Iterable[str]:
    return [job for job, entry in view.jobs.items() if entry.rollout is not None and entry.intent is not None]


def decide(view: View, key: str, now: Instant) -> Plan:
    """Roll back, unless the user has requested something else since."""
    del now
    job = view.jobs.get(JobId(key))
    if job is None or job.intent is None or job.rollout is None or job.intent.cancel:
        return NO_CHANGE
    # The version is compared: a rollout that failed before the user updated the job
    # again must not undo that update.
    failed = job.rollout.state is RolloutState.FAILED and job.rollout.version == job.intent.replace
    if not failed or not job.spec.rollout.rollback or (job.status is not None and job.status.ended):
        return NO_CHANGE
    if (
        job.previous_version is None
        or job.previous_version.spec is None
        or job.previous_version.spec.version >= job.rollout.version
    ):
        return NO_CHANGE  # a later update without a rollout replaced the version that failed
    back = plan_rollback(job.spec, job.intent, job.previous_version, job.rollout.reason or "")
    if back is None:
        return NO_CHANGE
    before = f"what it was before version {back.intent.back_from}"
    why = f"job {key} goes back to {before}, as version {back.spec.version}: {job.rollout.reason}"
    return Plan(
        tuple(back), events=(EventRecord("job.rollout", why, job=job.spec.id, state="back"),), why=why
    )


# A rollback is an update in its user's name, so this reconciler writes as the apiserver.
RECONCILER = Reconciler(
    ReconcilerName.ROLLBACK, "apiserver", {JobRollout: _on_rollout, JobSpec: _on_job_spec}, decide, start
)
