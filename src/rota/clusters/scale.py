"""Demand of a cluster + its size limits -> machines to create and to remove."""

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
from rota.rules.reconciler_names import ReconcilerName

_NEVER_MS = -(1 << 60)

# Cluster, machines being created, the most that may be added -> what the scheduler would do with them.
EstimateScale = Callable[[View, ClusterIntent, int, int, Instant], ScaleEstimate]


def reconciler(estimate: EstimateScale) -> Reconciler:
    return Reconciler(ReconcilerName.SCALE, "clusters", WAKES, Scaler(estimate).decide, start)


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
    """Keeps since when nodes are empty, and the last estimates.

    Losing them restarts timers and a simulation.
    """

    def __init__(self, estimate: EstimateScale) -> None:
        self._estimate = estimate
        self._empty_since_ms: dict[NodeId, int] = {}
        self._estimates: dict[str, tuple[int, tuple[int, ...], ScaleEstimate]] = {}  # when, inputs, result

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        cluster, intent = view.clusters.get(key), view.cluster_intents.get(key)
        if cluster is None or intent is None or intent.by_hand:
            return NO_CHANGE
        group = MachineGroup.from_view(view, cluster, intent)
        self._update_empty_since(view, group, now)
        # Transitions first: a size that is computed with machines in an outdated state would be wrong.
        plan = advance_machines(view, group, now) or self._resize(view, group, now) or NO_CHANGE
        return plan.but(wake_at_ms=now.ms + SCALE_CHECK_MS)

    def _resize(self, view: View, group: MachineGroup, now: Instant) -> Plan | None:
        # Machines that were being created may have joined since.
        if group.cluster.state is ClusterState.FAILED:
            removed = [with_node(view, machine) for machine in group.staying]
            return _shrink_plan(group, removed, "it has failed", now) if removed else None
        return self._grow(view, group, now) or self._shrink(view, group, now)

    def _update_empty_since(self, view: View, group: MachineGroup, now: Instant) -> None:
        for machine in group.members:
            node = view.nodes.get(machine.node) if machine.node is not None else None
            if node is not None and not _count_tasks(view, machine):
                self._empty_since_ms.setdefault(node.spec.id, now.ms)
            elif machine.node is not None:
                self._empty_since_ms.pop(machine.node, None)

    def _grow(self, view: View, group: MachineGroup, now: Instant) -> Plan | None:
        """Scale up immediately, but not during the backoff of its provider, and never above the limit."""
        intent, cluster = group.intent, group.cluster
        # With machines that are leaving: until the provider's list confirms their removal
        # they may exist and cost money.
        most = intent.max_nodes - group.size
        if most <= 0 or cluster.paused_until_ms > now.ms:
            return None
        missing = group.minimum_nodes - len(group.staying)
        estimate = ScaleEstimate(0, 0, 0)
        # A fixed size does not depend on demand: no simulation.
        if intent.nodes is None:
            estimate = self._cached_estimate(view, group, most, now)
        # Bounded: a trial runs in the deciding loop and takes longer with each hypothetical node.
        more = min(max(missing, estimate.nodes), most, SCALE_STEP_MAX)
        if more <= 0:
            return None
        new = tuple(
            Machine(f"{cluster.name}-{cluster.made + number}", cluster.name, since_ms=now.ms, asked_ms=now.ms)
            for number in range(1, more + 1)
        )
        why = _describe_growth(group, more, estimate, moves=_count_moving_tasks(view, group) > 0)
        event = EventRecord("cluster.scaled", why, cluster=cluster.name, state="out")
        # The counter of names and the machines are one commit: after a crash no name is given to two
        # machines.
        return Plan((cluster.with_requested(more), *new), events=(event,), why=why)

    def _cached_estimate(self, view: View, group: MachineGroup, most: int, now: Instant) -> ScaleEstimate:
        """The estimate, simulated at most once per check.

        Rarely if no input changed, as only backoffs end then.
        """
        name, waiting, moving = (
            group.cluster.name,
            _count_waiting_jobs(view, group),
            _count_moving_tasks(view, group),
        )
        if not waiting and not moving:
            return ScaleEstimate(0, 0, 0)
        # Cheap to read. If none of them changed, the trial would mostly repeat its result.
        inputs = (view.node_table.capacity_version, waiting, moving, group.coming, most)
        at_ms, before, estimate = self._estimates.get(name, (_NEVER_MS, (), ScaleEstimate(0, 0, 0)))
        # A trial copies the mirror, so the interval grows with it and the share of the loop stays the same.
        check_ms = SCALE_CHECK_MS * (1 + view.node_table.size // SCALE_NODES_PER_CHECK)
        if before == inputs and now.ms - at_ms < check_ms * SCALE_UNCHANGED_CHECKS:
            return estimate
        # Not the old estimate: it was made with other inputs, and acting on it twice
        # would add the same nodes twice.
        if now.ms - at_ms < check_ms:
            return ScaleEstimate(0, 0, 0)
        estimate = self._estimate(view, group.intent, group.coming, most, now)
        self._estimates[name] = (now.ms, inputs, estimate)
        return estimate

    def _shrink(self, view: View, group: MachineGroup, now: Instant) -> Plan | None:
        """Scale down after an idle time, by empty nodes; immediately where a size is requested."""
        surplus = len(group.staying) - group.minimum_nodes
        joined = [machine for machine in group.staying if machine.state is MachineState.JOINED]
        if surplus <= 0 or not joined:
            return None
        if group.intent.nodes is not None:
            # The emptiest first: fewest tasks have to move.
            joined.sort(key=lambda machine: _count_tasks(view, machine))
            return _shrink_plan(group, joined[:surplus], _describe_requested(group.intent.nodes), now)
        is_growing = group.coming or group.cluster.paused_until_ms > now.ms
        if is_growing and not group.intent.drain and _count_waiting_jobs(view, group):
            return None  # an empty node may be needed together with those being created, as by a gang
        idle_ms = 0 if group.intent.drain else round(group.intent.idle_seconds * 1000)
        idle = {
            machine.name: now.ms - self._empty_since_ms.get(machine.node or NodeId(""), now.ms + 1)
            for machine in joined
        }
        # Tasks that have to move may need an empty node.
        if max(idle.values()) < idle_ms or _count_moving_tasks(view, group):
            return None
        # Nodes that have been empty for nearly as long are removed too: one drop of the load is one step.
        removed = [machine for machine in joined if idle[machine.name] >= max(0, idle_ms // 2)]
        removed.sort(key=lambda machine: (-idle[machine.name], machine.since_ms))
        return _shrink_plan(group, removed[:surplus], f"empty for {idle_ms / 1000:g} s", now)


def _count_tasks(view: View, machine: Machine) -> int:
    """Number of its tasks, without those of system jobs, which run on every node."""
    node = view.nodes.get(machine.node) if machine.node is not None else None
    assigned = () if node is None else node.assigned
    return sum(view.jobs[job].spec.kind is not JobKind.SYSTEM for job, _ in assigned)


def _count_waiting_jobs(view: View, group: MachineGroup) -> int:
    return view.pending_jobs_in(group.cluster.name)


def _count_moving_tasks(view: View, group: MachineGroup) -> int:
    """Number of movable tasks on nodes whose machines are being terminated."""
    nodes = (view.nodes[node] for node in nodes_being_terminated(view, group.cluster.name))
    return sum(view.jobs[job].spec.movable for node in nodes for job, _ in node.assigned)


def _describe_growth(group: MachineGroup, more: int, estimate: ScaleEstimate, *, moves: bool) -> str:
    name, limit = group.cluster.name, f"it has {group.size}, its limit is {group.intent.max_nodes}"
    head = f"adding {_describe_nodes(more)} to {name}"
    if not estimate.nodes:
        return f"{head}: at least {_describe_requested(group.minimum_nodes)}; {limit}"
    if estimate.waiting == 1:
        return f"{head}: 1 task waits{' or has to move' if moves else ''}, which would start; {limit}"
    starts = "all" if estimate.starts == estimate.waiting else f"{estimate.starts} of them"
    wait = "wait or have to move" if moves else "wait"
    return f"{head}: {estimate.waiting} tasks {wait}, {starts} would start; {limit}"


def _shrink_plan(group: MachineGroup, removed: list[Machine], reason: str, now: Instant) -> Plan:
    left = len(group.staying) - len(removed)
    head = f"taking {_describe_nodes(len(removed))} from {group.cluster.name}"
    why = f"{head}: {reason}; it keeps {left}, its least is {group.minimum_nodes}"
    event = EventRecord("cluster.scaled", why, cluster=group.cluster.name, state="in")
    return Plan(
        tuple(machine.after_event(MachineEvent.NO_LONGER_DESIRED, now.ms, reason) for machine in removed),
        events=(event,),
        why=why,
    )


def _describe_requested(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} asked for"


def _describe_nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
