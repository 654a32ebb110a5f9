"""A cluster + a job -> whether a node of it, there already or yet to be made, could run a task of it."""

from rota.model.amounts import DISK, MEMORY
from rota.model.cluster import Cluster, ClusterWish
from rota.model.fit import Fit
from rota.model.job import JobSpec

_UNSAID = (MEMORY, DISK)  # what a machine has of these is known when it has joined


def serves(cluster: Cluster, wish: ClusterWish | None, fit: Fit, spec: JobSpec) -> bool:
    return fit.able > 0 or (wish is not None and wish.max_nodes > 0 and makes(cluster, wish, spec))


def makes(cluster: Cluster, wish: ClusterWish, spec: JobSpec) -> bool:
    """Whether a machine that its provider makes would do, if it is like the last one.

    Before the first has joined it is taken for able to do what a job implies: to run containers, for one.
    """
    labels = {**(cluster.found or {}), **wish.node_labels, "cluster": cluster.name}
    conditions = spec.where if cluster.found is None else spec.conditions
    return has_enough(wish.capacity, spec.needs) and all(one.holds(labels) for one in conditions)


def has_enough(capacity: dict[str, int], needs: dict[str, int]) -> bool:
    asked = {resource: amount for resource, amount in needs.items() if resource in capacity or amount}
    return all(
        capacity.get(resource, 0) >= amount or (resource in _UNSAID and resource not in capacity)
        for resource, amount in asked.items()
    )
