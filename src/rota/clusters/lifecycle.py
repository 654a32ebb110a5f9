"""What is wanted of a cluster + its nodes, machines and jobs -> its state.

A cluster whose nodes join by hand is *ready* while a node of it is there, be it suspect, and *unavailable*
without one. If some of its nodes are lost it *fails* after `ClusterIntent.fails_after_seconds`, and is ready
again as soon as a node is there. Nodes that have left do not count: an empty cluster has not failed.

The time is counted in cluster time from the moment at which the last node was lost, which is on disk. So it
goes on after a restart and under another leader, and stands still while no server leads. But nodes that
could not call a server that was away must have time to do so: the lost nodes must have been silent for
RECONNECT_MS, and the engine counts all nodes as heard at each start, change of the leader and stall.

A cluster with a provider is ready without a node, because one can be made. It fails with its provider.
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

_NODE_KEYS = "nodes/"  # a key: the cluster of this node. No name of a cluster has a slash
_IN_PROGRESS = (ClusterState.PROVISIONING, ClusterState.RESIZING, ClusterState.DRAINING)


def start(view: View) -> Iterable[str]:
    return {
        **view.cluster_intents,
        **view.clusters,
        **{node.spec.cluster: None for node in view.nodes.values()},
    }


def decide(view: View, key: str, now: Instant) -> Plan:
    if key.startswith(_NODE_KEYS):
        node = view.nodes.get(NodeId(key.removeprefix(_NODE_KEYS)))
        return NO_CHANGE if node is None else decide(view, node.spec.cluster, now)
    cluster, wish = view.clusters.get(key), view.cluster_intents.get(key)
    if cluster is None:
        return _create_cluster(key, wish, now) if wish is not None or _has_nodes(view, key) else NO_CHANGE
    wanted = wish or ClusterIntent(key)
    event = _drain_or_failure(view, cluster, wanted, now) or _next_event(view, cluster, wanted)
    if event is None:
        return _wake_later(view, cluster, wanted, now)
    if event is ClusterEvent.EMPTY:
        return _delete_cluster(cluster, wish)
    return _transition(view, cluster, event, now)


def _wake_later(view: View, cluster: ClusterRecord, intent: ClusterIntent, now: Instant) -> Plan:
    if cluster.state in _IN_PROGRESS:
        return wake_at(now.ms + SCALE_CHECK_MS)
    at_ms = fails_at_ms(view, cluster, intent)
    return NO_CHANGE if at_ms is None else wake_at(at_ms)


def _create_cluster(name: str, intent: ClusterIntent | None, now: Instant) -> Plan:
    """A cluster that nobody asked for has nodes all the same: they joined when it was only a word."""
    if intent is None:
        return Plan(
            (ClusterRecord(name, since_ms=now.ms),), why=f"cluster {name} is there: a node belongs to it"
        )
    made = ClusterRecord(name, ClusterState.REQUESTED, since_ms=now.ms)
    why = f"cluster {name} is asked for: {_describe_size(intent)}"
    return Plan((made,), events=(EventRecord("cluster.created", why, cluster=name),), why=why)


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
        case ClusterState.UNAVAILABLE:  # its nodes joined by hand before it got a provider
            return ClusterEvent.REQUESTED
        case ClusterState.FAILED if cluster.name == DEFAULT:  # so did this one's, and were lost
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
    if intent.end if cluster.state is ClusterState.FAILED else intent.drain:
        return ClusterEvent.DRAIN_REQUESTED
    at_ms = fails_at_ms(view, cluster, intent)
    fails = (at_ms is not None and at_ms <= now.ms) or _has_provider_failed(view, cluster)
    return ClusterEvent.FAILED if fails else None


def fails_at_ms(view: View, cluster: ClusterRecord, intent: ClusterIntent) -> int | None:
    """Cluster time at which a cluster without a node fails; None: not as things are."""
    fails_after, name = intent.fails_after_seconds, cluster.name
    if cluster.state is not ClusterState.UNAVAILABLE or fails_after is None or _has_nodes(view, name):
        return None
    if not view.nodes_in(name).get(NodeState.LOST):
        return None
    heard_at_ms = max(node.last_seen_at_ms for node in view.nodes.values() if _is_lost(node, name))
    return max(cluster.since_ms + round(fails_after * 1000), heard_at_ms + RECONNECT_MS)


def _is_lost(node: NodeView, cluster: str) -> bool:
    return node.spec.cluster == cluster and node.status is not None and node.status.state is NodeState.LOST


def _has_provider_failed(view: View, cluster: ClusterRecord) -> bool:
    """Its provider fails again and again, and no node is there but such as only still have to be removed.

    The default one goes on trying for ever.
    """
    if cluster.failures < PROVIDER_FAILURES_MAX or cluster.name == DEFAULT:
        return False
    leaving = {one.node for one in view.machines.values() if one.state is MachineState.LEAVING}
    there = any(node.spec.id not in leaving for node in _present_nodes(view, cluster.name))
    return cluster.state is not ClusterState.FAILED and not there


def _next_draining(view: View, cluster: ClusterRecord, intent: ClusterIntent) -> ClusterEvent | None:
    if not intent.drain:
        return ClusterEvent.OPEN_REQUESTED
    return ClusterEvent.EMPTY if intent.end and _is_empty(view, cluster.name) else None


def minimum_nodes(intent: ClusterIntent) -> int:
    """Nodes that it has whatever waits."""
    return intent.min_nodes if intent.nodes is None else intent.nodes


def _count_joined(view: View, name: str) -> int:
    return sum(one.cluster == name and one.state is MachineState.JOINED for one in view.machines.values())


def _is_resizing(view: View, name: str) -> bool:
    return any(one.cluster == name and (one.comes or one.goes) for one in view.machines.values())


def _is_empty(view: View, name: str) -> bool:
    """No job, no machine, no node that is there, and no cluster that was made like it."""
    return not (
        _has_nodes(view, name)
        or any(one.like == name for one in view.clusters.values())
        or any(one.cluster == name for one in view.machines.values())
        or name in view.jobs_by_cluster
    )


def _present_nodes(view: View, name: str) -> Iterator[NodeView]:
    """Those that are there: of one that is suspect it is not known that it is gone."""
    for node in view.nodes.values():
        if node.spec.cluster == name and node.status is not None and node.status.state in NODE_PRESENT:
            yield node


def _has_nodes(view: View, name: str) -> bool:
    counts = view.nodes_in(name)
    return any(counts.get(state) for state in NODE_PRESENT)


def _transition(view: View, cluster: ClusterRecord, event: ClusterEvent, now: Instant) -> Plan:
    turned, reason = cluster.turned(event, now.ms), event.value
    if event is ClusterEvent.NODES_ABSENT:
        reason = why_no_node(view.nodes_in(cluster.name))
    elif event is ClusterEvent.NODE_JOINED:
        turned = turned.because(None)
    elif event is ClusterEvent.FAILED and cluster.state is ClusterState.UNAVAILABLE:
        seconds = (now.ms - cluster.since_ms) // 1000
        reason = f"without a node for {seconds} s: {why_no_node(view.nodes_in(cluster.name))}"
        turned = turned.because(reason)
    elif event is ClusterEvent.FAILED:
        reason = _describe_failures(cluster)
    why = f"cluster {cluster.name} {turned.standing}: {reason}"
    told = EventRecord("cluster.changed", why, cluster=cluster.name, state=turned.state.value)
    return Plan((turned,), events=() if _is_quiet(cluster, event) else (told,), why=why)


def _is_quiet(cluster: ClusterRecord, event: ClusterEvent) -> bool:
    """Whether no event tells of a change: that the nodes of `default` come and go is told by their own.

    Most installations have no other cluster, and their users need not know that there are any.
    """
    comes_and_goes = event in (ClusterEvent.NODES_ABSENT, ClusterEvent.NODE_JOINED)
    return cluster.name == DEFAULT and comes_and_goes and cluster.state is not ClusterState.FAILED


def _describe_failures(cluster: ClusterRecord) -> str:
    last = f"; the last time: {cluster.reason}" if cluster.reason else ""
    return f"no node is left, and its provider has failed {cluster.failures} times in a row{last}"


def _delete_cluster(cluster: ClusterRecord, intent: ClusterIntent | None) -> Plan:
    """The default one is always there."""
    state = step(CLUSTER, cluster.state, ClusterEvent.EMPTY)
    why = f"cluster {cluster.name} is {state}: nothing is left of it"
    told = EventRecord("cluster.changed", why, cluster=cluster.name, state=state.value)
    keys = (cluster.key,) if intent is None or cluster.like is not None else (cluster.key, intent.key)
    assert cluster.name != DEFAULT, "nobody may end it"
    return Plan(deletes=keys, events=(told,), why=why)


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
