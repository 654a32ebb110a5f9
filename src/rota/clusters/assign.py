"""A job -> the cluster it is assigned to: the best of those that can serve it and accept jobs."""

from collections.abc import Callable, Iterable

from rota.clusters.reassign_search import ReassignSearch
from rota.engine.reconciler import Reconciler, Wakes, own_id
from rota.model.amounts import show_amount
from rota.model.cluster import DEFAULT, ClusterFit, ClusterIntent, ClusterRecord
from rota.model.ids import JobId
from rota.model.job import NO_CLUSTER, JobCluster, JobSpec, Recovery, asking_only, with_observed_needs
from rota.model.lifecycle import JOB_ENDS, ClusterState
from rota.model.limits import REASSIGN_CHECK_MS, REASSIGN_STEP_MAX
from rota.model.node import NodeIntent, NodeStatus
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.shape import AffinityTerm
from rota.model.view import JobView, View
from rota.rules.cluster_matching import can_serve
from rota.rules.node_labels import matched_labels
from rota.rules.reconciler_names import ReconcilerName

ClusterFitOf = Callable[[View, JobSpec, str], ClusterFit]

_DEFAULT_KEY = "default"
_RECOVERY_ENDS = (Recovery.CANCEL, Recovery.NONE)  # policies under which lost tasks end
_CLUSTER_KEYS = "clusters/"  # key prefix: which jobs have to leave this cluster?
_STRANDED_KEY = "stranded"  # key: a cluster or node changed; which jobs can move now?


WAKES: Wakes = {
    JobSpec: own_id,
    ClusterRecord: lambda record: (f"{_CLUSTER_KEYS}{record.name}", _STRANDED_KEY),
    **dict.fromkeys((ClusterIntent, NodeStatus, NodeIntent), lambda _: (_STRANDED_KEY,)),
}


def reconciler(cluster_fit: ClusterFitOf) -> Reconciler:
    return Reconciler(ReconcilerName.ASSIGN, "clusters", WAKES, Assigner(cluster_fit).decide, start)


def start(view: View) -> Iterable[str]:
    return [
        _DEFAULT_KEY,
        *view.unassigned,
        *(f"{_CLUSTER_KEYS}{name}" for name in view.clusters),
        _STRANDED_KEY,
    ]


class Assigner:
    def __init__(self, cluster_fit: ClusterFitOf) -> None:
        self._cluster_fit = cluster_fit
        self._search = ReassignSearch(self._is_stranded)

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        if key == _DEFAULT_KEY:
            return (
                NO_CHANGE
                if DEFAULT in view.clusters
                else Plan((ClusterRecord(DEFAULT, ClusterState.UNAVAILABLE),))
            )
        if key == _STRANDED_KEY:
            return self._reassign_stranded(view, now)
        if key.startswith(_CLUSTER_KEYS):
            return self._vacate(view, key.removeprefix(_CLUSTER_KEYS), now)
        job = view.jobs.get(JobId(key))
        if job is None:
            return NO_CHANGE
        if job.cluster is not None:  # its spec was updated: another cluster may be able to serve it now
            return self._reassign(view, [job])
        return self._assign_first(view, job) or self._wait_for_cluster(view, job.spec)

    def _reassign_stranded(self, view: View, now: Instant) -> Plan:
        """Reassign the next jobs that have no cluster, or one that cannot serve them."""
        step = self._search.step(view, now)
        jobs = [job for name in step.jobs if (job := view.jobs.get(name)) is not None]
        wake_at_ms = step.wake_at_ms
        # A lease may outlive its node, and no record changes when it ends: search again after a while.
        if any(job.task_counts.live for job in jobs):
            self._search.search_again_at(now.ms + REASSIGN_CHECK_MS)
            wake_at_ms = wake_at_ms or now.ms + REASSIGN_CHECK_MS
        return self._reassign(view, jobs).but(wake_at_ms=wake_at_ms)

    def _reassign(self, view: View, jobs: list[JobView]) -> Plan:
        plans: list[Plan | None] = []
        for job in jobs:
            home = NO_CLUSTER if job.cluster is None else job.cluster.cluster
            # Checked again: the search found the job in an earlier step, and it may have started or ended
            # since. A job with live tasks stays, because all tasks of a job are in one cluster.
            if _has_ended(job) or job.task_counts.live or not self._is_stranded(view, home, job.spec.id):
                continue
            if job.cluster is None:
                plans.append(self._assign_first(view, job))
            else:
                plans.append(self._assign(view, job, f"cluster {home} cannot serve it"))
        return _merge_plans(
            [plan for plan in plans if plan is not None], "a cluster that can serve them is there"
        )

    def _is_stranded(self, view: View, cluster: str, name: JobId) -> bool:
        """Whether a job's cluster cannot serve it, and another one that accepts jobs could.

        Jobs of a draining or failed cluster are not stranded: all of them have to leave it (`_vacate`).
        """
        spec, known = view.jobs[name].spec, view.clusters.get(cluster)
        if cluster == NO_CLUSTER:
            capable = self._capable_clusters(view, spec)
            return _any_takes_jobs(view, capable) or not any(
                view.clusters[name].may_take_jobs_later for name in capable
            )
        if (
            known is None
            or not (known.takes_jobs or known.may_take_jobs_later)
            or _is_bound(view, spec, cluster)
        ):
            return False
        # Jobs move only when they have to: a cluster that is full now still serves them later.
        if self._can_serve(view, spec, cluster):
            return False
        return _any_takes_jobs(view, self._capable_clusters(view, spec))

    def _vacate(self, view: View, name: str, now: Instant) -> Plan:
        """Move the jobs of a cluster that accepts none; if it has failed, cancel those that may not move."""
        cluster = view.clusters.get(name)
        if cluster is None or cluster.takes_jobs or cluster.may_take_jobs_later:
            return NO_CHANGE
        leaving = self._jobs_to_move(view, cluster)
        plans = [self._assign(view, job, f"cluster {name} {cluster.state_text}") for job in leaving]
        moved = [plan for plan in plans if plan is not None and plan.puts]
        # Both share one bound, so that a cluster of 100,000 jobs is vacated in several commits.
        canceled = _cancel_jobs(view, cluster, REASSIGN_STEP_MAX - len(moved))
        why = _describe_vacated(cluster, len(moved), len(canceled.puts))
        left = (EventRecord("cluster.left", why, cluster=name),) if why else ()
        more = len(moved) + len(canceled.puts) >= REASSIGN_STEP_MAX
        return Plan(
            (*(record for plan in moved for record in plan.puts), *canceled.puts),
            events=(*left, *(event for plan in moved for event in plan.events), *canceled.events),
            why=why,
            wake_at_ms=now.ms + (1 if more else REASSIGN_CHECK_MS),
        )

    def _jobs_to_move(self, view: View, cluster: ClusterRecord) -> list[JobView]:
        """Jobs of such a cluster that may move now, at most REASSIGN_STEP_MAX."""
        ended = _RECOVERY_ENDS if cluster.state is ClusterState.FAILED else ()
        found: list[JobView] = []
        for group in view.jobs_by_cluster.get(cluster.name, {}).values():
            # Jobs of a group are equal for assignment, so one of them is tested for all.
            head = view.jobs[next(iter(group))]
            if _is_bound(view, head.spec, cluster.name) or self._would_stay(view, head.spec, cluster.name):
                continue
            jobs = (view.jobs[name] for name in group)
            found += [job for job in jobs if not job.task_counts.live and job.spec.recovery not in ended]
            if len(found) >= REASSIGN_STEP_MAX:
                break
        return sorted(found, key=lambda job: job.spec.queue_rank)[:REASSIGN_STEP_MAX]

    def _would_stay(self, view: View, spec: JobSpec, cluster: str) -> bool:
        """Whether such jobs would only be assigned to the cluster that they are in."""
        capable = self._capable_clusters(view, spec)
        # Without this test the same jobs would use up the step at every check, and those
        # behind them would never move.
        return not _any_takes_jobs(view, capable) and (spec.cluster or DEFAULT) == cluster

    def _assign_first(self, view: View, job: JobView) -> Plan | None:
        """The first assignment; None: the clusters that can serve the job are not ready."""
        spec = job.spec
        if len(view.clusters) > 1:
            return self._assign(view, job)
        plan = Plan((JobCluster(spec.id, DEFAULT),), why=f"job {spec.id} is for the only cluster there is")
        if not spec.where or self._capable_clusters(view, spec):
            return plan
        return plan.but(events=(_unserved_event(spec, self._why_unserved(view, spec), DEFAULT),))

    def _assign(self, view: View, job: JobView, cause: str = "") -> Plan | None:
        """Assign or reassign a job (`cause`: why again); None: clusters that can serve it are not ready."""
        spec, head = job.spec, f"{cause}; " if cause else ""
        capable, used = self._capable_clusters(view, with_observed_needs(spec)), _describe_observed(spec)
        if spec.observed and not _any_takes_jobs(view, capable):
            # A job must not wait for more than it requests, only because the last of its name used more.
            capable, used = self._capable_clusters(view, spec), ""
        ready = [name for name in capable if view.clusters[name].takes_jobs]
        if ready:
            best = min(ready, key=lambda name: _preference_rank(view, spec, name, capable[name]))
            others = f"of {_join_names(ready)}, which can serve it, {best} suits it best"
            chosen = others if len(ready) > 1 else f"only {best} can serve it"
            return _assign_to(job, best, head + chosen + used)
        # Not assigned at all: in `default` it would be reported as unserved, although its
        # cluster is being provisioned.
        if any(view.clusters[name].may_take_jobs_later for name in capable):
            return None
        # A job without a capable cluster still gets one: it can then be shown, explained and canceled like
        # others, and the search moves it once a cluster can serve it.
        home = spec.cluster or DEFAULT
        plan = _assign_to(job, home, f"{head}it waits there for a cluster that can serve it")
        if plan is NO_CHANGE:
            return plan
        closed = [f"cluster {name}, which could, {view.clusters[name].state_text}" for name in capable]
        reason = ", ".join(closed[:3]) or self._why_unserved(view, spec)
        return plan.but(events=(_unserved_event(spec, reason, home), *plan.events))

    def _wait_for_cluster(self, view: View, spec: JobSpec) -> Plan:
        coming = [
            name for name in self._capable_clusters(view, spec) if view.clusters[name].may_take_jobs_later
        ]
        names = _join_names(coming)
        why = f"job {spec.id} waits for a cluster: none that can serve it is ready, {names} to come"
        return Plan(events=(EventRecord("job.unassigned", why, job=spec.id),), why=why)

    def _why_unserved(self, view: View, spec: JobSpec) -> str:
        """What no cluster provides: a label, an amount, or all requests on one node."""
        where = f"cluster {spec.cluster}" if spec.cluster is not None else "any cluster"
        if not self._capable_clusters(view, asking_only(spec)):
            return f"no node of {where} takes work"
        labels = [
            f"'{condition}'"
            for condition in spec.conditions
            if not self._capable_clusters(view, asking_only(spec, where=condition))
        ]
        if labels:
            return f"no node of {where} satisfies {' or '.join(labels)}"
        needs = [
            show_amount(resource, amount)
            for resource, amount in spec.needs.items()
            if not self._capable_clusters(view, asking_only(spec, needs={resource: amount}))
        ]
        if needs:
            return f"no node of {where} has {' or '.join(needs)}"
        amounts = [show_amount(resource, amount) for resource, amount in spec.needs.items()]
        requests = [*amounts, *(f"'{condition}'" for condition in spec.conditions)]
        return f"no node of {where} has all of {', '.join(requests)}"

    def _can_serve(self, view: View, spec: JobSpec, name: str) -> bool:
        fit, intent = self._cluster_fit(view, spec, name), view.cluster_intents.get(name)
        return can_serve(view.clusters[name], intent, fit, spec)

    def _capable_clusters(self, view: View, spec: JobSpec) -> dict[str, ClusterFit]:
        """Clusters that can serve the job, with their fit."""
        fits = {name: self._cluster_fit(view, spec, name) for name in _allowed_clusters(view, spec)}
        intents = view.cluster_intents
        return {
            name: fit
            for name, fit in fits.items()
            if can_serve(view.clusters[name], intents.get(name), fit, spec)
        }


def _describe_observed(spec: JobSpec) -> str:
    used = ", ".join(show_amount(resource, amount) for resource, amount in spec.observed.items())
    return f", by what the last of its name used: {used}" if used else ""


def _allowed_clusters(view: View, spec: JobSpec) -> list[str]:
    """Clusters that its spec permits; with affinity to other jobs, those where such jobs are."""
    if spec.cluster is not None:
        return [name for name, cluster in view.clusters.items() if spec.cluster in (name, cluster.like)]
    names = list(view.clusters)
    for term in spec.near:
        if term.weight is None:
            # Affinity cannot be met across clusters. If no such job is there yet, any
            # cluster may get the first one.
            names = [name for name in names if _has_affine_job(view, name, spec, term)] or names
    return names


def _has_affine_job(view: View, cluster: str, spec: JobSpec, term: AffinityTerm) -> bool:
    """Whether an unfinished job of the cluster matches the affinity term."""
    groups = view.jobs_by_cluster.get(cluster, {}).values()
    others = (view.jobs[name].spec for group in groups for name in group)
    return any(
        other.namespace == spec.namespace and term.jobs.holds(other.selector_labels) for other in others
    )


def _preference_rank(view: View, spec: JobSpec, name: str, fit: ClusterFit) -> tuple[object, ...]:
    """Sort key, smaller is better: fits now, preferences, pending jobs there; then by name."""
    intent = view.cluster_intents.get(name) or ClusterIntent(name)
    labels = matched_labels({}, {**intent.node_labels, "cluster": name}, frozenset())
    preferred = sum(preference.weight for preference in spec.prefer if preference.condition.holds(labels))
    # A gang starts as a whole, and a deadline is not met by one task. Other jobs
    # start with the first free slot.
    tasks = spec.count if spec.gang or spec.deadline_at_ms is not None else 1
    return (fit.free < tasks, -preferred, view.pending_jobs_in(name), name != DEFAULT, name)


def _is_bound(view: View, spec: JobSpec, name: str) -> bool:
    """Whether the job may not move: by its spec, or since no other permitted cluster accepts jobs."""
    if spec.cluster is None or not spec.move_pending:
        return not spec.move_pending
    others = (
        cluster
        for other, cluster in view.clusters.items()
        if other != name and spec.cluster in (other, cluster.like)
    )
    return not any(other.takes_jobs for other in others)


def _cancel_jobs(view: View, cluster: ClusterRecord, most: int) -> Plan:
    """Cancel jobs of a failed cluster that may not move: bound to it, or by their recovery policy."""
    if cluster.state is not ClusterState.FAILED:
        return NO_CHANGE
    reason = f"cluster-failed: {cluster.name}" + (f", {cluster.reason}" if cluster.reason else "")
    canceled_jobs: list[JobId] = []
    for group in view.jobs_by_cluster.get(cluster.name, {}).values():
        bound = _is_bound(view, view.jobs[next(iter(group))].spec, cluster.name)
        jobs = (view.jobs[name] for name in group)
        canceled_jobs += [
            job.spec.id
            for job in jobs
            if (bound or job.spec.recovery in _RECOVERY_ENDS)
            and job.cluster is not None
            and job.cluster.failed is None
        ]
    # In order of submission, so that the plan does not depend on the order of the groups.
    canceled_jobs = sorted(canceled_jobs, key=int)[:most]
    events = (
        EventRecord("job.cluster_failed", f"job {job} is canceled: {reason}", job=job)
        for job in canceled_jobs
    )
    return Plan(
        tuple(JobCluster(job, cluster.name, failed=reason) for job in canceled_jobs), events=tuple(events)
    )


def _describe_vacated(cluster: ClusterRecord, moved: int, canceled: int) -> str:
    """Text on moved and canceled jobs; empty if there are none."""
    moves = [f"{moved} {'job moves' if moved == 1 else 'jobs move'} to others"] if moved else []
    ends = [f"{canceled} {'job is' if canceled == 1 else 'jobs are'} canceled"] if canceled else []
    return (
        f"{' and '.join(moves + ends)}: cluster {cluster.name} {cluster.state_text}" if moves + ends else ""
    )


def _has_ended(entry: JobView) -> bool:
    return entry.status is not None and entry.status.state in JOB_ENDS


def _assign_to(job: JobView, cluster: str, reason: str) -> Plan:
    if job.cluster is not None and job.cluster.cluster == cluster:
        return NO_CHANGE  # it is assigned there already
    name = job.spec.id
    why = f"job {name} is assigned to cluster {cluster}: {reason}"
    event = EventRecord("job.assigned", why, job=name, cluster=cluster)
    return Plan((JobCluster(name, cluster, moved=job.cluster is not None),), events=(event,), why=why)


def _merge_plans(plans: list[Plan], reason: str) -> Plan:
    count = sum(bool(plan.puts) for plan in plans)
    return Plan(
        tuple(record for plan in plans for record in plan.puts),
        events=tuple(event for plan in plans for event in plan.events),
        why=f"{count} {'job is' if count == 1 else 'jobs are'} reassigned: {reason}" if count else "",
    )


def _unserved_event(spec: JobSpec, reason: str, cluster: str) -> EventRecord:
    why = f"no cluster serves job {spec.id}: {reason}; it waits in {cluster}"
    return EventRecord("job.unserved", why, job=spec.id, cluster=cluster)


def _any_takes_jobs(view: View, names: Iterable[str]) -> bool:
    return any(view.clusters[name].takes_jobs for name in names)


def _join_names(names: list[str]) -> str:
    return " and ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
