"""Clusters like one another + who waits in them -> one more, one less, or jobs that change over."""

from collections.abc import Iterable
from typing import NamedTuple

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.cluster import Cluster, ClusterWish
from rota.model.ids import JobId
from rota.model.job import JobCluster
from rota.model.lifecycle import ClusterState
from rota.model.limits import CLUSTERS_MAX, MOVE_LOOK_MS
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.serve import makes
from rota.model.view import JobView, View

NAME = "family"


def reconciler() -> Reconciler:
    return Reconciler(NAME, "clusters", WAKES, Families().decide, start)


def _first_of_them(record: Cluster) -> Iterable[str]:
    return (record.like or record.name,)


WAKES: Wakes = {ClusterWish: lambda record: (record.name,), Cluster: _first_of_them}


def start(view: View) -> Iterable[str]:
    return view.cluster_wishes


class Family(NamedTuple):
    """A cluster, what is wanted of it, and all that are like it, itself among them."""

    wish: ClusterWish
    first: Cluster
    members: list[Cluster]

    @property
    def staying(self) -> list[Cluster]:
        return [one for one in self.members if one.takes_jobs or one.is_to_come]


class Queue(NamedTuple):
    """Who waits in a cluster and has not begun, first in turn first."""

    cluster: Cluster
    jobs: list[JobView]
    waits_ms: int  # the first of them, so long


class Families:
    """Remembers since when clusters are idle: it can be found out again."""

    def __init__(self) -> None:
        self._idle_since_ms: dict[str, int] = {}

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        wish, first = view.cluster_wishes.get(key), view.clusters.get(key)
        if wish is None or first is None or first.like is not None:
            return NOTHING
        members = [first, *(one for one in view.clusters.values() if one.like == key)]
        if wish.max_clusters <= 1 and len(members) == 1:
            return NOTHING
        family = Family(wish, first, members)
        plan = _grow(view, family, now) or _balance(view, family, now) or self._shrink(view, family, now)
        return (plan or NOTHING).but(wake_at_ms=now.ms + MOVE_LOOK_MS)

    def _shrink(self, view: View, family: Family, now: Instant) -> Plan | None:
        """The last that was made first; the one that was asked for stays."""
        wish, spare = family.wish, len(family.staying) - family.wish.min_clusters
        for one in reversed(family.members[1:]):
            if one.closing or not _is_idle(view, one.name):
                self._idle_since_ms.pop(one.name, None)
                continue
            idle_ms = now.ms - self._idle_since_ms.setdefault(one.name, now.ms)
            if wish.drain or one.state is ClusterState.FAILED:
                return _closed(one, f"{family.first.name} is drained" if wish.drain else "it has failed")
            if spare > 0 and idle_ms >= wish.idle_seconds * 1000:
                left = len(family.staying) - 1
                reason = f"nothing has run or waited there for {wish.idle_seconds:g} s"
                return _closed(one, f"{reason}; {_left(left)}, the least is {wish.min_clusters}")
        return None


def _grow(view: View, family: Family, now: Instant) -> Plan | None:
    """One at a time, and never above the limit; one that drains or has failed does not count as there."""
    wish, there = family.wish, len(family.members)
    if wish.drain or there >= wish.max_clusters or len(view.clusters) >= CLUSTERS_MAX:
        return None
    if any(one.is_to_come for one in family.members):
        return None
    reason = _missing(family) or _crowded(view, family, now)
    if reason is None:
        return None
    first, made = family.first.another(now.ms)
    why = f"cluster {made.name} is asked for: {reason}; there are {there}, the limit is {wish.max_clusters}"
    event = Event("cluster.created", why, cluster=made.name)
    return Plan((first, made), events=(event, _copied(event, first.name)), why=why)


def _missing(family: Family) -> str | None:
    least = family.wish.min_clusters
    return f"at least {least} like {family.first.name} are asked for" if len(family.staying) < least else None


def _crowded(view: View, family: Family, now: Instant) -> str | None:
    """Where each has somebody who waits too long, and cannot grow; or none takes jobs, and somebody waits."""
    queues = [_queue(view, one, now) for one in family.members]
    open_ones = [queue for queue in queues if queue.cluster.takes_jobs]
    if not open_ones:
        waiting = sum(len(queue.jobs) for queue in queues)
        return f"{_jobs(waiting)}, and none like {family.first.name} is ready" if waiting else None
    limit_ms = family.wish.wait_seconds * 1000
    if now.ms - family.first.copied_ms < limit_ms and family.first.copies:
        return None  # the last one that was made has to show what it is worth
    if any(one.waits_ms < limit_ms or _can_grow(view, one.cluster, family.wish) for one in open_ones):
        return None
    longest = max(open_ones, key=lambda one: one.waits_ms)
    head, where, seconds = longest.jobs[0].spec.id, longest.cluster.name, longest.waits_ms // 1000
    return f"of {_jobs(len(longest.jobs))} in {where} the first, {head}, does so for {seconds} s"


def _can_grow(view: View, cluster: Cluster, wish: ClusterWish) -> bool:
    size = sum(1 + one.extra for one in view.machines.values() if one.cluster == cluster.name)
    return size < (wish.max_nodes if wish.nodes is None else wish.nodes) and not cluster.failures


def _balance(view: View, family: Family, now: Instant) -> Plan | None:
    """Every second job that has not begun goes from where it waits too long to where nobody waits."""
    queues = [_queue(view, one, now) for one in family.members if one.takes_jobs]
    idle = next((one.cluster for one in queues if not one.jobs), None)
    longest = max(queues, key=lambda one: one.waits_ms, default=None)
    if idle is None or longest is None or longest.waits_ms < family.wish.wait_seconds * 1000:
        return None
    free = (None, family.first.name)
    may = [job for job in longest.jobs if job.spec.cluster in free and job.spec.move_pending]
    going = [job for job in may[::2] if makes(idle, family.wish, job.spec)]
    if not going:
        return None
    reason = (
        f"they wait for up to {longest.waits_ms // 1000} s in {longest.cluster.name}, and nobody does there"
    )
    why = f"{_jobs(len(going), waits=False)} of {len(longest.jobs)} that wait move to {idle.name}: {reason}"
    told = (
        Event("job.assigned", f"job {job.spec.id} is assigned to cluster {idle.name}: {why}", job=job.spec.id)
        for job in going
    )
    moved = tuple(JobCluster(job.spec.id, idle.name, moved=True) for job in going)
    both = (Event("cluster.balanced", why, cluster=name) for name in (idle.name, longest.cluster.name))
    return Plan(moved, events=(*both, *told), why=why)


def _queue(view: View, cluster: Cluster, now: Instant) -> Queue:
    turns = sorted(
        turn for line, turns in view.waiting() if line.shape.cluster == cluster.name for turn in turns
    )
    jobs = [job for turn in turns if not (job := view.jobs[JobId(str(turn[2]))]).tally.live]
    since_ms = (job.status.wanted_at_ms for job in jobs[:1] if job.status is not None)
    return Queue(cluster, jobs, max((now.ms - at_ms for at_ms in since_ms), default=0))


def _is_idle(view: View, name: str) -> bool:
    """No unfinished job is assigned to it, and nothing of it is about to change."""
    moves = any(one.cluster == name and (one.comes or one.goes) for one in view.machines.values())
    return not moves and name not in view.jobs_by_cluster


def _closed(cluster: Cluster, reason: str) -> Plan:
    why = f"cluster {cluster.name} ends: {reason}"
    event = Event("cluster.closed", why, cluster=cluster.name)
    return Plan((cluster.closed(),), events=(event, _copied(event, str(cluster.like))), why=why)


def _copied(event: Event, cluster: str) -> Event:
    """The same for the ledger of the cluster that it is like."""
    return Event(event.kind, event.why, cluster=cluster)


def _left(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} left"


def _jobs(count: int, *, waits: bool = True) -> str:
    one = count == 1
    return ("1 job" if one else f"{count} jobs") + (f" that wait{'s' if one else ''}" if waits else "")
