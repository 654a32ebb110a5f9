"""Why a node may be given up, and work be lost on it: what befell it, when it was well, what its disk has."""

from collections.abc import Callable

from rota.keeper.resources.reservations import AttemptKey
from rota.model.limits import LOST_MS
from rota.sim.cluster.machine import SimMachine
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

CLOCKS = 0.9  # a server's clock may run fast
OFTEN_MS = 4_000
UNDER_WAY_MS = 2_000  # from a decision to its commit, at most: a store may be slow


class NodeHistory:
    def __init__(self, world: World) -> None:
        self.machines: dict[str, SimMachine] = {}  # clones, too
        self.disturbed: dict[str, None] = {}  # nodes that a fault has touched: only they may lose work
        self.is_well: Callable[[SimMachine], bool] = lambda _: True
        self.speaks: Callable[[SimMachine], bool] = lambda _: True
        self.lost_ms = LOST_MS
        self._world = world
        self._looked_at_ms = 0
        self._well_at_ms: dict[str, int] = {}
        self._well_before_ms: dict[str, int] = {}  # at the look before that

    def sample(self) -> None:
        """Once a second; now and then is enough, and all of them cost much."""
        if self._world.now_ms - self._looked_at_ms >= OFTEN_MS:
            self._looked_at_ms = self._world.now_ms
            for machine in self.machines.values():
                if self.speaks(machine):
                    before_ms = self._well_at_ms.get(machine.node, self._world.now_ms)
                    self._well_before_ms[machine.node] = before_ms
                    self._well_at_ms[machine.node] = self._world.now_ms

    def declare_lost(self, node: str) -> None:
        """It is written to be lost; who decided that could not know what was so just now."""
        now_ms, well_at_ms = self._world.now_ms, self._well_at_ms.get(node)
        if well_at_ms is not None and now_ms - well_at_ms < UNDER_WAY_MS:
            well_at_ms = self._well_before_ms[node]
        if well_at_ms is not None and now_ms - well_at_ms < CLOCKS * self.lost_ms:
            raise InvariantBroken(f"{node} is said to be lost {now_ms - well_at_ms} ms after it was well")

    def lose_lease(self, node: str, key: AttemptKey) -> None:
        """Also for what befell those who should have renewed it; but not for nothing."""
        if not any(kind.startswith("fault: ") for kind in self._world.counts):
            raise InvariantBroken(
                f"attempt {key[2]} of task {key[1]} of job {key[0]} was lost on {node} for nothing"
            )

    def lose(self, node: str, key: AttemptKey, *, is_asked: bool) -> None:
        """An attempt is written to be lost there; `is_asked`: though the node could say what it knows."""
        name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
        if node not in self.disturbed:
            raise InvariantBroken(f"{name} was lost on {node}, which nothing had befallen")
        bearers = [machine for machine in self.machines.values() if machine.node == node]
        if is_asked and len(bearers) == 1 and key in bearers[0].disk.results:
            raise InvariantBroken(f"{name} was lost on {node}, whose disk has its result")
