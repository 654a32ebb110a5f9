"""A new job -> the cluster it is for."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler, own_id
from rota.model.cluster import DEFAULT, Cluster
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobSpec
from rota.model.plan import NOTHING, Instant, Plan
from rota.model.view import View

_DEFAULT_KEY = "default"


def start(view: View) -> Iterable[str]:
    return [_DEFAULT_KEY, *(job for job, entry in view.jobs.items() if entry.cluster is None)]


def decide(view: View, key: str, now: Instant) -> Plan:
    del now
    if key == _DEFAULT_KEY:
        return NOTHING if DEFAULT in view.clusters else Plan((Cluster(DEFAULT),))
    job = view.jobs.get(JobId(key))
    if job is None or job.cluster is not None:
        return NOTHING
    return Plan((JobCluster(job.spec.id, DEFAULT),), why=f"job {key} is for the only cluster there is")


RECONCILER = Reconciler("assign", "clusters", {JobSpec: own_id}, decide, start)
