"""What is wanted of a cluster + its nodes, machines and jobs -> its state.

A cluster whose nodes join by hand is *ready* while a node of it is there, be it suspect, and *unavailable*
without one. If some of its nodes are lost it *fails* after `ClusterWish.fails_after_seconds`, and is ready
again as soon as a node is there. Nodes that have left do not count: an empty cluster has not failed.

The time is counted in cluster time from the moment at which the last node was lost, which is on disk. So it
goes on after a restart and under another leader, and stands still while no server leads. But nodes that
could not call a server that was away must have time to do so: the lost nodes must have been silent for
RECONNECT_MS, and the engine counts all nodes as heard at each start, change of the leader and stall.

A cluster with a provider is ready without a node, because one can be made. It fails with its provider.
"""

from collections.abc import Iterable, Iterator

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.cluster import DEFAULT, Cluster, ClusterWish, Machine, why_no_node
from rota.model.ids import NodeId
from rota.model.lifecycle import (
    CLUSTER,
    NODE_IS_THERE,
    ClusterEvent,
    ClusterState,
    MachineState,
    NodeState,
    step,
)
from rota.model.limits import PROVIDER_FAILURES_MAX, RECONNECT_MS, SCALE_LOOK_MS
from rota.model.node import NodeSpec, NodeStatus
from rota.model.plan import NOTHING, Event, Instant, Plan, look_again
from rota.model.view import NodeView, View

NAME = "cluster"
_NODES = "nodes/"  # a key: the cluster of this node. No name of a cluster has a slash
_UNDER_WAY = (ClusterState.PROVISIONING, ClusterState.RESIZING, ClusterState.DRAINING)


def start(view: View) -> Iterable[str]:
    return {
        **view.cluster_wishes,
        **view.clusters,
        **{node.spec.cluster: None for node in view.nodes.values()},
    }


def decide(view: View, key: str, now: Instant) -> Plan:
    if key.startswith(_NODES):
        node = view.nodes.get(NodeId(key.removeprefix(_NODES)))
        return NOTHING if node is None else decide(view, node.spec.cluster, now)
    cluster, wish = view.clusters.get(key), view.cluster_wishes.get(key)
    if cluster is None:
        return _begin(key, wish, now) if wish is not None or _has_nodes(view, key) else NOTHING
    wanted = wish or ClusterWish(key)
    event = _over(view, cluster, wanted, now) or _next(view, cluster, wanted)
    if event is None:
        return _look_later(view, cluster, wanted, now)
    if event is ClusterEvent.EMPTY:
        return _end(cluster, wish)
    return _turned(view, cluster, event, now)


def _look_later(view: View, cluster: Cluster, wish: ClusterWish, now: Instant) -> Plan:
    if cluster.state in _UNDER_WAY:
        return look_again(now.ms + SCALE_LOOK_MS)
    at_ms = fails_at_ms(view, cluster, wish)
    return NOTHING if at_ms is None else look_again(at_ms)


def _begin(name: str, wish: ClusterWish | None, now: Instant) -> Plan:
    """A cluster that nobody asked for has nodes all the same: they joined when it was only a word."""
    if wish is None:
        return Plan((Cluster(name, since_ms=now.ms),), why=f"cluster {name} is there: a node belongs to it")
    made = Cluster(name, ClusterState.REQUESTED, since_ms=now.ms)
    why = f"cluster {name} is asked for: {_size(wish)}"
    return Plan((made,), events=(Event("cluster.created", why, cluster=name),), why=why)


def _next(view: View, cluster: Cluster, wish: ClusterWish) -> ClusterEvent | None:
    match cluster.state:
        case ClusterState.REQUESTED:
            return ClusterEvent.ASKED_FOR
        case ClusterState.DRAINING:
            return _drained(view, cluster, wish)
        case ClusterState.ENDED:
            return None
        case _ if wish.by_hand:
            return _next_by_hand(cluster.state, has_nodes=_has_nodes(view, cluster.name))
        case _:
            return _next_of_provider(view, cluster, wish)


def _next_by_hand(state: ClusterState, *, has_nodes: bool) -> ClusterEvent | None:
    match state:
        case ClusterState.UNAVAILABLE | ClusterState.FAILED:
            return ClusterEvent.NODE_CAME if has_nodes else None
        case ClusterState.PROVISIONING if has_nodes:
            return ClusterEvent.ENOUGH
        case ClusterState.RESIZING:
            return ClusterEvent.SETTLED
        case _:
            return None if has_nodes else ClusterEvent.NO_NODE


def _next_of_provider(view: View, cluster: Cluster, wish: ClusterWish) -> ClusterEvent | None:
    match cluster.state:
        case ClusterState.UNAVAILABLE:  # its nodes joined by hand before it got a provider
            return ClusterEvent.ASKED_FOR
        case ClusterState.FAILED if cluster.name == DEFAULT:  # so did this one's, and were lost
            return ClusterEvent.ASKED_FOR
        case ClusterState.PROVISIONING:
            return ClusterEvent.ENOUGH if _joined(view, cluster.name) >= least(wish) else None
        case ClusterState.READY:
            return ClusterEvent.MACHINES_MOVE if _moves(view, cluster.name) else None
        case ClusterState.RESIZING:
            return None if _moves(view, cluster.name) else ClusterEvent.SETTLED
        case _:
            return None


def _over(view: View, cluster: Cluster, wish: ClusterWish, now: Instant) -> ClusterEvent | None:
    if cluster.state in (ClusterState.DRAINING, ClusterState.ENDED):
        return None
    if wish.end if cluster.state is ClusterState.FAILED else wish.drain:
        return ClusterEvent.DRAIN_WISHED
    at_ms = fails_at_ms(view, cluster, wish)
    fails = (at_ms is not None and at_ms <= now.ms) or _is_broken(view, cluster)
    return ClusterEvent.BROKEN if fails else None


def fails_at_ms(view: View, cluster: Cluster, wish: ClusterWish) -> int | None:
    """Cluster time at which a cluster without a node fails; None: not as things are."""
    fails_after, name = wish.fails_after_seconds, cluster.name
    if cluster.state is not ClusterState.UNAVAILABLE or fails_after is None or _has_nodes(view, name):
        return None
    if not view.nodes_in(name).get(NodeState.LOST):
        return None
    heard_at_ms = max(node.heard_at_ms for node in view.nodes.values() if _is_lost(node, name))
    return max(cluster.since_ms + round(fails_after * 1000), heard_at_ms + RECONNECT_MS)


def _is_lost(node: NodeView, cluster: str) -> bool:
    return node.spec.cluster == cluster and node.status is not None and node.status.state is NodeState.LOST


def _is_broken(view: View, cluster: Cluster) -> bool:
    """Its provider fails again and again, and no node is there but such as only still have to be removed.

    The default one goes on trying for ever.
    """
    if cluster.failures < PROVIDER_FAILURES_MAX or cluster.name == DEFAULT:
        return False
    leaving = {one.node for one in view.machines.values() if one.state is MachineState.LEAVING}
    there = any(node.spec.id not in leaving for node in _nodes(view, cluster.name))
    return cluster.state is not ClusterState.FAILED and not there


def _drained(view: View, cluster: Cluster, wish: ClusterWish) -> ClusterEvent | None:
    if not wish.drain:
        return ClusterEvent.OPEN_WISHED
    return ClusterEvent.EMPTY if wish.end and _is_empty(view, cluster.name) else None


def least(wish: ClusterWish) -> int:
    """Nodes that it has whatever waits."""
    return wish.min_nodes if wish.nodes is None else wish.nodes


def _joined(view: View, name: str) -> int:
    return sum(one.cluster == name and one.state is MachineState.JOINED for one in view.machines.values())


def _moves(view: View, name: str) -> bool:
    return any(one.cluster == name and (one.comes or one.goes) for one in view.machines.values())


def _is_empty(view: View, name: str) -> bool:
    """No job, no machine, no node that is there, and no cluster that was made like it."""
    return not (
        _has_nodes(view, name)
        or any(one.like == name for one in view.clusters.values())
        or any(one.cluster == name for one in view.machines.values())
        or name in view.jobs_by_cluster
    )


def _nodes(view: View, name: str) -> Iterator[NodeView]:
    """Those that are there: of one that is suspect it is not known that it is gone."""
    for node in view.nodes.values():
        if node.spec.cluster == name and node.status is not None and node.status.state in NODE_IS_THERE:
            yield node


def _has_nodes(view: View, name: str) -> bool:
    counts = view.nodes_in(name)
    return any(counts.get(state) for state in NODE_IS_THERE)


def _turned(view: View, cluster: Cluster, event: ClusterEvent, now: Instant) -> Plan:
    turned, reason = cluster.turned(event, now.ms), event.value
    if event is ClusterEvent.NO_NODE:
        reason = why_no_node(view.nodes_in(cluster.name))
    elif event is ClusterEvent.NODE_CAME:
        turned = turned.because(None)
    elif event is ClusterEvent.BROKEN and cluster.state is ClusterState.UNAVAILABLE:
        seconds = (now.ms - cluster.since_ms) // 1000
        reason = f"without a node for {seconds} s: {why_no_node(view.nodes_in(cluster.name))}"
        turned = turned.because(reason)
    elif event is ClusterEvent.BROKEN:
        reason = _all_that_failed(cluster)
    why = f"cluster {cluster.name} {turned.standing}: {reason}"
    told = Event("cluster.changed", why, cluster=cluster.name, state=turned.state.value)
    return Plan((turned,), events=() if _is_quiet(cluster, event) else (told,), why=why)


def _is_quiet(cluster: Cluster, event: ClusterEvent) -> bool:
    """Whether no event tells of a change: that the nodes of `default` come and go is told by their own.

    Most installations have no other cluster, and their users need not know that there are any.
    """
    comes_and_goes = event in (ClusterEvent.NO_NODE, ClusterEvent.NODE_CAME)
    return cluster.name == DEFAULT and comes_and_goes and cluster.state is not ClusterState.FAILED


def _all_that_failed(cluster: Cluster) -> str:
    last = f"; the last time: {cluster.reason}" if cluster.reason else ""
    return f"no node is left, and its provider has failed {cluster.failures} times in a row{last}"


def _end(cluster: Cluster, wish: ClusterWish | None) -> Plan:
    """The default one is always there."""
    state = step(CLUSTER, cluster.state, ClusterEvent.EMPTY)
    why = f"cluster {cluster.name} is {state}: nothing is left of it"
    told = Event("cluster.changed", why, cluster=cluster.name, state=state.value)
    keys = (cluster.key,) if wish is None or cluster.like is not None else (cluster.key, wish.key)
    assert cluster.name != DEFAULT, "nobody may end it"
    return Plan(deletes=keys, events=(told,), why=why)


def _size(wish: ClusterWish) -> str:
    if wish.by_hand:
        return "its nodes join by hand"
    if wish.nodes is not None:
        return f"{wish.nodes} nodes of {wish.provider}"
    return f"{wish.min_nodes} to {wish.max_nodes} nodes of {wish.provider}"


def _own_name(record: Cluster | ClusterWish) -> Iterable[str]:
    return (record.name,)


def _its_cluster(record: Machine | NodeSpec) -> Iterable[str]:
    return (record.cluster,)


WAKES: Wakes = {
    ClusterWish: _own_name,
    Cluster: _own_name,
    Machine: _its_cluster,
    NodeSpec: _its_cluster,
    NodeStatus: lambda record: (f"{_NODES}{record.id}",),
}
RECONCILER = Reconciler(NAME, "clusters", WAKES, decide, start)
