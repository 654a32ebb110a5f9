"""The machine as its processes see it: identity, clock, disk, and hooks of the checks."""

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

BehaviourOf = Callable[[AttemptKey, KeeperJobSpec], TaskBehaviour]


class ServerAccess(NamedTuple):
    """A server and its handshake entry point."""

    server: SimProcess
    handshake: Callable[[SimStream, HelloMessage], None]


class SimHost:
    """State of one machine that survives its processes."""

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
        self.servers = 1  # number of servers that it can dial
        self.heartbeat_ms = HEARTBEAT_MS
        self.on = False
        self.clock = SimClock(world)
        self.disk = SimDisk()
        self.epoch_seen = 0
        self.processes = SimProcesses()
        self.short = False  # out of process ids: nothing can be spawned
        self.refuses: frozenset[str] = frozenset()  # working directories that do not exist here
        self.behaviour_of: BehaviourOf = lambda *_: TaskBehaviour(1000)
        self.process_started: Callable[[str, SimChild], None] = lambda *_: None
        self.process_ended: Callable[[str, SimChild], None] = lambda *_: None
        # Called with attempts that the node stops because it leaves.
        self.leaves: Callable[[Sequence[AttemptKey]], None] = lambda _: None
        # Called with results that a server has acknowledged.
        self.forgets: Callable[[Sequence[AttemptKey]], None] = lambda _: None

    @property
    def boot_id(self) -> str:
        return f"boot-{self.name}-{self.boot}"
