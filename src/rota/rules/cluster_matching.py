"""A cluster and a job -> whether a node of it, existing or to be provisioned, could run a task of the job."""

from rota.model.amounts import DISK, MEMORY
from rota.model.cluster import ClusterFit, ClusterIntent, ClusterRecord
from rota.model.job import JobSpec
from rota.rules.node_labels import matched_labels

_KNOWN_AFTER_JOIN = (MEMORY, DISK)  # what a machine has of these is known when it has joined


def can_serve(cluster: ClusterRecord, wish: ClusterIntent | None, fit: ClusterFit, spec: JobSpec) -> bool:
    return fit.able > 0 or (wish is not None and wish.max_nodes > 0 and could_provision(cluster, wish, spec))


def could_provision(cluster: ClusterRecord, wish: ClusterIntent, spec: JobSpec) -> bool:
    """Whether a machine that its provider makes would do, if it is like the last one.

    Before the first has joined it is taken for able to do what a job implies: to run containers, for one.
    """
    granted = {**wish.node_labels, "cluster": cluster.name}
    labels = matched_labels(cluster.found or {}, granted, frozenset())
    # `conditions` adds what the job implies, such as a container runtime. Before the first machine has joined
    # that is unknown, and a cluster that may serve the job must get the chance to create one.
    conditions = spec.where if cluster.found is None else spec.conditions
    return has_enough(wish.capacity, spec.needs) and all(condition.holds(labels) for condition in conditions)


def has_enough(capacity: dict[str, int], needs: dict[str, int]) -> bool:
    asked = {resource: amount for resource, amount in needs.items() if resource in capacity or amount}
    return all(
        capacity.get(resource, 0) >= amount or (resource in _KNOWN_AFTER_JOIN and resource not in capacity)
        for resource, amount in asked.items()
    )
