"""What is wanted of a cluster + its machines and jobs -> its state."""

from collections.abc import Iterable, Iterator

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.cluster import DEFAULT, Cluster, ClusterWish, Machine
from rota.model.lifecycle import CLUSTER, ClusterEvent, ClusterState, MachineState, NodeState, step
from rota.model.limits import PROVIDER_FAILURES_MAX, SCALE_LOOK_MS
from rota.model.node import NodeSpec
from rota.model.plan import NOTHING, Event, Instant, Plan, look_again
from rota.model.view import NodeView, View

NAME = "cluster"
_THERE = (NodeState.READY, NodeState.SUSPECT)
_UNDER_WAY = (ClusterState.PROVISIONING, ClusterState.RESIZING, ClusterState.DRAINING)


def start(view: View) -> Iterable[str]:
    return {
        **view.cluster_wishes,
        **view.clusters,
        **{node.spec.cluster: None for node in view.nodes.values()},
    }


def decide(view: View, key: str, now: Instant) -> Plan:
    cluster, wish = view.clusters.get(key), view.cluster_wishes.get(key)
    if cluster is None:
        return _begin(key, wish, now) if wish is not None or _has_nodes(view, key) else NOTHING
    wanted = wish or ClusterWish(key)
    event = _over(view, cluster, wanted) or _next(view, cluster, wanted)
    if event is None:
        return look_again(now.ms + SCALE_LOOK_MS) if cluster.state in _UNDER_WAY else NOTHING
    if event is ClusterEvent.EMPTY:
        return _end(cluster, wish)
    return _turned(cluster, event, now)


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
        case ClusterState.PROVISIONING:
            enough = wish.by_hand or _joined(view, cluster.name) >= least(wish)
            return ClusterEvent.ENOUGH if enough else None
        case ClusterState.READY:
            return ClusterEvent.MACHINES_MOVE if _moves(view, cluster.name) else None
        case ClusterState.RESIZING:
            return None if _moves(view, cluster.name) else ClusterEvent.SETTLED
        case ClusterState.DRAINING:
            return _drained(view, cluster, wish)
        case ClusterState.FAILED | ClusterState.ENDED:
            return None


def _over(view: View, cluster: Cluster, wish: ClusterWish) -> ClusterEvent | None:
    if cluster.state in (ClusterState.DRAINING, ClusterState.ENDED):
        return None
    if wish.end if cluster.state is ClusterState.FAILED else wish.drain:
        return ClusterEvent.DRAIN_WISHED
    return ClusterEvent.BROKEN if _is_broken(view, cluster) else None


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
        or any(
            job.cluster is not None and job.cluster.cluster == name
            for job in view.jobs.values()
            if job.status is None or not job.status.ended
        )
    )


def _nodes(view: View, name: str) -> Iterator[NodeView]:
    """Those that are there: of one that is suspect it is not known that it is gone."""
    for node in view.nodes.values():
        if node.spec.cluster == name and node.status is not None and node.status.state in _THERE:
            yield node


def _has_nodes(view: View, name: str) -> bool:
    return any(True for _ in _nodes(view, name))


def _turned(cluster: Cluster, event: ClusterEvent, now: Instant) -> Plan:
    turned = cluster.turned(event, now.ms)
    reason = _all_that_failed(cluster) if event is ClusterEvent.BROKEN else event
    why = f"cluster {cluster.name} {turned.standing}: {reason}"
    told = Event("cluster.changed", why, cluster=cluster.name, state=turned.state.value)
    return Plan((turned,), events=(told,), why=why)


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


WAKES: Wakes = {ClusterWish: _own_name, Cluster: _own_name, Machine: _its_cluster, NodeSpec: _its_cluster}
RECONCILER = Reconciler(NAME, "clusters", WAKES, decide, start)
