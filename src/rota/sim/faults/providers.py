"""What can go wrong with a provider of machines."""

from typing import Any

from rota.sim.cluster.provider import ProviderMood
from rota.sim.faults.fault import Befall, SimFault, nothing
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act


def _moody(**mood: Any) -> Befall:
    def begin(cluster: SimCluster, fault: SimFault) -> Act:
        del fault
        _change(cluster, mood)
        return lambda: _change(cluster, {name: getattr(ProviderMood(), name) for name in mood})

    return begin


def _change(cluster: SimCluster, mood: dict[str, Any]) -> None:
    if cluster.provider is not None:
        cluster.provider.mood = cluster.provider.mood._replace(**mood)


def _takes_back(cluster: SimCluster, fault: SimFault) -> Act:
    """One of its machines, whatever runs there."""
    provider = cluster.provider
    if provider is not None and provider.there:
        one = provider.there[fault.who % len(provider.there)]
        if one.machine is not None:
            cluster.disturb(one.machine)
        provider.end(one)
    return nothing


def _dies(cluster: SimCluster, fault: SimFault) -> Act:
    """For good; sometimes its machines with it."""
    _change(cluster, {"dead": True})
    if cluster.provider is not None and fault.how < 0.5:
        while cluster.provider.there:
            _takes_back(cluster, fault)
    return nothing


KINDS: dict[str, Befall] = {
    "provider fails": _moody(fails=0.5),
    "provider fails though it did it": _moody(fails_late=0.5),
    "provider hangs": _moody(hangs=0.5),
    "provider says it did it": _moody(shirks=0.5),
    "provider makes two": _moody(doubles=0.6),
    "provider lists fewer": _moody(hides=0.4),
    "provider lists more": _moody(invents=0.7),
    "provider slow": _moody(slowness=8.0),
    "provider takes back": _takes_back,
    "provider dies for good": _dies,
}
