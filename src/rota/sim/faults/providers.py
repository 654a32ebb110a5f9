"""Faults of the provider of machines."""

from typing import Any

from rota.sim.cluster.provider import ProviderBehaviour
from rota.sim.faults.fault import Inject, SimFault, nothing
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act


def _faulty(**behaviour: Any) -> Inject:
    def inject(cluster: SimCluster, fault: SimFault) -> Act:
        del fault
        _change(cluster, behaviour)
        return lambda: _change(cluster, {name: getattr(ProviderBehaviour(), name) for name in behaviour})

    return inject


def _change(cluster: SimCluster, behaviour: dict[str, Any]) -> None:
    if cluster.provider is not None:
        cluster.provider.behaviour = cluster.provider.behaviour._replace(**behaviour)


def _takes_back(cluster: SimCluster, fault: SimFault) -> Act:
    """The provider removes one of its machines, whatever runs there."""
    provider = cluster.provider
    if provider is not None and provider.machines:
        machine = provider.machines[fault.target % len(provider.machines)]
        if machine.machine is not None:
            cluster.disturb(machine.machine)
        provider.end(machine)
    return nothing


def _dies(cluster: SimCluster, fault: SimFault) -> Act:
    """The provider fails permanently, sometimes with all its machines."""
    _change(cluster, {"dead": True})
    if cluster.provider is not None and fault.degree < 0.5:
        while cluster.provider.machines:
            _takes_back(cluster, fault)
    return nothing


KINDS: dict[str, Inject] = {
    "provider fails": _faulty(fails=0.5),
    "provider fails after success": _faulty(fails_late=0.5),
    "provider hangs": _faulty(hangs=0.5),
    "provider falsely reports success": _faulty(skips=0.5),
    "provider creates two": _faulty(doubles=0.6),
    "provider lists fewer": _faulty(hides=0.4),
    "provider lists more": _faulty(invents=0.7),
    "provider slow": _faulty(slowness=8.0),
    "provider removes a machine": _takes_back,
    "provider dies": _dies,
}
