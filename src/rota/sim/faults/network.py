"""Faults of the network."""

from random import Random

from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.server import SimServer
from rota.sim.faults.fault import Inject, SimFault, cut, disturbed_machine, leader_of
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act


def _cut(
    cluster: SimCluster, machine: SimMachine, *, up: bool, down: bool, server: SimServer | None = None
) -> Act:
    cluster.disturb(machine)
    pairs = []
    for peer in [server] if server is not None else cluster.servers:
        pairs += [(machine.name, peer.name)] if up else []
        pairs += [(peer.name, machine.name)] if down else []
    return cut(cluster, pairs)


def _cut_off(cluster: SimCluster, fault: SimFault) -> Act:
    return _cut(cluster, disturbed_machine(cluster, fault), up=True, down=True)


def _cannot_speak(cluster: SimCluster, fault: SimFault) -> Act:
    return _cut(cluster, disturbed_machine(cluster, fault), up=True, down=False)


def _cannot_hear(cluster: SimCluster, fault: SimFault) -> Act:
    return _cut(cluster, disturbed_machine(cluster, fault), up=False, down=True)


def _partial_cut(cluster: SimCluster, fault: SimFault) -> Act:
    return _cut(
        cluster, disturbed_machine(cluster, fault), up=True, down=True, server=leader_of(cluster, fault)
    )


def _swizzle(cluster: SimCluster, fault: SimFault) -> Act:
    """Cut off half of the machines one after the other, and heal the cuts in another order."""
    rng = Random(f"{cluster.world.seed}/swizzle/{fault}")
    machines = rng.sample(cluster.machines, max(1, len(cluster.machines) // 2))
    heals: list[Act] = []

    def cut_one(machine: SimMachine) -> None:
        heals.append(_cut(cluster, machine, up=True, down=True))

    for n, machine in enumerate(machines):
        cluster.disturb(machine)
        delay_ms = fault.for_ms * 0.8 * n / len(machines)
        cluster.world.after(delay_ms, lambda machine=machine: cut_one(machine))  # type: ignore[misc]

    def heal() -> None:
        rng.shuffle(heals)
        for n, heal_one in enumerate(heals):
            cluster.world.after(n * 300, heal_one)

    return heal


def _slow_network(cluster: SimCluster, fault: SimFault) -> Act:
    """Delay messages by up to a second for a round trip, which loses no node."""
    network = cluster.network
    network.slowness = 1 + fault.degree * 120

    def heal() -> None:
        network.slowness = 1.0

    return heal


def _lossy_calls(cluster: SimCluster, fault: SimFault) -> Act:
    network = cluster.network
    network.loss = network.duplication = fault.degree / 2

    def heal() -> None:
        network.loss = network.duplication = 0.0

    return heal


KINDS: dict[str, Inject] = {
    "cut off": _cut_off,
    "outgoing messages cut": _cannot_speak,
    "incoming messages cut": _cannot_hear,
    "cut off from the leader": _partial_cut,
    "swizzle": _swizzle,
    "slow network": _slow_network,
    "lossy calls": _lossy_calls,
}
