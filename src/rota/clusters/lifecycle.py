"""The intent of a cluster + its nodes, machines and jobs -> its state.

A cluster whose nodes join by hand is *ready* while it has a ready or suspect node, and *unavailable* without
one. If some of its nodes are lost it *fails* after `ClusterIntent.fails_after_seconds`, and is ready again as
soon as it has a node. Nodes that have left do not count: an empty cluster has not failed.

The time is cluster time since the last node was lost, which is on disk. So it continues after a restart and
under another leader, and stands still while no server leads. But nodes that could not reach an absent server
must have time to reconnect: the lost nodes must have been silent for RECONNECT_MS, and the engine restarts
liveness clocks at each start, change of leader and stall.

A cluster with a provider is ready without a node, because one can be created. It fails with its provider.
"""

from collections.abc import Iterable, Iterator

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.cluster import DEFAULT, ClusterIntent, ClusterRecord, Machine, why_no_node
from rota.model.ids import NodeId
from rota.model.lifecycle import (
    CLUSTER,
    NODE_PRESENT,
    ClusterEvent,
    ClusterState,
    MachineState,
    NodeState,
    step,
)
from rota.model.limits import PROVIDER_FAILURES_MAX, RECONNECT_MS, SCALE_CHECK_MS
from rota.model.node import NodeSpec, NodeStatus
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, wake_at
from rota.model.view import NodeView, View
from rota.rules.reconciler_names import ReconcilerName

_NODE_KEYS = "nodes/"  # key prefix: the cluster of this node; names of clusters contain no slash
_IN_PROGRESS = (ClusterState.PROVISIONING, ClusterState.RESIZING, ClusterState.DRAINING)


def start(view: View) -> Iterable[str]:
    return {
        **view.cluster_intents,
        **view.clusters,
        # A node may have joined under the name of a cluster that has no record yet.
        **{node.spec.cluster: None for node in view.nodes.values()},
    }


def decide(view: View, key: str, now: Instant) -> Plan:
    if key.startswith(_NODE_KEYS):
        node = view.nodes.get(NodeId(key.removeprefix(_NODE_KEYS)))
        return NO_CHANGE if node is None else decide(view, node.spec.cluster, now)
    cluster, intent = view.clusters.get(key), view.cluster_intents.get(key)
    if cluster is None:
        return _create_cluster(key, intent, now) if intent is not None or _has_nodes(view, key) else NO_CHANGE
    desired = intent or ClusterIntent(key)
    # A drain or a failure precedes all other transitions: it decides what happens to the jobs.
    event = _drain_or_failure(view, cluster, desired, now) or _next_event(view, cluster, desired)
    if event is None:
        return _wake_later(view, cluster, desired, now)
    if event is ClusterEvent.EMPTY:
        return _delete_cluster(cluster, intent)
    return _transition(view, cluster, event, now)


def _wake_later(view: View, cluster: ClusterRecord, intent: ClusterIntent, now: Instant) -> Plan:
    if cluster.state in _IN_PROGRESS:
        # Jobs and tasks wake no key of their cluster, so whether a draining one is empty is polled.
        return wake_at(now.ms + SCALE_CHECK_MS)
    at_ms = fails_at_ms(view, cluster, intent)
    return NO_CHANGE if at_ms is None else wake_at(at_ms)


def _create_cluster(name: str, intent: ClusterIntent | None, now: Instant) -> Plan:
    """Create the record. A cluster without an intent may have nodes that joined under its name."""
    if intent is None:
        return Plan(
            (ClusterRecord(name, since_ms=now.ms),), why=f"cluster {name} is there: a node belongs to it"
        )
    cluster = ClusterRecord(name, ClusterState.REQUESTED, since_ms=now.ms)
    why = f"cluster {name} is asked for: {_describe_size(intent)}"
    return Plan((cluster,), events=(EventRecord("cluster.created", why, cluster=name),), why=why)


def _next_event(view: View, cluster: ClusterRecord, intent: ClusterIntent) -> ClusterEvent | None:
    match cluster.state:
        case ClusterState.REQUESTED:
            return ClusterEvent.REQUESTED
        case ClusterState.DRAINING:
            return _next_draining(view, cluster, intent)
        case ClusterState.ENDED:
            return None
        case _ if intent.by_hand:
            return _next_by_hand(cluster.state, has_nodes=_has_nodes(view, cluster.name))
        case _:
            return _next_provided(view, cluster, intent)


def _next_by_hand(state: ClusterState, *, has_nodes: bool) -> ClusterEvent | None:
    match state:
        case ClusterState.UNAVAILABLE | ClusterState.FAILED:
            return ClusterEvent.NODE_JOINED if has_nodes else None
        case ClusterState.PROVISIONING if has_nodes:
            return ClusterEvent.NODES_SUFFICIENT
        case ClusterState.RESIZING:
            return ClusterEvent.RESIZE_FINISHED
        case _:
            return None if has_nodes else ClusterEvent.NODES_ABSENT


def _next_provided(view: View, cluster: ClusterRecord, intent: ClusterIntent) -> ClusterEvent | None:
    match cluster.state:
        case ClusterState.UNAVAILABLE:  # its nodes joined by hand before it had a provider
            return ClusterEvent.REQUESTED
        case ClusterState.FAILED if cluster.name == DEFAULT:  # the same, and its nodes were lost
            return ClusterEvent.REQUESTED
        case ClusterState.PROVISIONING:
            return (
                ClusterEvent.NODES_SUFFICIENT
                if _count_joined(view, cluster.name) >= minimum_nodes(intent)
                else None
            )
        case ClusterState.READY:
            return ClusterEvent.RESIZE_STARTED if _is_resizing(view, cluster.name) else None
        case ClusterState.RESIZING:
            return None if _is_resizing(view, cluster.name) else ClusterEvent.RESIZE_FINISHED
        case _:
            return None


def _drain_or_failure(
    view: View, cluster: ClusterRecord, intent: ClusterIntent, now: Instant
) -> ClusterEvent | None:
    if cluster.state in (ClusterState.DRAINING, ClusterState.ENDED):
        return None
    # A failed cluster accepts no jobs and has none left to drain: only its deletion changes it.
    if intent.end if cluster.state is ClusterState.FAILED else intent.drain:
        return ClusterEvent.DRAIN_REQUESTED
    at_ms = fails_at_ms(view, cluster, intent)
    fails = (at_ms is not None and at_ms <= now.ms) or _has_provider_failed(view, cluster)
    return ClusterEvent.FAILED if fails else None


def fails_at_ms(view: View, cluster: ClusterRecord, intent: ClusterIntent) -> int | None:
    """Cluster time at which a cluster without a node fails; None: it does not."""
    fails_after, name = intent.fails_after_seconds, cluster.name
    # `default` has no `fails_after` unless it is configured: a laptop that sleeps overnight
    # must not cancel its waiting jobs.
    if cluster.state is not ClusterState.UNAVAILABLE or fails_after is None or _has_nodes(view, name):
        return None
    # Empty on purpose: nodes that have left or were deleted are no failure.
    if not view.nodes_in(name).get(NodeState.LOST):
        return None
    # Not only since the loss: a server that was down has to give all nodes time to reconnect.
    heard_at_ms = max(node.last_seen_at_ms for node in view.nodes.values() if _is_lost(node, name))
    return max(cluster.since_ms + round(fails_after * 1000), heard_at_ms + RECONNECT_MS)


def _is_lost(node: NodeView, cluster: str) -> bool:
    return node.spec.cluster == cluster and node.status is not None and node.status.state is NodeState.LOST


def _has_provider_failed(view: View, cluster: ClusterRecord) -> bool:
    """Whether its provider failed too often, and its only nodes are those that are being removed.

    The default cluster never fails this way.
    """
    if cluster.failures < PROVIDER_FAILURES_MAX or cluster.name == DEFAULT:
        return False
    # A node whose removal the dead provider cannot carry out takes no tasks. If it counted, the cluster would
    # never fail and its jobs would wait for ever.
    leaving = {machine.node for machine in view.machines.values() if machine.state is MachineState.LEAVING}
    present = any(node.spec.id not in leaving for node in _present_nodes(view, cluster.name))
    return cluster.state is not ClusterState.FAILED and not present


def _next_draining(view: View, cluster: ClusterRecord, intent: ClusterIntent) -> ClusterEvent | None:
    if not intent.drain:
        return ClusterEvent.OPEN_REQUESTED
    return ClusterEvent.EMPTY if intent.end and _is_empty(view, cluster.name) else None


def minimum_nodes(intent: ClusterIntent) -> int:
    """Number of nodes that it keeps regardless of demand."""
    return intent.min_nodes if intent.nodes is None else intent.nodes


def _count_joined(view: View, name: str) -> int:
    return sum(
        machine.cluster == name and machine.state is MachineState.JOINED for machine in view.machines.values()
    )


def _is_resizing(view: View, name: str) -> bool:
    return any(
        machine.cluster == name and (machine.is_being_created or machine.is_being_removed)
        for machine in view.machines.values()
    )


def _is_empty(view: View, name: str) -> bool:
    """Whether it has no job, machine, present node, or cluster made like it."""
    return not (
        _has_nodes(view, name)
        or any(cluster.like == name for cluster in view.clusters.values())
        or any(machine.cluster == name for machine in view.machines.values())
        or name in view.jobs_by_cluster
    )


def _present_nodes(view: View, name: str) -> Iterator[NodeView]:
    """Its ready and suspect nodes: a suspect one may still run tasks."""
    for node in view.nodes.values():
        if node.spec.cluster == name and node.status is not None and node.status.state in NODE_PRESENT:
            yield node


def _has_nodes(view: View, name: str) -> bool:
    counts = view.nodes_in(name)
    return any(counts.get(state) for state in NODE_PRESENT)


def _transition(view: View, cluster: ClusterRecord, event: ClusterEvent, now: Instant) -> Plan:
    changed, reason = cluster.after_event(event, now.ms), event.value
    if event is ClusterEvent.NODES_ABSENT:
        reason = why_no_node(view.nodes_in(cluster.name))
    elif event is ClusterEvent.NODE_JOINED:
        changed = changed.with_reason(None)
    elif event is ClusterEvent.FAILED and cluster.state is ClusterState.UNAVAILABLE:
        seconds = (now.ms - cluster.since_ms) // 1000
        reason = f"without a node for {seconds} s: {why_no_node(view.nodes_in(cluster.name))}"
        changed = changed.with_reason(reason)
    elif event is ClusterEvent.FAILED:
        reason = _describe_failures(cluster)
    why = f"cluster {cluster.name} {changed.state_text}: {reason}"
    record = EventRecord("cluster.changed", why, cluster=cluster.name, state=changed.state.value)
    return Plan((changed,), events=() if _is_quiet(cluster, event) else (record,), why=why)


def _is_quiet(cluster: ClusterRecord, event: ClusterEvent) -> bool:
    """Whether the change has no event: nodes of `default` that join and leave have events of their own.

    Most installations have no other cluster, and their users need not know about clusters.
    """
    is_routine = event in (ClusterEvent.NODES_ABSENT, ClusterEvent.NODE_JOINED)
    return cluster.name == DEFAULT and is_routine and cluster.state is not ClusterState.FAILED


def _describe_failures(cluster: ClusterRecord) -> str:
    last = f"; the last time: {cluster.reason}" if cluster.reason else ""
    return f"no node is left, and its provider has failed {cluster.failures} times in a row{last}"


def _delete_cluster(cluster: ClusterRecord, intent: ClusterIntent | None) -> Plan:
    """Delete the records of an ended cluster; the default one cannot be ended."""
    state = step(CLUSTER, cluster.state, ClusterEvent.EMPTY)
    why = f"cluster {cluster.name} is {state}: nothing is left of it"
    record = EventRecord("cluster.changed", why, cluster=cluster.name, state=state.value)
    # The intent of a copy is derived from the original's: no record of its own has to be deleted.
    keys = (cluster.key,) if intent is None or cluster.like is not None else (cluster.key, intent.key)
    assert cluster.name != DEFAULT, "the default cluster cannot be ended"
    return Plan(deletes=keys, events=(record,), why=why)


def _describe_size(intent: ClusterIntent) -> str:
    if intent.by_hand:
        return "its nodes join by hand"
    if intent.nodes is not None:
        return f"{intent.nodes} nodes of {intent.provider}"
    return f"{intent.min_nodes} to {intent.max_nodes} nodes of {intent.provider}"


def _cluster_key(record: ClusterRecord | ClusterIntent) -> Iterable[str]:
    return (record.name,)


def _key_of_cluster(record: Machine | NodeSpec) -> Iterable[str]:
    return (record.cluster,)


WAKES: Wakes = {
    ClusterIntent: _cluster_key,
    ClusterRecord: _cluster_key,
    Machine: _key_of_cluster,
    NodeSpec: _key_of_cluster,
    NodeStatus: lambda record: (f"{_NODE_KEYS}{record.id}",),
}
RECONCILER = Reconciler(ReconcilerName.CLUSTER_LIFECYCLE, "clusters", WAKES, decide, start)
