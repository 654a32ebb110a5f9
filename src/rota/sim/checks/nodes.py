"""When a node may be declared lost, and whether work may be lost on it: by faults, health and its disk."""

from collections.abc import Callable

from rota.keeper.resources.reservations import AttemptKey
from rota.model.limits import LOST_MS
from rota.sim.cluster.machine import SimMachine
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

CLOCK_DRIFT = 0.9  # a server's clock may run fast
SAMPLE_MS = 4_000
IN_FLIGHT_MS = 2_000  # longest time from a decision to its commit, with a slow store


class NodeHistory:
    """Which machines exist, which ones a fault has touched, and when each was last healthy."""

    def __init__(self, world: World) -> None:
        self.machines: dict[str, SimMachine] = {}  # by machine name, clones included
        self.disturbed: dict[str, None] = {}  # nodes touched by a fault: only they may lose work
        self.is_healthy: Callable[[SimMachine], bool] = lambda _: True
        self.is_connected: Callable[[SimMachine], bool] = lambda _: True
        self.lost_ms = LOST_MS
        self._world = world
        self._sampled_at_ms = 0
        self._well_at_ms: dict[str, int] = {}
        self._well_before_ms: dict[str, int] = {}  # at the sample before that

    def sample(self) -> None:
        """Record which nodes are healthy, every SAMPLE_MS because it is expensive; called once a second."""
        if self._world.now_ms - self._sampled_at_ms >= SAMPLE_MS:
            self._sampled_at_ms = self._world.now_ms
            for machine in self.machines.values():
                if self.is_connected(machine):
                    before_ms = self._well_at_ms.get(machine.node, self._world.now_ms)
                    self._well_before_ms[machine.node] = before_ms
                    self._well_at_ms[machine.node] = self._world.now_ms

    def declare_lost(self, node: str) -> None:
        """A node is declared lost; the decision may predate the latest sample by IN_FLIGHT_MS."""
        now_ms, well_at_ms = self._world.now_ms, self._well_at_ms.get(node)
        # Race: the node may have recovered between the decision and its commit.
        if well_at_ms is not None and now_ms - well_at_ms < IN_FLIGHT_MS:
            well_at_ms = self._well_before_ms[node]
        if well_at_ms is not None and now_ms - well_at_ms < CLOCK_DRIFT * self.lost_ms:
            raise InvariantBroken(f"{node} was declared lost {now_ms - well_at_ms} ms after it was healthy")

    def lose_lease(self, node: str, key: AttemptKey) -> None:
        """An attempt lost its lease: a fault anywhere may explain that, since servers renew leases."""
        if not any(kind.startswith("fault: ") for kind in self._world.counts):
            raise InvariantBroken(
                f"attempt {key[2]} of task {key[1]} of job {key[0]} was lost on {node} without any fault"
            )

    def lose(self, node: str, key: AttemptKey, *, is_asked: bool) -> None:
        """An attempt is declared lost; `is_asked`: the node was connected and could report its result."""
        name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
        if node not in self.disturbed:
            raise InvariantBroken(f"{name} was lost on {node}, which no fault had touched")
        machines = [machine for machine in self.machines.values() if machine.node == node]
        if is_asked and len(machines) == 1 and key in machines[0].disk.results:
            raise InvariantBroken(f"{name} was lost on {node}, whose disk has its result")
