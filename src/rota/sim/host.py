"""What a machine is to its processes: who it is, its clock, its disk, and who else must know."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rota.keeper.rules import Key
from rota.keeper.wire import Spec
from rota.model.ids import NodeId
from rota.model.limits import HEARTBEAT_MS
from rota.sim.keeping import Child, Disk, Habit, Processes
from rota.sim.network import Network, Stream
from rota.sim.words import Greeting
from rota.sim.world import Clock, Process, World

Habits = Callable[[Key, Spec], Habit]


class Door(NamedTuple):
    """Where a server is met."""

    server: Process
    greet: Callable[[Stream, Greeting], None]


class Host:
    def __init__(
        self, world: World, network: Network, name: str, capacity: dict[str, int], labels: dict[str, str]
    ) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.node = NodeId(name)
        self.capacity = capacity
        self.labels = labels
        self.machine_id = f"machine-{name}"
        self.boot = 1
        self.servers = 1  # how many it can call
        self.heartbeat_ms = HEARTBEAT_MS
        self.on = False
        self.clock = Clock(world)
        self.disk = Disk()
        self.epoch_seen = 0
        self.processes = Processes()
        self.short = False  # it has no process to spare
        self.refuses: frozenset[str] = frozenset()  # directories it lacks
        self.habits: Habits = lambda *_: Habit(1000)
        self.born: Callable[[str, Child], None] = lambda *_: None
        self.died: Callable[[str, Child], None] = lambda *_: None
        self.leaves: Callable[[Sequence[Key]], None] = lambda _: None  # attempts that it stops by itself
        self.forgets: Callable[[Sequence[Key]], None] = lambda _: None  # results that are said to be stored

    @property
    def boot_id(self) -> str:
        return f"boot-{self.name}-{self.boot}"
