"""What operators do: close nodes, keep others away from them, and limit what a namespace may hold."""

from rota.model.node import Eligibility
from rota.sim.faults.fault import Befall, SimFault, any_machine
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act

TAINTED = "operator taints"
LIMITED = "operator limits"
NAMESPACES = ("default", "lab")
QUOTAS = ({"cpu": 1}, {"cpu": 2.5}, {"tasks": 2}, {"tasks": 5, "cpu": 2}, {"gpu": 1.5, "tasks": 4})

_HURRIED = 0.25  # of the wishes for a node: drains with a deadline


def _drains(cluster: SimCluster, fault: SimFault) -> Act:
    name = any_machine(cluster, fault).node
    wish = Eligibility.DRAINING if fault.how < 0.5 else Eligibility.CORDONED
    within_seconds = 10 * fault.how if fault.how < _HURRIED else None
    cluster.users.set_eligibility(name, wish, within_seconds)
    return lambda: cluster.users.set_eligibility(name, Eligibility.OPEN)


def _taints(cluster: SimCluster, fault: SimFault) -> Act:
    """One of them, with the one value or the other."""
    name = any_machine(cluster, fault).node
    cluster.users.taint(name, "kept=a" if fault.how < 0.5 else "kept=b")
    return lambda: cluster.users.taint(name, None)


def _limits(cluster: SimCluster, fault: SimFault) -> Act:
    name = NAMESPACES[fault.who % len(NAMESPACES)]
    cluster.users.limit(name, QUOTAS[int(fault.how * len(QUOTAS))])
    return lambda: cluster.users.limit(name, {})


KINDS: dict[str, Befall] = {
    "operator drains": _drains,
    TAINTED: _taints,
    LIMITED: _limits,
}
