"""A cluster whose machines are made for it -> what is on its way, what keeps it from growing, in words."""

from rota.model.cluster import ClusterWish
from rota.model.view import View
from rota.model.why import Reason


def on_the_way(view: View, name: str) -> list[str]:
    machines = [one for one in view.machines.values() if one.cluster == name]
    wish, cluster = view.cluster_wishes.get(name, ClusterWish(name)), view.clusters.get(name)
    coming = sum(one.comes for one in machines)
    words = [f"{coming} {'is' if coming == 1 else 'are'} on the way"] if coming else []
    if cluster is not None and cluster.reason is not None:
        words.append(f"the last one was given up: {cluster.reason}")
    stuck = [one for one in machines if one.goes and one.reason is not None]
    if not wish.by_hand and sum(1 + one.extra for one in machines) >= wish.max_nodes and stuck:
        words.append(
            f"of at most {wish.max_nodes} machines {stuck[0].name} still has to go: {stuck[0].reason}"
        )
    return words


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
