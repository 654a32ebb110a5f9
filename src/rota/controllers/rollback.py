"""A version of a service that has failed -> an update to the former one, which goes the same way."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.rollout import JobRollout, RolloutState, go_back
from rota.model.view import View


def _failed(rollout: JobRollout) -> Iterable[str]:
    return (rollout.id,) if rollout.state is RolloutState.FAILED else ()


def _updated(spec: JobSpec) -> Iterable[str]:
    return (spec.id,) if spec.version > 1 else ()


def start(view: View) -> Iterable[str]:
    return [job for job, entry in view.jobs.items() if entry.rollout is not None and entry.wish is not None]


def decide(view: View, key: str, now: Instant) -> Plan:
    """Unless its user has wished something else since."""
    del now
    job = view.jobs.get(JobId(key))
    if job is None or job.wish is None or job.rollout is None or job.wish.cancel:
        return NOTHING
    failed = job.rollout.state is RolloutState.FAILED and job.rollout.version == job.wish.replace
    if not failed or not job.spec.rollout.rollback or (job.status is not None and job.status.ended):
        return NOTHING
    if job.former is None or job.former.spec is None or job.former.spec.version >= job.rollout.version:
        return NOTHING  # an update without a rollout has come since: the version before it has not failed
    back = go_back(job.spec, job.wish, job.former, job.rollout.reason or "")
    if back is None:
        return NOTHING
    before = f"what it was before version {back.wish.back_from}"
    why = f"job {key} goes back to {before}, as version {back.spec.version}: {job.rollout.reason}"
    return Plan(tuple(back), events=(Event("job.rollout", why, job=job.spec.id, state="back"),), why=why)


# A rollback is an update in its user's name: so it writes as the apiserver does.
RECONCILER = Reconciler("rollback", "apiserver", {JobRollout: _failed, JobSpec: _updated}, decide, start)
