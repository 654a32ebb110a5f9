"""A new job -> the cluster it is for: of those that can serve it and are ready, the best for it."""

from collections.abc import Callable, Iterable

from rota.engine.reconciler import Reconciler, Wakes, own_id
from rota.model.amounts import show_amount
from rota.model.cluster import DEFAULT, Cluster, ClusterWish
from rota.model.fit import Fit
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobSpec, Recovery, assessed
from rota.model.lifecycle import JOB_ENDS, ClusterState
from rota.model.limits import MOVE_LOOK_MS
from rota.model.node import NodeStatus
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.serve import serves
from rota.model.view import JobView, View

Survey = Callable[[View, JobSpec, str], Fit]

_DEFAULT_KEY = "default"
_ENDING = (Recovery.CANCEL, Recovery.NONE)  # owners who want lost work to end
_CLUSTERS = "clusters/"  # a key: this cluster changed, who waits for it or has to leave it?
_NODES = "nodes/"  # a key: this node changed, can its cluster serve whom no other can?


WAKES: Wakes = {
    JobSpec: own_id,
    Cluster: lambda record: (f"{_CLUSTERS}{record.name}",),
    NodeStatus: lambda record: (f"{_NODES}{record.id}",),
}


def reconciler(survey: Survey) -> Reconciler:
    return Reconciler("assign", "clusters", WAKES, Assigner(survey).decide, start)


def start(view: View) -> Iterable[str]:
    return [_DEFAULT_KEY, *view.unassigned, *(f"{_CLUSTERS}{name}" for name in view.clusters)]


class Assigner:
    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        if key == _DEFAULT_KEY:
            return NOTHING if DEFAULT in view.clusters else Plan((Cluster(DEFAULT),))
        if key.startswith(_CLUSTERS):
            return self._look_again(view, key.removeprefix(_CLUSTERS), now)
        if key.startswith(_NODES):
            return self._welcome(view, NodeId(key.removeprefix(_NODES)))
        job = view.jobs.get(JobId(key))
        if job is None or job.cluster is not None:
            return NOTHING
        if len(view.clusters) <= 1:
            return Plan(
                (JobCluster(job.spec.id, DEFAULT),), why=f"job {key} is for the only cluster there is"
            )
        return self._assign(view, job) or _none_ready(view, job.spec)

    def _look_again(self, view: View, name: str, now: Instant) -> Plan:
        """A cluster is ready: for whom was it? Or it takes nothing more: who has not begun there?"""
        cluster = view.clusters.get(name)
        if cluster is None or cluster.is_to_come:
            return NOTHING
        if cluster.takes_jobs:
            jobs = [view.jobs[job] for job in view.unassigned]
        else:
            ended = _ENDING if cluster.state is ClusterState.FAILED else ()
            jobs = [
                job
                for job in view.jobs.values()
                if job.cluster is None or (_may_move(view, job, name) and job.spec.recovery not in ended)
            ]
        plan = self._assign_all(view, jobs, f"cluster {name} {cluster.standing}")
        if cluster.takes_jobs:
            return plan
        ending = _given_up(view, cluster) if cluster.state is ClusterState.FAILED else NOTHING
        moved = sum(isinstance(one, JobCluster) and one.moved for one in plan.puts)
        why = _left(cluster, moved, len(ending.puts))
        told = (Event("cluster.left", why, cluster=name),) if why else ()
        return Plan(
            (*plan.puts, *ending.puts),
            events=(*told, *plan.events, *ending.events),
            why=why or plan.why,
            wake_at_ms=now.ms + MOVE_LOOK_MS,
        )

    def _welcome(self, view: View, node: NodeId) -> Plan:
        """Jobs that no node of their cluster could ever run."""
        known = view.nodes.get(node)
        if known is None or len(view.clusters) <= 1:
            return NOTHING
        stuck = [
            job
            for line, turns in view.waiting()
            if (home := line.shape.cluster) != known.spec.cluster
            and not self._survey(view, view.jobs[JobId(str(turns[0][2]))].spec, home).able
            for turn in turns
            if _may_move(view, job := view.jobs[JobId(str(turn[2]))], home)
        ]
        return self._assign_all(view, stuck, f"node {known.spec.name} is there")

    def _assign_all(self, view: View, jobs: list[JobView], reason: str) -> Plan:
        plans = [plan for job in jobs if (plan := self._assign(view, job, reason)) is not None and plan.puts]
        return Plan(
            tuple(record for plan in plans for record in plan.puts),
            events=tuple(event for plan in plans for event in plan.events),
            why=f"{len(plans)} jobs are assigned anew: {reason}" if plans else "",
        )

    def _assign(self, view: View, job: JobView, cause: str = "") -> Plan | None:
        """None: those that can serve it are not ready. `cause`: why it is looked at again."""
        spec, head = job.spec, f"{cause}; " if cause else ""
        able, used = self._able(view, assessed(spec)), _used(spec)
        if spec.observed and not any(view.clusters[name].takes_jobs for name in able):
            # what ran before is not to wait for more than it asks for
            able, used = self._able(view, spec), ""
        ready = [name for name in able if view.clusters[name].takes_jobs]
        if ready:
            best = min(ready, key=lambda name: _rank(view, spec, name, able[name]))
            others = f"of {_names(ready)}, which can serve it, {best} suits it best"
            chosen = others if len(ready) > 1 else f"only {best} can serve it"
            return _assigned(job, best, head + chosen + used)
        if any(view.clusters[name].is_to_come for name in able):
            return None
        home = spec.cluster or DEFAULT
        needs = ", ".join(show_amount(resource, amount) for resource, amount in spec.needs.items())
        none = f"no node of any cluster could run a task with {needs}; it waits in {home}"
        return _assigned(job, home, head + none)

    def _able(self, view: View, spec: JobSpec) -> dict[str, Fit]:
        """Clusters that can serve it, and how well."""
        fits = {name: self._survey(view, spec, name) for name in _may_have(view, spec)}
        wishes = view.cluster_wishes
        return {
            name: fit
            for name, fit in fits.items()
            if serves(view.clusters[name], wishes.get(name), fit, spec)
        }


def _used(spec: JobSpec) -> str:
    used = ", ".join(show_amount(resource, amount) for resource, amount in spec.observed.items())
    return f", by what the last of its name used: {used}" if used else ""


def _may_have(view: View, spec: JobSpec) -> list[str]:
    """Clusters that it does not rule out itself; near others only where these are."""
    if spec.cluster is not None:
        return [name for name, one in view.clusters.items() if spec.cluster in (name, one.like)]
    names = list(view.clusters)
    for term in spec.near:
        if term.weight is None:
            homes = {
                entry.spec.home
                for entry in view.jobs.values()
                if entry.cluster is not None
                and entry.spec.namespace == spec.namespace
                and not _has_ended(entry)
                and term.jobs.holds(entry.spec.known_as)
            }
            names = [name for name in names if name in homes] or names
    return names


def _rank(view: View, spec: JobSpec, name: str, fit: Fit) -> tuple[object, ...]:
    """The smaller the better: room now, what it prefers, who waits there already; then by name."""
    wish = view.cluster_wishes.get(name) or ClusterWish(name)
    labels = {**wish.node_labels, "cluster": name}
    preferred = sum(one.weight for one in spec.prefer if one.condition.holds(labels))
    wanted = spec.count if spec.gang or spec.deadline_at_ms is not None else 1
    return (fit.free < wanted, -preferred, view.waiting_in(name), name != DEFAULT, name)


def _may_move(view: View, entry: JobView, name: str) -> bool:
    """Nothing of it runs, and it is not bound to where it is."""
    here = (
        entry.cluster is not None and entry.cluster.cluster == name and not _is_bound(view, entry.spec, name)
    )
    return here and not entry.tally.live and not _has_ended(entry)


def _is_bound(view: View, spec: JobSpec, name: str) -> bool:
    """To the only one that is ready of those it may have, or by its own word."""
    if spec.cluster is None or not spec.move_pending:
        return not spec.move_pending
    alike = (
        one for other, one in view.clusters.items() if other != name and spec.cluster in (other, one.like)
    )
    return not any(one.takes_jobs for one in alike)


def _given_up(view: View, cluster: Cluster) -> Plan:
    """Jobs of a failed cluster that may not move: bound to it, or as the owner of their recovery says."""
    reason = f"cluster-failed: {cluster.name}" + (f", {cluster.reason}" if cluster.reason else "")
    lost = [
        job.spec.id
        for job in view.jobs.values()
        if job.cluster is not None
        and (job.cluster.cluster, job.cluster.failed) == (cluster.name, None)
        and (_is_bound(view, job.spec, cluster.name) or job.spec.recovery in _ENDING)
        and not _has_ended(job)
    ]
    told = (Event("job.cluster_failed", f"job {job} is canceled: {reason}", job=job) for job in lost)
    return Plan(tuple(JobCluster(job, cluster.name, failed=reason) for job in lost), events=tuple(told))


def _left(cluster: Cluster, moved: int, canceled: int) -> str:
    """Jobs that did; empty: none."""
    moves = [f"{moved} {'job moves' if moved == 1 else 'jobs move'} to others"] if moved else []
    ends = [f"{canceled} {'job is' if canceled == 1 else 'jobs are'} canceled"] if canceled else []
    return f"{' and '.join(moves + ends)}: cluster {cluster.name} {cluster.standing}" if moves + ends else ""


def _has_ended(entry: JobView) -> bool:
    return entry.status is not None and entry.status.state in JOB_ENDS


def _assigned(job: JobView, cluster: str, reason: str) -> Plan:
    if job.cluster is not None and job.cluster.cluster == cluster:
        return NOTHING  # it is there already, and nowhere else is better
    name = job.spec.id
    why = f"job {name} is assigned to cluster {cluster}: {reason}"
    event = Event("job.assigned", why, job=name, cluster=cluster)
    return Plan((JobCluster(name, cluster, moved=job.cluster is not None),), events=(event,), why=why)


def _none_ready(view: View, spec: JobSpec) -> Plan:
    coming = [name for name, cluster in view.clusters.items() if cluster.is_to_come]
    why = f"job {spec.id} waits for a cluster: none that can serve it is ready, {_names(coming)} to come"
    return Plan(events=(Event("job.unassigned", why, job=spec.id),), why=why)


def _names(names: list[str]) -> str:
    return " and ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
