"""Clusters like one another + who waits in them -> one more, one less, or jobs that change over."""

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

NAME = "family"


def reconciler() -> Reconciler:
    return Reconciler(NAME, "clusters", WAKES, ClusterGroups().decide, start)


def _group_key(record: ClusterRecord) -> Iterable[str]:
    return (record.like or record.name,)


WAKES: Wakes = {ClusterIntent: lambda record: (record.name,), ClusterRecord: _group_key}


def start(view: View) -> Iterable[str]:
    return view.cluster_intents


class ClusterGroup(NamedTuple):
    """A cluster, what is wanted of it, and all that are like it, itself among them."""

    intent: ClusterIntent
    original: ClusterRecord
    members: list[ClusterRecord]

    @property
    def staying(self) -> list[ClusterRecord]:
        return [one for one in self.members if one.takes_jobs or one.is_to_come]


class ClusterQueue(NamedTuple):
    """Who waits in a cluster and has not begun, first in turn first."""

    cluster: ClusterRecord
    jobs: list[JobView]
    waits_ms: int  # the first of them, so long


class ClusterGroups:
    """Remembers since when clusters are idle: it can be found out again."""

    def __init__(self) -> None:
        self._idle_since_ms: dict[str, int] = {}

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        wish, first = view.cluster_intents.get(key), view.clusters.get(key)
        if wish is None or first is None or first.like is not None:
            return NO_CHANGE
        members = [first, *(one for one in view.clusters.values() if one.like == key)]
        if wish.max_clusters <= 1 and len(members) == 1:
            return NO_CHANGE
        family = ClusterGroup(wish, first, members)
        plan = _grow(view, family, now) or _balance(view, family, now) or self._shrink(view, family, now)
        return (plan or NO_CHANGE).but(wake_at_ms=now.ms + REASSIGN_CHECK_MS)

    def _shrink(self, view: View, group: ClusterGroup, now: Instant) -> Plan | None:
        """The last that was made first; the one that was asked for stays."""
        wish, spare = group.intent, len(group.staying) - group.intent.min_clusters
        for one in reversed(group.members[1:]):
            if one.closing or not _is_idle(view, one.name):
                self._idle_since_ms.pop(one.name, None)
                continue
            idle_ms = now.ms - self._idle_since_ms.setdefault(one.name, now.ms)
            if wish.drain or one.state is ClusterState.FAILED:
                return _close(one, f"{group.original.name} is drained" if wish.drain else "it has failed")
            if spare > 0 and idle_ms >= wish.idle_seconds * 1000:
                left = len(group.staying) - 1
                reason = f"nothing has run or waited there for {wish.idle_seconds:g} s"
                return _close(one, f"{reason}; {_describe_left(left)}, the least is {wish.min_clusters}")
        return None


def _grow(view: View, group: ClusterGroup, now: Instant) -> Plan | None:
    """One at a time, and never above the limit; one that drains or has failed does not count as there."""
    wish, there = group.intent, len(group.members)
    if wish.drain or there >= wish.max_clusters or len(view.clusters) >= CLUSTERS_MAX:
        return None
    if any(one.is_to_come for one in group.members):
        return None
    reason = _below_minimum(group) or _overloaded(view, group, now)
    if reason is None:
        return None
    first, made = group.original.another(now.ms)
    why = f"cluster {made.name} is asked for: {reason}; there are {there}, the limit is {wish.max_clusters}"
    event = EventRecord("cluster.created", why, cluster=made.name)
    return Plan((first, made), events=(event, _event_for(event, first.name)), why=why)


def _below_minimum(group: ClusterGroup) -> str | None:
    least = group.intent.min_clusters
    return (
        f"at least {least} like {group.original.name} are asked for" if len(group.staying) < least else None
    )


def _overloaded(view: View, group: ClusterGroup, now: Instant) -> str | None:
    """Where each has somebody who waits too long, and cannot grow; or none takes jobs, and somebody waits."""
    queues = [_queue_of(view, one, now) for one in group.members]
    open_ones = [queue for queue in queues if queue.cluster.takes_jobs]
    if not open_ones:
        waiting = sum(len(queue.jobs) for queue in queues)
        return f"{_describe_jobs(waiting)}, and none like {group.original.name} is ready" if waiting else None
    limit_ms = group.intent.wait_seconds * 1000
    if now.ms - group.original.copied_ms < limit_ms and group.original.copies:
        return None  # the last one that was made has to show what it is worth
    if any(one.waits_ms < limit_ms or _can_grow(view, one.cluster, group.intent) for one in open_ones):
        return None
    longest = max(open_ones, key=lambda one: one.waits_ms)
    head, where, seconds = longest.jobs[0].spec.id, longest.cluster.name, longest.waits_ms // 1000
    return f"of {_describe_jobs(len(longest.jobs))} in {where} the first, {head}, does so for {seconds} s"


def _can_grow(view: View, cluster: ClusterRecord, intent: ClusterIntent) -> bool:
    size = sum(1 + one.extra for one in view.machines.values() if one.cluster == cluster.name)
    return size < (intent.max_nodes if intent.nodes is None else intent.nodes) and not cluster.failures


def _balance(view: View, group: ClusterGroup, now: Instant) -> Plan | None:
    """Every second job that has not begun goes from where it waits too long to where nobody waits."""
    queues = [_queue_of(view, one, now) for one in group.members if one.takes_jobs]
    idle = next((one.cluster for one in queues if not one.jobs), None)
    longest = max(queues, key=lambda one: one.waits_ms, default=None)
    if idle is None or longest is None or longest.waits_ms < group.intent.wait_seconds * 1000:
        return None
    free = (None, group.original.name)
    may = [job for job in longest.jobs if job.spec.cluster in free and job.spec.move_pending]
    going = [job for job in may[::2] if could_provision(idle, group.intent, job.spec)]
    if not going:
        return None
    reason = (
        f"they wait for up to {longest.waits_ms // 1000} s in {longest.cluster.name}, and nobody does there"
    )
    jobs = _describe_jobs(len(going), waits=False)
    why = f"{jobs} of {len(longest.jobs)} that wait move to {idle.name}: {reason}"
    told = (
        EventRecord(
            "job.assigned", f"job {job.spec.id} is assigned to cluster {idle.name}: {why}", job=job.spec.id
        )
        for job in going
    )
    moved = tuple(JobCluster(job.spec.id, idle.name, moved=True) for job in going)
    both = (EventRecord("cluster.balanced", why, cluster=name) for name in (idle.name, longest.cluster.name))
    return Plan(moved, events=(*both, *told), why=why)


def _queue_of(view: View, cluster: ClusterRecord, now: Instant) -> ClusterQueue:
    turns = sorted(
        turn for line, turns in view.pending_queues() if line.shape.cluster == cluster.name for turn in turns
    )
    jobs = [job for turn in turns if not (job := view.jobs[JobId(str(turn[2]))]).task_counts.live]
    since_ms = (job.status.wanted_at_ms for job in jobs[:1] if job.status is not None)
    return ClusterQueue(cluster, jobs, max((now.ms - at_ms for at_ms in since_ms), default=0))


def _is_idle(view: View, name: str) -> bool:
    """No unfinished job is assigned to it, and nothing of it is about to change."""
    moves = any(one.cluster == name and (one.comes or one.goes) for one in view.machines.values())
    return not moves and name not in view.jobs_by_cluster


def _close(cluster: ClusterRecord, reason: str) -> Plan:
    why = f"cluster {cluster.name} ends: {reason}"
    event = EventRecord("cluster.closed", why, cluster=cluster.name)
    return Plan((cluster.closed(),), events=(event, _event_for(event, str(cluster.like))), why=why)


def _event_for(event: EventRecord, cluster: str) -> EventRecord:
    """The same for the ledger of the cluster that it is like."""
    return EventRecord(event.kind, event.why, cluster=cluster)


def _describe_left(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} left"


def _describe_jobs(count: int, *, waits: bool = True) -> str:
    one = count == 1
    return ("1 job" if one else f"{count} jobs") + (f" that wait{'s' if one else ''}" if waits else "")
