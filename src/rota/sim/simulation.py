"""A whole simulated cluster: machines, servers, their store and network, users, and what is promised."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rota.model.cluster import ClusterIntent
from rota.model.ids import JobId, NodeId
from rota.model.job import Counters, JobSpec
from rota.model.limits import HEARTBEAT_MS, LOST_MS
from rota.model.node import NodeSpec
from rota.model.plan import Record
from rota.scheduler.round import SchedulerSettings
from rota.sim.checks import disk_low
from rota.sim.checks.adoption import AdoptionChecks
from rota.sim.checks.affinity import home_of
from rota.sim.checks.events import EventChecks
from rota.sim.checks.machines import MachineChecks
from rota.sim.checks.suite import Checks
from rota.sim.cluster.election import TTL_MS, Election
from rota.sim.cluster.host import ServerAccess
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import SimChild
from rota.sim.cluster.provider import NAME as PROVIDER
from rota.sim.cluster.provider import SETTINGS, SimProvider
from rota.sim.cluster.provisioning import procure
from rota.sim.cluster.recovery_controller import CONTROLLER, OWNER, SimRecoveryController
from rota.sim.cluster.server import LivenessTimes, SimServer
from rota.sim.cluster.subscribers import SimSubscriber
from rota.sim.cluster.task_results import ResultReporters
from rota.sim.cluster.users import SimUsers
from rota.sim.workloads.model import Elastic, NodeGroup
from rota.sim.world.network import SimNetwork
from rota.sim.world.store import NAME, SimStore
from rota.sim.world.virtual_time import World
from rota.store import codec
from rota.store.protocol import Batch


class Size(NamedTuple):
    """How large a cluster is."""

    nodes: tuple[NodeGroup, ...]
    servers: int = 1
    lost_ms: int = LOST_MS
    placement: SchedulerSettings | None = None
    elastic: Elastic | None = None  # beside these nodes, or instead of them
    forgets: bool = False  # its store is in memory: a restart of its only server loses every job


class SimCluster:
    def __init__(self, world: World, size: Size) -> None:
        self.world = world
        self.network = SimNetwork(world)
        self.medium = SimStore(world, self.network)
        self.checks = AdoptionChecks(world) if size.forgets else Checks(world)
        times = LivenessTimes(size.lost_ms, TTL_MS if size.servers > 1 else 0)
        self.servers = [
            SimServer(world, f"server-{n}", self.medium, times, size.placement)
            for n in range(1, size.servers + 1)
        ]
        self.election = Election(world, self.network, self.medium, self.servers)
        self.users = SimUsers(world, self.network, self.servers)
        self._reporters = ResultReporters(self.network, self.servers, self.checks.reported.answered)
        self.machines: list[SimMachine] = []
        self.subscribers: list[SimSubscriber] = []
        self._events = EventChecks(world)
        self.lost_ms = size.lost_ms
        self.medium.committed = self._committed
        self.medium.kill = self._kill
        self.users.answered = self._acknowledged
        self.checks.nodes.is_well, self.checks.nodes.speaks = self._is_well, self._speaks
        self.checks.nodes.lost_ms = size.lost_ms
        self.came: Callable[[SimMachine], None] = lambda _: None  # told of each machine that is added
        self.provider: SimProvider | None = None
        self.fleets: MachineChecks | None = None
        self._build(size)
        if isinstance(self.checks, AdoptionChecks):
            self.medium.is_memory, self.medium.forgot = True, self.checks.forget
            self.checks.canceled = self.users.canceled
            for server in self.servers:
                server.led = server.seed

    def start(self) -> None:
        for server in self.servers:
            self.election.start(server)
        luck = self.world.luck("start")
        for machine in self.machines:
            self.world.after(luck.uniform(0, 2_000), machine.switch_on)

    def add(self, machine: SimMachine) -> None:
        """Also a clone, which bears another's name."""
        machine.habits = self.users.habit
        machine.servers = len(self.servers)
        machine.heartbeat_ms = min(HEARTBEAT_MS, self.lost_ms // 3)
        machine.born, machine.died = self._born, self.checks.died
        machine.forgets, machine.leaves = self.checks.forgotten, self.checks.leaves
        machine.agent.dial = self._dialler()
        self.checks.nodes.machines[machine.name] = machine
        self.machines.append(machine)
        self.came(machine)

    def hosts(self, spec: JobSpec) -> list[SimMachine]:
        """Machines of its cluster, also those that would be made for it."""
        if self.fleets is None:
            return self.machines
        home = home_of(self.checks.known, spec)
        specs = {one.name: self.checks.known.get(f"node/{one.node}/spec") for one in self.machines}
        ours = [one for one in self.machines if (known := specs[one.name]) is None or known.cluster == home]
        return [*ours, *self.fleets.to_come(home)]

    @property
    def jobs(self) -> list[JobId]:
        """All that users were told of, and what was made twice because a restarted server forgot its key."""
        known = [key.split("/")[1] for key in self.checks.known if key.startswith("job/")]
        return list(dict.fromkeys([*self.users.acknowledged.values(), *map(JobId, known)]))

    def close(self) -> None:
        """What still waits in a server ends with it."""
        for server in self.servers if self.provider is not None else ():
            server.end()

    def add_subscribers(self) -> None:
        """One that remembers where it stands, and one that relies on the servers for it, and owns jobs."""
        self.medium.keeps_events = True
        for kind, name, known_as in ((SimSubscriber, "a", None), (SimRecoveryController, CONTROLLER, OWNER)):
            one = kind(self.network, self.medium, self.servers, self._events, name)
            one.known_as = known_as
            one.start()
            self.subscribers.append(one)

    def check(self) -> None:
        """Once a second."""
        self.checks.check()
        for subscriber in self.subscribers:
            subscriber.check()

    def disturb(self, machine: SimMachine) -> None:
        """From here on its loss of work is explained."""
        self.checks.nodes.disturbed[machine.node] = None

    def _build(self, size: Size) -> None:
        records: list[Record] = []
        number = 0
        for group in size.nodes:
            for _ in range(group.count):
                number += 1
                machine = SimMachine(self.world, self.network, f"n{number}", group.capacity, group.labels)
                self.add(machine)
                records.append(NodeSpec(NodeId(machine.name), machine.name))
        records.append(Counters(0, number))
        if size.elastic is not None:
            records.append(self._provide(size.elastic))
        puts = [(str(record.key), codec.encode(record)) for record in records]
        self.medium.records.update(puts)
        self.checks.committed(Batch(0, 0, 0, 0, puts, [], None))

    def _born(self, machine: str, child: SimChild) -> None:
        self.checks.born(machine, child)
        spec = self.checks.spec_of(child.key[0])
        if spec is not None and spec.results:
            self._reporters.born(self.checks.nodes.machines[machine], child)

    def _provide(self, elastic: Elastic) -> ClusterIntent:
        make_ms = round(elastic.make_seconds * 1000)
        self.provider = provider = SimProvider(self.world, self.network, self.servers, make_ms)
        wish = ClusterIntent(
            elastic.name,
            provider=PROVIDER,
            settings=SETTINGS,
            labels=elastic.labels,
            capacity=elastic.capacity,
            min_nodes=elastic.least,
            max_nodes=elastic.most,
            idle_seconds=elastic.idle_seconds,
            join_seconds=elastic.join_seconds,
        )
        spare = SimMachine(self.world, self.network, "spare", elastic.capacity, wish.node_labels)
        self.fleets = MachineChecks(self.checks, provider, wish, spare)
        provider.came = self.add
        provider.went = self.machines.remove
        for server in self.servers:
            server.led = partial(procure, server, provider)
        return wish

    def _dialler(self) -> Callable[[], ServerAccess | None]:
        calls = 0

        def dial() -> ServerAccess:
            nonlocal calls
            calls += 1
            server = self.servers[calls % len(self.servers)]
            return ServerAccess(server, server.handshake)

        return dial

    def _committed(self, batch: Batch, revision: int) -> None:
        leader = self.election.leader
        knows = leader is not None and leader.epoch == batch.epoch and leader.revision == revision - 1
        disk_low.check_commit(self.medium, self.checks.known, batch)
        if self.fleets is not None:
            self.fleets.committed(batch)
        self.checks.committed(batch, leader if knows else None)
        if self.subscribers:
            self._events.committed(batch, revision)

    def _kill(self, process: object) -> None:
        assert isinstance(process, SimServer)
        self.election.kill(process)

    def _acknowledged(self, key: str, job: JobId) -> None:
        self.checks.acknowledged(key, job, self.users.acknowledged.get(key))

    def _is_well(self, machine: SimMachine) -> bool:
        """Connected to the leader, which hears it and can be heard, and is told what became of its writes."""
        leader = self.election.leader
        if leader is None or not leader.runs or not self.network.passes(NAME, leader.name):
            return False
        return self._speaks(machine)

    def _speaks(self, machine: SimMachine) -> bool:
        """The same, whether or not the leader is awake."""
        stream = machine.agent.stream
        leader = self.election.leader
        return (
            machine.on
            and machine.agent.runs
            and machine.keeper.runs
            and not machine.disk.full
            and leader is not None
            and stream is not None
            and stream.server is leader
            and machine.agent.welcomed
            and stream.heard
            and stream.up.there
            and self.network.passes(leader.name, machine.name)
        )
