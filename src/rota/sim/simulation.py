"""A whole simulated cluster: machines, servers, store, network and users, with the invariants hooked in."""

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
from rota.sim.cluster.provisioning import provision
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
    """Nodes and servers of a cluster, and how it is configured."""

    nodes: tuple[NodeGroup, ...]
    servers: int = 1
    lost_ms: int = LOST_MS
    placement: SchedulerSettings | None = None
    elastic: Elastic | None = None  # besides these nodes, or instead of them
    forgets: bool = False  # memory store: a restart of its only server loses every job


class SimCluster:
    """Builds the processes of a cluster and connects their hooks to the checks.

    Every commit reaches the checks before the server that wrote it learns of it, so that a check compares the
    records with what really happened up to that moment.
    """

    def __init__(self, world: World, size: Size) -> None:
        self.world = world
        self.network = SimNetwork(world)
        self.store = SimStore(world, self.network)
        self.checks = AdoptionChecks(world) if size.forgets else Checks(world)
        times = LivenessTimes(size.lost_ms, TTL_MS if size.servers > 1 else 0)
        self.servers = [
            SimServer(world, f"server-{n}", self.store, times, size.placement)
            for n in range(1, size.servers + 1)
        ]
        self.election = Election(world, self.network, self.store, self.servers)
        self.users = SimUsers(world, self.network, self.servers)
        self._reporters = ResultReporters(self.network, self.servers, self.checks.reported.answered)
        self.machines: list[SimMachine] = []
        self.subscribers: list[SimSubscriber] = []
        self._events = EventChecks(world)
        self.lost_ms = size.lost_ms
        self.store.committed = self._committed
        self.store.kill = self._kill
        self.users.answered = self._acknowledged
        self.checks.nodes.is_healthy, self.checks.nodes.is_connected = self._is_healthy, self._is_connected
        self.checks.nodes.lost_ms = size.lost_ms
        self.on_machine_added: Callable[[SimMachine], None] = lambda _: None  # called with each machine added
        self.provider: SimProvider | None = None
        self.machine_checks: MachineChecks | None = None
        self._build(size)
        if isinstance(self.checks, AdoptionChecks):
            self.store.is_memory, self.store.forgot = True, self.checks.forget
            self.checks.canceled = self.users.canceled
            for server in self.servers:
                server.on_lead = server.seed

    def start(self) -> None:
        for server in self.servers:
            self.election.start(server)
        rng = self.world.rng("start")
        for machine in self.machines:
            self.world.after(rng.uniform(0, 2_000), machine.switch_on)

    def add(self, machine: SimMachine) -> None:
        """Add a machine, which may be a clone with another machine's node identity."""
        machine.behaviour_of = self.users.behaviour_of
        machine.servers = len(self.servers)
        machine.heartbeat_ms = min(HEARTBEAT_MS, self.lost_ms // 3)
        machine.process_started, machine.process_ended = self._process_started, self.checks.process_ended
        machine.forgets, machine.leaves = self.checks.forgotten, self.checks.leaves
        machine.agent.dial = self._dialler()
        self.checks.nodes.machines[machine.name] = machine
        self.machines.append(machine)
        self.on_machine_added(machine)

    def hosts(self, spec: JobSpec) -> list[SimMachine]:
        """Machines of the job's cluster, and those that its provider may yet create."""
        if self.machine_checks is None:
            return self.machines
        home = home_of(self.checks.known, spec)
        specs = {
            machine.name: self.checks.known.get(f"node/{machine.node}/spec") for machine in self.machines
        }
        ours = [
            machine
            for machine in self.machines
            if (spec_of_node := specs[machine.name]) is None or spec_of_node.cluster == home
        ]
        return [*ours, *self.machine_checks.expected_machines(home)]

    @property
    def jobs(self) -> list[JobId]:
        """Acknowledged jobs, and duplicates made because a restarted server had lost the submit key."""
        known = [key.split("/")[1] for key in self.checks.known if key.startswith("job/")]
        return list(dict.fromkeys([*self.users.acknowledged.values(), *map(JobId, known)]))

    def close(self) -> None:
        """End the coroutines that still run on the servers."""
        for server in self.servers if self.provider is not None else ():
            server.end()

    def add_subscribers(self) -> None:
        """Add a plain subscriber, and a named one that is the recovery controller of some jobs."""
        self.store.keeps_events = True
        for kind, name, subscriber_name in (
            (SimSubscriber, "a", None),
            (SimRecoveryController, CONTROLLER, OWNER),
        ):
            subscriber = kind(self.network, self.store, self.servers, self._events, name)
            subscriber.subscriber_name = subscriber_name
            subscriber.start()
            self.subscribers.append(subscriber)

    def check(self) -> None:
        """Check what depends on time; called once a second."""
        self.checks.check()
        for subscriber in self.subscribers:
            subscriber.check()

    def disturb(self, machine: SimMachine) -> None:
        """Record that a fault touches this machine: it may lose work from now on."""
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
        # Written without a server: the cluster exists before its first leader.
        self.store.records.update(puts)
        self.checks.committed(Batch(0, 0, 0, 0, puts, [], None))

    def _process_started(self, machine: str, child: SimChild) -> None:
        self.checks.process_started(machine, child)
        spec = self.checks.spec_of(child.key[0])
        if spec is not None and spec.results:
            self._reporters.process_started(self.checks.nodes.machines[machine], child)

    def _provide(self, elastic: Elastic) -> ClusterIntent:
        make_ms = round(elastic.make_seconds * 1000)
        self.provider = provider = SimProvider(self.world, self.network, self.servers, make_ms)
        intent = ClusterIntent(
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
        spare = SimMachine(self.world, self.network, "spare", elastic.capacity, intent.node_labels)
        self.machine_checks = MachineChecks(self.checks, provider, intent, spare)
        provider.on_joined = self.add
        provider.on_removed = self.machines.remove
        for server in self.servers:
            server.on_lead = partial(provision, server, provider)
        return intent

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
        # Only the mirror of the server that decided this commit already contains it.
        knows = leader is not None and leader.epoch == batch.epoch and leader.revision == revision - 1
        # Ordering: these two compare the commit with the records before it.
        disk_low.check_commit(self.store, self.checks.known, batch)
        if self.machine_checks is not None:
            self.machine_checks.committed(batch)
        self.checks.committed(batch, leader if knows else None)
        if self.subscribers:
            self._events.committed(batch, revision)

    def _kill(self, process: object) -> None:
        assert isinstance(process, SimServer)
        self.election.kill(process)

    def _acknowledged(self, key: str, job: JobId) -> None:
        self.checks.acknowledged(key, job, self.users.acknowledged.get(key))

    def _is_healthy(self, machine: SimMachine) -> bool:
        """Whether the machine is connected to a running leader that reaches the store."""
        leader = self.election.leader
        if leader is None or not leader.runs or not self.network.passes(NAME, leader.name):
            return False
        return self._is_connected(machine)

    def _is_connected(self, machine: SimMachine) -> bool:
        """Whether machine and leader are connected in both directions; the leader may be frozen."""
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
            and stream.beats_arrive
            and stream.up.connected
            and self.network.passes(leader.name, machine.name)
        )
