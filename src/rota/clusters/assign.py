"""A job -> the cluster it is for: of those that can serve it and take jobs, the best for it."""

from collections.abc import Callable, Iterable

from rota.clusters.stranded import Search
from rota.engine.reconciler import Reconciler, Wakes, own_id
from rota.model.amounts import show_amount
from rota.model.cluster import DEFAULT, Cluster, ClusterWish
from rota.model.fit import Fit
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobSpec, Recovery, asking_only, assessed
from rota.model.labels import counted
from rota.model.lifecycle import JOB_ENDS, ClusterState
from rota.model.limits import MOVE_LOOK_MS, MOVE_STEP_MAX
from rota.model.node import NodeStatus, NodeWish
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.serve import UNASSIGNED, serves
from rota.model.shape import Term
from rota.model.view import JobView, View

Survey = Callable[[View, JobSpec, str], Fit]

_DEFAULT_KEY = "default"
_ENDING = (Recovery.CANCEL, Recovery.NONE)  # owners who want lost work to end
_CLUSTERS = "clusters/"  # a key: this cluster changed, which jobs have to leave it?
_STRANDED = "stranded"  # a key: a cluster or a node changed, which jobs does that help?


WAKES: Wakes = {
    JobSpec: own_id,
    Cluster: lambda record: (f"{_CLUSTERS}{record.name}", _STRANDED),
    **dict.fromkeys((ClusterWish, NodeStatus, NodeWish), lambda _: (_STRANDED,)),
}


def reconciler(survey: Survey) -> Reconciler:
    return Reconciler("assign", "clusters", WAKES, Assigner(survey).decide, start)


def start(view: View) -> Iterable[str]:
    return [_DEFAULT_KEY, *view.unassigned, *(f"{_CLUSTERS}{name}" for name in view.clusters), _STRANDED]


class Assigner:
    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._search = Search(self._is_stranded)

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        if key == _DEFAULT_KEY:
            return (
                NOTHING if DEFAULT in view.clusters else Plan((Cluster(DEFAULT, ClusterState.UNAVAILABLE),))
            )
        if key == _STRANDED:
            return self._rescue(view, now)
        if key.startswith(_CLUSTERS):
            return self._vacate(view, key.removeprefix(_CLUSTERS), now)
        job = view.jobs.get(JobId(key))
        if job is None:
            return NOTHING
        if job.cluster is not None:  # its spec was updated: another cluster may be able to serve it now
            return self._rescued(view, [job])
        return self._assign_first(view, job) or self._none_ready(view, job.spec)

    def _rescue(self, view: View, now: Instant) -> Plan:
        """The next jobs that are assigned to no cluster, or to one that cannot serve them, and may move."""
        part = self._search.step(view, now)
        jobs = [job for name in part.jobs if (job := view.jobs.get(name)) is not None]
        wake_at_ms = part.wake_at_ms
        if any(job.tally.live for job in jobs):  # a lease outlives its node: no record changes when it ends
            self._search.again_at(now.ms + MOVE_LOOK_MS)
            wake_at_ms = wake_at_ms or now.ms + MOVE_LOOK_MS
        return self._rescued(view, jobs).but(wake_at_ms=wake_at_ms)

    def _rescued(self, view: View, jobs: list[JobView]) -> Plan:
        plans: list[Plan | None] = []
        for job in jobs:
            home = UNASSIGNED if job.cluster is None else job.cluster.cluster
            if _has_ended(job) or job.tally.live or not self._is_stranded(view, home, job.spec.id):
                continue
            if job.cluster is None:
                plans.append(self._assign_first(view, job))
            else:
                plans.append(self._assign(view, job, f"cluster {home} cannot serve it"))
        return _together(
            [plan for plan in plans if plan is not None], "a cluster that can serve them is there"
        )

    def _is_stranded(self, view: View, cluster: str, name: JobId) -> bool:
        """Whether a job's cluster cannot serve it, and another one that takes jobs could have it.

        Jobs of a cluster that drains or has failed are not: all of them have to leave it (`_vacate`).
        """
        spec, known = view.jobs[name].spec, view.clusters.get(cluster)
        if cluster == UNASSIGNED:
            able = self._able(view, spec)
            return _takes_jobs(view, able) or not any(view.clusters[one].is_to_come for one in able)
        if known is None or not (known.takes_jobs or known.is_to_come) or _is_bound(view, spec, cluster):
            return False
        if self._serves(view, spec, cluster):
            return False
        return _takes_jobs(view, self._able(view, spec))

    def _vacate(self, view: View, name: str, now: Instant) -> Plan:
        """Move the jobs of a cluster that takes none; cancel those that may not move if it has failed."""
        cluster = view.clusters.get(name)
        if cluster is None or cluster.takes_jobs or cluster.is_to_come:
            return NOTHING
        leaving = self._leaving(view, cluster)
        plans = [self._assign(view, job, f"cluster {name} {cluster.standing}") for job in leaving]
        moved = [plan for plan in plans if plan is not None and plan.puts]
        ending = _given_up(view, cluster, MOVE_STEP_MAX - len(moved))
        why = _left(cluster, len(moved), len(ending.puts))
        told = (Event("cluster.left", why, cluster=name),) if why else ()
        more = len(moved) + len(ending.puts) >= MOVE_STEP_MAX
        return Plan(
            (*(record for plan in moved for record in plan.puts), *ending.puts),
            events=(*told, *(event for plan in moved for event in plan.events), *ending.events),
            why=why,
            wake_at_ms=now.ms + (1 if more else MOVE_LOOK_MS),
        )

    def _leaving(self, view: View, cluster: Cluster) -> list[JobView]:
        """Jobs of a cluster that takes none which may move now, at most as many as move in one step."""
        ended = _ENDING if cluster.state is ClusterState.FAILED else ()
        found: list[JobView] = []
        for group in view.jobs_by_cluster.get(cluster.name, {}).values():
            head = view.jobs[next(iter(group))]
            if _is_bound(view, head.spec, cluster.name) or self._stays(view, head.spec, cluster.name):
                continue
            jobs = (view.jobs[name] for name in group)
            found += [job for job in jobs if not job.tally.live and job.spec.recovery not in ended]
            if len(found) >= MOVE_STEP_MAX:
                break
        return sorted(found, key=lambda job: job.spec.order)[:MOVE_STEP_MAX]

    def _stays(self, view: View, spec: JobSpec, cluster: str) -> bool:
        """Whether jobs like this one would only be assigned to the cluster that they are in."""
        able = self._able(view, spec)
        return not _takes_jobs(view, able) and (spec.cluster or DEFAULT) == cluster

    def _assign_first(self, view: View, job: JobView) -> Plan | None:
        """None: the clusters that can serve it are not ready."""
        spec = job.spec
        if len(view.clusters) > 1:
            return self._assign(view, job)
        plan = Plan((JobCluster(spec.id, DEFAULT),), why=f"job {spec.id} is for the only cluster there is")
        if not spec.where or self._able(view, spec):
            return plan
        return plan.but(events=(_unserved(spec, self._why_unserved(view, spec), DEFAULT),))

    def _assign(self, view: View, job: JobView, cause: str = "") -> Plan | None:
        """None: those that can serve it are not ready. `cause`: why it is looked at again."""
        spec, head = job.spec, f"{cause}; " if cause else ""
        able, used = self._able(view, assessed(spec)), _used(spec)
        if spec.observed and not _takes_jobs(view, able):
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
        plan = _assigned(job, home, f"{head}it waits there for a cluster that can serve it")
        if plan is NOTHING:
            return plan
        closed = [f"cluster {name}, which could, {view.clusters[name].standing}" for name in able]
        reason = ", ".join(closed[:3]) or self._why_unserved(view, spec)
        return plan.but(events=(_unserved(spec, reason, home), *plan.events))

    def _none_ready(self, view: View, spec: JobSpec) -> Plan:
        coming = [name for name in self._able(view, spec) if view.clusters[name].is_to_come]
        why = f"job {spec.id} waits for a cluster: none that can serve it is ready, {_names(coming)} to come"
        return Plan(events=(Event("job.unassigned", why, job=spec.id),), why=why)

    def _why_unserved(self, view: View, spec: JobSpec) -> str:
        """What is asked for that no cluster has: a label, an amount, or all of that on one node."""
        where = f"cluster {spec.cluster}" if spec.cluster is not None else "any cluster"
        if not self._able(view, asking_only(spec)):
            return f"no node of {where} takes work"
        labels = [f"'{one}'" for one in spec.conditions if not self._able(view, asking_only(spec, where=one))]
        if labels:
            return f"no node of {where} satisfies {' or '.join(labels)}"
        needs = [
            show_amount(resource, amount)
            for resource, amount in spec.needs.items()
            if not self._able(view, asking_only(spec, needs={resource: amount}))
        ]
        if needs:
            return f"no node of {where} has {' or '.join(needs)}"
        asked = [*(show_amount(*one) for one in spec.needs.items()), *(f"'{one}'" for one in spec.conditions)]
        return f"no node of {where} has all of {', '.join(asked)}"

    def _serves(self, view: View, spec: JobSpec, name: str) -> bool:
        fit, wish = self._survey(view, spec, name), view.cluster_wishes.get(name)
        return serves(view.clusters[name], wish, fit, spec)

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
            names = [name for name in names if _has_neighbour(view, name, spec, term)] or names
    return names


def _has_neighbour(view: View, cluster: str, spec: JobSpec, term: Term) -> bool:
    """Whether an unfinished job of the cluster is one that the term means."""
    groups = view.jobs_by_cluster.get(cluster, {}).values()
    others = (view.jobs[name].spec for group in groups for name in group)
    return any(one.namespace == spec.namespace and term.jobs.holds(one.known_as) for one in others)


def _rank(view: View, spec: JobSpec, name: str, fit: Fit) -> tuple[object, ...]:
    """The smaller the better: room now, what it prefers, who waits there already; then by name."""
    wish = view.cluster_wishes.get(name) or ClusterWish(name)
    labels = counted({}, {**wish.node_labels, "cluster": name}, frozenset())
    preferred = sum(one.weight for one in spec.prefer if one.condition.holds(labels))
    wanted = spec.count if spec.gang or spec.deadline_at_ms is not None else 1
    return (fit.free < wanted, -preferred, view.waiting_in(name), name != DEFAULT, name)


def _is_bound(view: View, spec: JobSpec, name: str) -> bool:
    """To the only one that is ready of those it may have, or by its own word."""
    if spec.cluster is None or not spec.move_pending:
        return not spec.move_pending
    alike = (
        one for other, one in view.clusters.items() if other != name and spec.cluster in (other, one.like)
    )
    return not any(one.takes_jobs for one in alike)


def _given_up(view: View, cluster: Cluster, most: int) -> Plan:
    """Jobs of a failed cluster that may not move: bound to it, or as the owner of their recovery says."""
    if cluster.state is not ClusterState.FAILED:
        return NOTHING
    reason = f"cluster-failed: {cluster.name}" + (f", {cluster.reason}" if cluster.reason else "")
    lost: list[JobId] = []
    for group in view.jobs_by_cluster.get(cluster.name, {}).values():
        bound = _is_bound(view, view.jobs[next(iter(group))].spec, cluster.name)
        jobs = (view.jobs[name] for name in group)
        lost += [
            job.spec.id
            for job in jobs
            if (bound or job.spec.recovery in _ENDING)
            and job.cluster is not None
            and job.cluster.failed is None
        ]
    lost = sorted(lost, key=int)[:most]
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


def _together(plans: list[Plan], reason: str) -> Plan:
    count = sum(bool(plan.puts) for plan in plans)
    return Plan(
        tuple(record for plan in plans for record in plan.puts),
        events=tuple(event for plan in plans for event in plan.events),
        why=f"{count} {'job is' if count == 1 else 'jobs are'} reassigned: {reason}" if count else "",
    )


def _unserved(spec: JobSpec, reason: str, cluster: str) -> Event:
    why = f"no cluster serves job {spec.id}: {reason}; it waits in {cluster}"
    return Event("job.unserved", why, job=spec.id, cluster=cluster)


def _takes_jobs(view: View, names: Iterable[str]) -> bool:
    return any(view.clusters[name].takes_jobs for name in names)


def _names(names: list[str]) -> str:
    return " and ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
