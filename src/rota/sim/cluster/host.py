"""What a machine is to its processes: who it is, its clock, its disk, and who else must know."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rota.keeper.protocol.wire import KeeperJobSpec
from rota.keeper.resources.reservations import AttemptKey
from rota.model.ids import NodeId
from rota.model.limits import HEARTBEAT_MS
from rota.sim.cluster.machine_os import SimChild, SimDisk, SimProcesses, TaskBehaviour
from rota.sim.cluster.messages import HelloMessage
from rota.sim.world.network import SimNetwork, SimStream
from rota.sim.world.virtual_time import SimClock, SimProcess, World

Habits = Callable[[AttemptKey, KeeperJobSpec], TaskBehaviour]


class ServerAccess(NamedTuple):
    """Where a server is met."""

    server: SimProcess
    greet: Callable[[SimStream, HelloMessage], None]


class SimHost:
    def __init__(
        self, world: World, network: SimNetwork, name: str, capacity: dict[str, int], labels: dict[str, str]
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
        self.clock = SimClock(world)
        self.disk = SimDisk()
        self.epoch_seen = 0
        self.processes = SimProcesses()
        self.short = False  # it has no process to spare
        self.refuses: frozenset[str] = frozenset()  # directories it lacks
        self.habits: Habits = lambda *_: TaskBehaviour(1000)
        self.born: Callable[[str, SimChild], None] = lambda *_: None
        self.died: Callable[[str, SimChild], None] = lambda *_: None
        self.leaves: Callable[[Sequence[AttemptKey]], None] = lambda _: (
            None
        )  # attempts that it stops by itself
        self.forgets: Callable[[Sequence[AttemptKey]], None] = lambda _: (
            None
        )  # results that are said to be stored

    @property
    def boot_id(self) -> str:
        return f"boot-{self.name}-{self.boot}"
