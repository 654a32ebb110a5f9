"""Operators drain, cordon and taint nodes, and set quotas of namespaces."""

from rota.model.node import Eligibility
from rota.sim.faults.fault import Inject, SimFault, any_machine
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act

TAINTED = "operator taints"
LIMITED = "operator limits"
NAMESPACES = ("default", "lab")
QUOTAS = ({"cpu": 1}, {"cpu": 2.5}, {"tasks": 2}, {"tasks": 5, "cpu": 2}, {"gpu": 1.5, "tasks": 4})

_WITH_DEADLINE = 0.25  # share of drains with a deadline


def _drains(cluster: SimCluster, fault: SimFault) -> Act:
    name = any_machine(cluster, fault).node
    eligibility = Eligibility.DRAINING if fault.degree < 0.5 else Eligibility.CORDONED
    within_seconds = 10 * fault.degree if fault.degree < _WITH_DEADLINE else None
    cluster.users.set_eligibility(name, eligibility, within_seconds)
    return lambda: cluster.users.set_eligibility(name, Eligibility.OPEN)


def _taints(cluster: SimCluster, fault: SimFault) -> Act:
    """Taint a node with one of two values."""
    name = any_machine(cluster, fault).node
    cluster.users.taint(name, "kept=a" if fault.degree < 0.5 else "kept=b")
    return lambda: cluster.users.taint(name, None)


def _limits(cluster: SimCluster, fault: SimFault) -> Act:
    name = NAMESPACES[fault.target % len(NAMESPACES)]
    cluster.users.limit(name, QUOTAS[int(fault.degree * len(QUOTAS))])
    return lambda: cluster.users.limit(name, {})


KINDS: dict[str, Inject] = {
    "operator drains": _drains,
    TAINTED: _taints,
    LIMITED: _limits,
}
