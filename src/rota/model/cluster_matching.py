"""A cluster + a job -> whether a node of it, there already or yet to be made, could run a task of it."""

from typing import NamedTuple

from rota.model.amounts import DISK, MEMORY
from rota.model.cluster import ClusterIntent, ClusterRecord
from rota.model.fit import ClusterFit
from rota.model.job import JobSpec
from rota.model.labels import counted
from rota.model.shape import AffinityTerm, Shape

NO_CLUSTER = ""  # in place of a cluster's name: jobs that have none yet
_KNOWN_AFTER_JOIN = (MEMORY, DISK)  # what a machine has of these is known when it has joined


class JobGroup(NamedTuple):
    """Jobs that the same clusters can serve, and that are bound to theirs alike."""

    shape: Shape
    cluster: str | None  # that they name; None: any
    moves: bool  # they may change over to another cluster while they wait
    near: tuple[AffinityTerm, ...] = ()
    namespace: str = ""  # of which jobs are meant by `near`


def group_of(spec: JobSpec) -> JobGroup:
    if not spec.near:
        return JobGroup(spec.shape, spec.cluster, spec.move_pending)
    return JobGroup(spec.shape, spec.cluster, spec.move_pending, spec.near, spec.namespace)


def can_serve(cluster: ClusterRecord, wish: ClusterIntent | None, fit: ClusterFit, spec: JobSpec) -> bool:
    return fit.able > 0 or (wish is not None and wish.max_nodes > 0 and could_provision(cluster, wish, spec))


def could_provision(cluster: ClusterRecord, wish: ClusterIntent, spec: JobSpec) -> bool:
    """Whether a machine that its provider makes would do, if it is like the last one.

    Before the first has joined it is taken for able to do what a job implies: to run containers, for one.
    """
    granted = {**wish.node_labels, "cluster": cluster.name}
    labels = counted(cluster.found or {}, granted, frozenset())
    conditions = spec.where if cluster.found is None else spec.conditions
    return has_enough(wish.capacity, spec.needs) and all(one.holds(labels) for one in conditions)


def has_enough(capacity: dict[str, int], needs: dict[str, int]) -> bool:
    asked = {resource: amount for resource, amount in needs.items() if resource in capacity or amount}
    return all(
        capacity.get(resource, 0) >= amount or (resource in _KNOWN_AFTER_JOIN and resource not in capacity)
        for resource, amount in asked.items()
    )
