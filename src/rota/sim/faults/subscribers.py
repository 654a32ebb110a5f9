"""What can befall those who watch events, and the events themselves."""

from rota.sim.cluster.subscribers import SimSubscriber
from rota.sim.faults.fault import Befall, SimFault
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import WALL_MS, Act

KEPT_MS = 10_000  # at the most, when old events are forgotten


def _any(cluster: SimCluster, fault: SimFault) -> SimSubscriber:
    return cluster.subscribers[fault.who % len(cluster.subscribers)]


def _killed(cluster: SimCluster, fault: SimFault) -> Act:
    one = _any(cluster, fault)
    if one.alive:
        one.kill()
    return lambda: None if one.alive else one.start()


def _loses(cluster: SimCluster, fault: SimFault) -> Act:
    one = _any(cluster, fault)
    one.loss = fault.how / 2

    def mend() -> None:
        one.loss = 0.0

    return mend


def _hears_twice(cluster: SimCluster, fault: SimFault) -> Act:
    one = _any(cluster, fault)
    one.repeats = fault.how

    def mend() -> None:
        one.repeats = 0.0

    return mend


def _forgotten(cluster: SimCluster, fault: SimFault) -> Act:
    """As the store does with those of yesterday, while somebody is away."""
    back = _killed(cluster, fault)

    def forget() -> None:
        kept_ms = round(fault.how * KEPT_MS)
        cluster.medium.forget_events(WALL_MS + cluster.world.now_ms - kept_ms)

    cluster.world.after(fault.for_ms * 0.9, forget)
    return back


KINDS: dict[str, Befall] = {
    "subscriber killed": _killed,
    "subscriber loses events": _loses,
    "subscriber hears events twice": _hears_twice,
    "old events forgotten": _forgotten,
}
