"""Groups of interchangeable clusters + their queues -> one cluster more, one less, or jobs rebalanced."""

from collections.abc import Iterable
from typing import NamedTuple

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.cluster import ClusterIntent, ClusterRecord
from rota.model.ids import JobId
from rota.model.job import JobCluster
from rota.model.lifecycle import ClusterState
from rota.model.limits import CLUSTERS_MAX, REASSIGN_CHECK_MS
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.view import JobView, View
from rota.rules.cluster_matching import could_provision
from rota.rules.reconciler_names import ReconcilerName


def reconciler() -> Reconciler:
    return Reconciler(ReconcilerName.CLUSTER_GROUPS, "clusters", WAKES, ClusterGroups().decide, start)


def _group_key(record: ClusterRecord) -> Iterable[str]:
    return (record.like or record.name,)


WAKES: Wakes = {ClusterIntent: lambda record: (record.name,), ClusterRecord: _group_key}


def start(view: View) -> Iterable[str]:
    return view.cluster_intents


class ClusterGroup(NamedTuple):
    """A cluster with its intent, and all clusters made like it, including itself."""

    intent: ClusterIntent
    original: ClusterRecord
    members: list[ClusterRecord]

    @property
    def staying(self) -> list[ClusterRecord]:
        return [cluster for cluster in self.members if cluster.takes_jobs or cluster.may_take_jobs_later]


class ClusterQueue(NamedTuple):
    """Pending jobs of a cluster that have not started, by rank."""

    cluster: ClusterRecord
    jobs: list[JobView]
    waits_ms: int  # how long the first of them has been pending


class ClusterGroups:
    """Keeps since when clusters are idle; losing it restarts the idle timers."""

    def __init__(self) -> None:
        self._idle_since_ms: dict[str, int] = {}

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        intent, first = view.cluster_intents.get(key), view.clusters.get(key)
        if intent is None or first is None or first.like is not None:
            return NO_CHANGE
        members = [first, *(cluster for cluster in view.clusters.values() if cluster.like == key)]
        if intent.max_clusters <= 1 and len(members) == 1:
            return NO_CHANGE
        group = ClusterGroup(intent, first, members)
        # One step at a time, and growth first: a cluster must not be closed in the decision
        # that finds the group overloaded.
        plan = _grow(view, group, now) or _balance(view, group, now) or self._shrink(view, group, now)
        return (plan or NO_CHANGE).but(wake_at_ms=now.ms + REASSIGN_CHECK_MS)

    def _shrink(self, view: View, group: ClusterGroup, now: Instant) -> Plan | None:
        """Close an idle cluster, the newest first; the original one stays."""
        intent, spare = group.intent, len(group.staying) - group.intent.min_clusters
        # Without the original: the intent of the others is derived from its record, so it ends last.
        for cluster in reversed(group.members[1:]):
            if cluster.closing or not _is_idle(view, cluster.name):
                self._idle_since_ms.pop(cluster.name, None)
                continue
            idle_ms = now.ms - self._idle_since_ms.setdefault(cluster.name, now.ms)
            if intent.drain or cluster.state is ClusterState.FAILED:
                return _close(
                    cluster, f"{group.original.name} is drained" if intent.drain else "it has failed"
                )
            if spare > 0 and idle_ms >= intent.idle_seconds * 1000:
                left = len(group.staying) - 1
                reason = f"nothing has run or waited there for {intent.idle_seconds:g} s"
                return _close(
                    cluster, f"{reason}; {_describe_left(left)}, the least is {intent.min_clusters}"
                )
        return None


def _grow(view: View, group: ClusterGroup, now: Instant) -> Plan | None:
    """Add one cluster at a time, never above the limit."""
    intent, count = group.intent, len(group.members)
    if intent.drain or count >= intent.max_clusters or len(view.clusters) >= CLUSTERS_MAX:
        return None
    # One at a time: the one that is being provisioned may be enough.
    if any(cluster.may_take_jobs_later for cluster in group.members):
        return None
    reason = _below_minimum(group) or _overloaded(view, group, now)
    if reason is None:
        return None
    # The original counts its copies in the same commit, so that the name of a cluster is never reused.
    first, made = group.original.with_copy(now.ms)
    why = f"cluster {made.name} is asked for: {reason}; there are {count}, the limit is {intent.max_clusters}"
    event = EventRecord("cluster.created", why, cluster=made.name)
    return Plan((first, made), events=(event, _event_for(event, first.name)), why=why)


def _below_minimum(group: ClusterGroup) -> str | None:
    least = group.intent.min_clusters
    return (
        f"at least {least} like {group.original.name} are asked for" if len(group.staying) < least else None
    )


def _overloaded(view: View, group: ClusterGroup, now: Instant) -> str | None:
    """Reason to add a cluster: each has jobs pending for too long and cannot grow; or none accepts jobs."""
    queues = [_queue_of(view, cluster, now) for cluster in group.members]
    open_queues = [queue for queue in queues if queue.cluster.takes_jobs]
    if not open_queues:
        waiting = sum(len(queue.jobs) for queue in queues)
        return f"{_describe_jobs(waiting)}, and none like {group.original.name} is ready" if waiting else None
    limit_ms = group.intent.wait_seconds * 1000
    # The time of the last copy is stored, so a new leader does not add another one immediately.
    if now.ms - group.original.copied_ms < limit_ms and group.original.copies:
        return None  # the last added cluster has to show its effect first
    if any(
        queue.waits_ms < limit_ms or _can_grow(view, queue.cluster, group.intent) for queue in open_queues
    ):
        return None
    longest = max(open_queues, key=lambda queue: queue.waits_ms)
    head, where, seconds = longest.jobs[0].spec.id, longest.cluster.name, longest.waits_ms // 1000
    return f"of {_describe_jobs(len(longest.jobs))} in {where} the first, {head}, does so for {seconds} s"


def _can_grow(view: View, cluster: ClusterRecord, intent: ClusterIntent) -> bool:
    size = sum(1 + machine.extra for machine in view.machines.values() if machine.cluster == cluster.name)
    return size < (intent.max_nodes if intent.nodes is None else intent.nodes) and not cluster.failures


def _balance(view: View, group: ClusterGroup, now: Instant) -> Plan | None:
    """Move pending jobs from the cluster with the longest wait to one without pending jobs."""
    queues = [_queue_of(view, cluster, now) for cluster in group.members if cluster.takes_jobs]
    idle = next((queue.cluster for queue in queues if not queue.jobs), None)
    longest = max(queues, key=lambda queue: queue.waits_ms, default=None)
    if idle is None or longest is None or longest.waits_ms < group.intent.wait_seconds * 1000:
        return None
    free = (None, group.original.name)
    movable = [job for job in longest.jobs if job.spec.cluster in free and job.spec.move_pending]
    # Every second one: if all of them moved, the queue would be as long there, and they would move back.
    moving = [job for job in movable[::2] if could_provision(idle, group.intent, job.spec)]
    if not moving:
        return None
    reason = (
        f"they wait for up to {longest.waits_ms // 1000} s in {longest.cluster.name}, and nobody does there"
    )
    jobs = _describe_jobs(len(moving), waits=False)
    why = f"{jobs} of {len(longest.jobs)} that wait move to {idle.name}: {reason}"
    assigned = (
        EventRecord(
            "job.assigned", f"job {job.spec.id} is assigned to cluster {idle.name}: {why}", job=job.spec.id
        )
        for job in moving
    )
    moved = tuple(JobCluster(job.spec.id, idle.name, moved=True) for job in moving)
    both = (EventRecord("cluster.balanced", why, cluster=name) for name in (idle.name, longest.cluster.name))
    return Plan(moved, events=(*both, *assigned), why=why)


def _queue_of(view: View, cluster: ClusterRecord, now: Instant) -> ClusterQueue:
    ranks = sorted(
        rank
        for queue, ranks in view.pending_queues()
        if queue.shape.cluster == cluster.name
        for rank in ranks
    )
    # A job with live tasks is served here already and cannot move.
    jobs = [job for rank in ranks if not (job := view.jobs[JobId(str(rank[2]))]).task_counts.live]
    since_ms = (job.status.wanted_at_ms for job in jobs[:1] if job.status is not None)
    return ClusterQueue(cluster, jobs, max((now.ms - at_ms for at_ms in since_ms), default=0))


def _is_idle(view: View, name: str) -> bool:
    """Whether no unfinished job is assigned to it, and none of its machines is being added or removed."""
    moves = any(
        machine.cluster == name and (machine.is_being_created or machine.is_being_removed)
        for machine in view.machines.values()
    )
    return not moves and name not in view.jobs_by_cluster


def _close(cluster: ClusterRecord, reason: str) -> Plan:
    why = f"cluster {cluster.name} ends: {reason}"
    event = EventRecord("cluster.closed", why, cluster=cluster.name)
    return Plan((cluster.with_closing(),), events=(event, _event_for(event, str(cluster.like))), why=why)


def _event_for(event: EventRecord, cluster: str) -> EventRecord:
    """The same event for the original cluster of the group."""
    return EventRecord(event.kind, event.why, cluster=cluster)


def _describe_left(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} left"


def _describe_jobs(count: int, *, waits: bool = True) -> str:
    jobs = "1 job" if count == 1 else f"{count} jobs"
    verb = "waits" if count == 1 else "wait"
    return f"{jobs} that {verb}" if waits else jobs
