"""One fault, and whom it befalls."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.server import SimServer
from rota.sim.simulation import SimCluster
from rota.sim.world.virtual_time import Act, SimClock


class SimFault(NamedTuple):
    at_ms: int
    kind: str
    who: int  # which machine or server, counted round
    for_ms: int
    how: float  # between 0 and 1; what it means depends on the kind

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:.1f} s: {self.kind} ({self.who}, for {self.for_ms / 1000:.1f} s)"


Befall = Callable[[SimCluster, SimFault], Act]  # what undoes it


def any_machine(cluster: SimCluster, fault: SimFault) -> SimMachine:
    """One that may not lose work over it."""
    return cluster.machines[fault.who % len(cluster.machines)]


def disturbed_machine(cluster: SimCluster, fault: SimFault) -> SimMachine:
    machine = any_machine(cluster, fault)
    cluster.disturb(machine)
    return machine


def any_server(cluster: SimCluster, fault: SimFault) -> SimServer:
    return cluster.servers[fault.who % len(cluster.servers)]


def leader_of(cluster: SimCluster, fault: SimFault) -> SimServer:
    return cluster.election.leader or any_server(cluster, fault)


def any_clock(cluster: SimCluster, fault: SimFault) -> SimClock:
    clocks = [machine.clock for machine in cluster.machines] + [server.clock for server in cluster.servers]
    return clocks[fault.who % len(clocks)]


def nothing() -> None:
    """There is nothing to undo."""


def cut(cluster: SimCluster, pairs: Sequence[tuple[str, str]]) -> Act:
    """From the first of each pair nothing reaches the second, until it is healed."""
    for pair in pairs:
        cluster.network.cut(*pair)

    def heal() -> None:
        for pair in pairs:
            cluster.network.heal(*pair)

    return heal
