"""A cluster whose machines are made for it -> what is on its way, what keeps it from growing, in words."""

from rota.model.cluster import ClusterWish, Machine
from rota.model.view import View
from rota.model.why import Reason


def on_the_way(view: View, name: str) -> list[str]:
    machines = [one for one in view.machines.values() if one.cluster == name]
    wish, cluster = view.cluster_wishes.get(name, ClusterWish(name)), view.clusters.get(name)
    coming = sum(one.comes for one in machines)
    words = [f"{coming} {'is' if coming == 1 else 'are'} on the way"] if coming else []
    is_full = not wish.by_hand and sum(1 + one.extra for one in machines) >= wish.max_nodes
    first = next((one for one in machines if one.goes and is_full), None)
    if cluster is not None and cluster.reason is not None and (first is None or first.stuck is None):
        words.append(cluster.reason)
    if first is not None:
        words.append(_still_there(first, wish.max_nodes))
    return words


def _still_there(machine: Machine, most: int) -> str:
    head = f"its only machine, {machine.name}," if most == 1 else f"of at most {most} machines {machine.name}"
    reason = machine.stuck or machine.reason
    return f"{head} still has to go" + (f": {reason}" if reason else "")


def growing(view: View, name: str) -> list[Reason]:
    """For a job that finds no room on the nodes there are."""
    wish, words = view.cluster_wishes.get(name, ClusterWish(name)), on_the_way(view, name)
    if wish.by_hand:
        return []
    machines = [one for one in view.machines.values() if one.cluster == name]
    if not words and len(machines) >= wish.max_nodes:
        words = [f"it has the most nodes that it may have, {wish.max_nodes}"]
    text = f"cluster {name} grows by itself: {'; '.join(words)}"
    return [Reason("cluster", len(machines), wish.max_nodes, text)] if words else []
