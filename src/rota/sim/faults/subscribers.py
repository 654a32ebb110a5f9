"""Faults of subscribers and of the event log."""

from rota.sim.cluster.subscribers import SimSubscriber
from rota.sim.faults.fault import Inject, SimFault
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import WALL_MS, Act

RETAINED_MS = 10_000  # at most, when old events are deleted


def _target(cluster: SimCluster, fault: SimFault) -> SimSubscriber:
    return cluster.subscribers[fault.target % len(cluster.subscribers)]


def _killed(cluster: SimCluster, fault: SimFault) -> Act:
    subscriber = _target(cluster, fault)
    if subscriber.alive:
        subscriber.kill()
    return lambda: None if subscriber.alive else subscriber.start()


def _loses(cluster: SimCluster, fault: SimFault) -> Act:
    subscriber = _target(cluster, fault)
    subscriber.loss = fault.degree / 2

    def heal() -> None:
        subscriber.loss = 0.0

    return heal


def _receives_twice(cluster: SimCluster, fault: SimFault) -> Act:
    subscriber = _target(cluster, fault)
    subscriber.repeats = fault.degree

    def heal() -> None:
        subscriber.repeats = 0.0

    return heal


def _events_deleted(cluster: SimCluster, fault: SimFault) -> Act:
    """Delete old events while a subscriber is down, as retention does."""
    restart = _killed(cluster, fault)

    def forget() -> None:
        retained_ms = round(fault.degree * RETAINED_MS)
        cluster.store.forget_events(WALL_MS + cluster.world.now_ms - retained_ms)

    cluster.world.after(fault.for_ms * 0.9, forget)
    return restart


KINDS: dict[str, Inject] = {
    "subscriber killed": _killed,
    "subscriber loses events": _loses,
    "subscriber receives events twice": _receives_twice,
    "old events deleted": _events_deleted,
}
