"""What runs and waits in a cluster + the sizes it may have -> machines that are asked for, and that go."""

from collections.abc import Callable, Iterable

from rota.clusters.machine_transitions import with_node
from rota.clusters.machines import MachineGroup, advance_machines
from rota.engine.reconciler import Reconciler, Wakes
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine, ScaleEstimate
from rota.model.ids import NodeId
from rota.model.job import JobCluster, JobKind
from rota.model.lifecycle import ClusterState, MachineEvent, MachineState
from rota.model.limits import SCALE_CHECK_MS, SCALE_NODES_PER_CHECK, SCALE_STEP_MAX, SCALE_UNCHANGED_CHECKS
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.view import View, nodes_being_terminated

NAME = "scale"
_NEVER_MS = -(1 << 60)

# The cluster, machines on their way, the most that may come on top -> what the scheduler would make of it.
EstimateScale = Callable[[View, ClusterIntent, int, int, Instant], ScaleEstimate]


def reconciler(estimate: EstimateScale) -> Reconciler:
    return Reconciler(NAME, "clusters", WAKES, Scaler(estimate).decide, start)


def _cluster_key(record: ClusterRecord | ClusterIntent) -> Iterable[str]:
    return (record.name,)


def _key_of_cluster(record: Machine | JobCluster) -> Iterable[str]:
    return (record.cluster,)


WAKES: Wakes = {
    ClusterIntent: _cluster_key,
    ClusterRecord: _cluster_key,
    Machine: _key_of_cluster,
    JobCluster: _key_of_cluster,
}


def start(view: View) -> Iterable[str]:
    return view.cluster_intents


class Scaler:
    """Remembers since when nodes are empty, and what was foreseen last: both can be found out again."""

    def __init__(self, estimate: EstimateScale) -> None:
        self._estimate = estimate
        self._empty_since_ms: dict[NodeId, int] = {}
        self._estimates: dict[str, tuple[int, tuple[int, ...], ScaleEstimate]] = {}  # when, on what, and what

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        cluster, wish = view.clusters.get(key), view.cluster_intents.get(key)
        if cluster is None or wish is None or wish.by_hand:
            return NO_CHANGE
        fleet = MachineGroup.from_view(view, cluster, wish)
        self._update_empty_since(view, fleet, now)
        plan = advance_machines(view, fleet, now) or self._resize(view, fleet, now) or NO_CHANGE
        return plan.but(wake_at_ms=now.ms + SCALE_CHECK_MS)

    def _resize(self, view: View, group: MachineGroup, now: Instant) -> Plan | None:
        if group.cluster.state is ClusterState.FAILED:  # what was on its way may have come since
            going = [with_node(view, one) for one in group.staying]
            return _shrink_plan(group, going, "it has failed", now) if going else None
        return self._grow(view, group, now) or self._shrink(view, group, now)

    def _update_empty_since(self, view: View, group: MachineGroup, now: Instant) -> None:
        for machine in group.members:
            node = view.nodes.get(machine.node) if machine.node is not None else None
            if node is not None and not _count_tasks(view, machine):
                self._empty_since_ms.setdefault(node.spec.id, now.ms)
            elif machine.node is not None:
                self._empty_since_ms.pop(machine.node, None)

    def _grow(self, view: View, group: MachineGroup, now: Instant) -> Plan | None:
        """At once: but not while its provider rests after a failure, and never above its limit."""
        wish, cluster = group.intent, group.cluster
        most = wish.max_nodes - group.size
        if most <= 0 or cluster.paused_until_ms > now.ms:
            return None
        missing = group.minimum_nodes - len(group.staying)
        growth = ScaleEstimate(0, 0, 0)
        if wish.nodes is None:
            growth = self._cached_estimate(view, group, most, now)
        more = min(max(missing, growth.nodes), most, SCALE_STEP_MAX)
        if more <= 0:
            return None
        new = tuple(
            Machine(f"{cluster.name}-{cluster.made + number}", cluster.name, since_ms=now.ms, asked_ms=now.ms)
            for number in range(1, more + 1)
        )
        why = _describe_growth(group, more, growth, moves=_count_moving_tasks(view, group) > 0)
        event = EventRecord("cluster.scaled", why, cluster=cluster.name, state="out")
        return Plan((cluster.asked_for(more), *new), events=(event,), why=why)

    def _cached_estimate(self, view: View, group: MachineGroup, most: int, now: Instant) -> ScaleEstimate:
        """Simulated at most once a look, and rarely when nothing has changed since: only pauses end then."""
        name, waiting, moving = (
            group.cluster.name,
            _count_waiting_jobs(view, group),
            _count_moving_tasks(view, group),
        )
        if not waiting and not moving:
            return ScaleEstimate(0, 0, 0)
        on = (view.node_table.capacity_version, waiting, moving, group.coming, most)
        at_ms, before, growth = self._estimates.get(name, (_NEVER_MS, (), ScaleEstimate(0, 0, 0)))
        look_ms = SCALE_CHECK_MS * (1 + view.node_table.size // SCALE_NODES_PER_CHECK)
        if before == on and now.ms - at_ms < look_ms * SCALE_UNCHANGED_CHECKS:
            return growth
        if now.ms - at_ms < look_ms:
            return ScaleEstimate(0, 0, 0)
        growth = self._estimate(view, group.intent, group.coming, most, now)
        self._estimates[name] = (now.ms, on, growth)
        return growth

    def _shrink(self, view: View, group: MachineGroup, now: Instant) -> Plan | None:
        """Slowly, and by nodes on which nothing runs; at once where a size was asked for."""
        surplus = len(group.staying) - group.minimum_nodes
        joined = [one for one in group.staying if one.state is MachineState.JOINED]
        if surplus <= 0 or not joined:
            return None
        if group.intent.nodes is not None:
            joined.sort(key=lambda one: _count_tasks(view, one))
            return _shrink_plan(group, joined[:surplus], _describe_requested(group.intent.nodes), now)
        comes = group.coming or group.cluster.paused_until_ms > now.ms
        if comes and not group.intent.drain and _count_waiting_jobs(view, group):
            return None  # an empty one may be needed together with those that come: by a gang, for one
        idle_ms = 0 if group.intent.drain else round(group.intent.idle_seconds * 1000)
        idle = {
            one.name: now.ms - self._empty_since_ms.get(one.node or NodeId(""), now.ms + 1) for one in joined
        }
        if max(idle.values()) < idle_ms or _count_moving_tasks(
            view, group
        ):  # which may be meant for an empty one
            return None
        # Those that are nearly as long empty go with them, so that one fall of the load is one step.
        going = [one for one in joined if idle[one.name] >= max(0, idle_ms // 2)]
        going.sort(key=lambda one: (-idle[one.name], one.since_ms))
        return _shrink_plan(group, going[:surplus], f"empty for {idle_ms / 1000:g} s", now)


def _count_tasks(view: View, machine: Machine) -> int:
    """Tasks for whose sake it is there; those of system jobs come and go with it."""
    node = view.nodes.get(machine.node) if machine.node is not None else None
    assigned = () if node is None else node.assigned
    return sum(view.jobs[job].spec.kind is not JobKind.SYSTEM for job, _ in assigned)


def _count_waiting_jobs(view: View, group: MachineGroup) -> int:
    """Jobs."""
    return view.pending_jobs_in(group.cluster.name)


def _count_moving_tasks(view: View, group: MachineGroup) -> int:
    """Tasks on nodes whose machines are taken away, and that may go elsewhere."""
    nodes = (view.nodes[node] for node in nodes_being_terminated(view, group.cluster.name))
    return sum(view.jobs[job].spec.movable for node in nodes for job, _ in node.assigned)


def _describe_growth(group: MachineGroup, more: int, growth: ScaleEstimate, *, moves: bool) -> str:
    name, limit = group.cluster.name, f"it has {group.size}, its limit is {group.intent.max_nodes}"
    head = f"adding {_describe_nodes(more)} to {name}"
    if not growth.nodes:
        return f"{head}: at least {_describe_requested(group.minimum_nodes)}; {limit}"
    if growth.waiting == 1:
        return f"{head}: 1 task waits{' or has to move' if moves else ''}, which would start; {limit}"
    starts = "all" if growth.starts == growth.waiting else f"{growth.starts} of them"
    wait = "wait or have to move" if moves else "wait"
    return f"{head}: {growth.waiting} tasks {wait}, {starts} would start; {limit}"


def _shrink_plan(group: MachineGroup, going: list[Machine], reason: str, now: Instant) -> Plan:
    left = len(group.staying) - len(going)
    head = f"taking {_describe_nodes(len(going))} from {group.cluster.name}"
    why = f"{head}: {reason}; it keeps {left}, its least is {group.minimum_nodes}"
    event = EventRecord("cluster.scaled", why, cluster=group.cluster.name, state="in")
    return Plan(
        tuple(one.turned(MachineEvent.NO_LONGER_DESIRED, now.ms, reason) for one in going),
        events=(event,),
        why=why,
    )


def _describe_requested(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} asked for"


def _describe_nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
