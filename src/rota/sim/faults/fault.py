"""A fault, and how its target is chosen."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.server import SimServer
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act, SimClock


class SimFault(NamedTuple):
    """One fault of a scenario, drawn from its seed."""

    at_ms: int
    kind: str
    target: int  # index of the machine or server, modulo their number
    for_ms: int
    degree: float  # between 0 and 1; its meaning depends on the kind

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:.1f} s: {self.kind} ({self.target}, for {self.for_ms / 1000:.1f} s)"


Inject = Callable[[SimCluster, SimFault], Act]  # injects a fault; returns what undoes it


def any_machine(cluster: SimCluster, fault: SimFault) -> SimMachine:
    """The machine that the fault targets, which must not lose work by it."""
    return cluster.machines[fault.target % len(cluster.machines)]


def disturbed_machine(cluster: SimCluster, fault: SimFault) -> SimMachine:
    """The machine that the fault targets, which may lose work by it."""
    machine = any_machine(cluster, fault)
    cluster.disturb(machine)
    return machine


def any_server(cluster: SimCluster, fault: SimFault) -> SimServer:
    return cluster.servers[fault.target % len(cluster.servers)]


def leader_of(cluster: SimCluster, fault: SimFault) -> SimServer:
    return cluster.election.leader or any_server(cluster, fault)


def any_clock(cluster: SimCluster, fault: SimFault) -> SimClock:
    clocks = [machine.clock for machine in cluster.machines] + [server.clock for server in cluster.servers]
    return clocks[fault.target % len(clocks)]


def nothing() -> None:
    """Undo a fault that leaves nothing to undo."""


def cut(cluster: SimCluster, pairs: Sequence[tuple[str, str]]) -> Act:
    """Cut the network from the first to the second of each pair; return what heals it."""
    for pair in pairs:
        cluster.network.cut(*pair)

    def heal() -> None:
        for pair in pairs:
            cluster.network.heal(*pair)

    return heal
