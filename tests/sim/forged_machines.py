"""Forged: machines above the limit or removed while busy, calls without backoff, revived clusters."""

from collections.abc import Callable

from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.job import JobCluster
from rota.model.lifecycle import ClusterState, MachineState
from rota.model.plan import Record
from rota.providers.protocol import MachineOrder
from rota.sim.checks.machines import MachineChecks
from rota.sim.cluster.joining_machine import JoiningMachine
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.provider import NAME, SimProvider
from rota.store import codec
from rota.store.protocol import Batch
from tests.sim.check_stage import ONE, CheckStage

INTENT = ClusterIntent("cloud", provider=NAME, capacity={"cpu": 1000}, max_nodes=1)
READY = ClusterRecord("cloud", ClusterState.READY, made=2)


class Forged:
    """A cluster of at most one machine, and its provider."""

    def __init__(self) -> None:
        self.stage = CheckStage()
        self.provider = SimProvider(self.stage.world, self.stage.network, [], 1000)
        machine = SimMachine(self.stage.world, self.stage.network, "spare", {"cpu": 1000}, {})
        self.machine_checks = MachineChecks(self.stage.checks, self.provider, INTENT, machine)
        self.write(READY)

    def write(self, *records: Record) -> None:
        puts = [(str(record.key), codec.encode(record)) for record in records]
        self.machine_checks.committed(Batch(1, 0, 0, 0, puts, [], None))
        self.stage.write(*records)

    def make(self, name: str) -> JoiningMachine:
        order = MachineOrder(name, "cloud", "", {"cpu": 1000}, {}, {})
        machine = JoiningMachine(self.stage.network, [], name, order)
        self.provider.machines.append(machine)
        self.provider.on_created()
        return machine


def a_failed_cluster_comes_back() -> None:
    forged = Forged()
    forged.write(ClusterRecord("cloud", ClusterState.FAILED))
    forged.write(ClusterRecord("cloud", ClusterState.DRAINING))


def a_cluster_changes_state_against_its_table() -> None:
    Forged().write(ClusterRecord("cloud", ClusterState.REQUESTED))


def a_job_is_failed_while_its_cluster_is_ready() -> None:
    Forged().write(JobCluster(ONE, "cloud", failed="why not"))


def too_many_machines_are_requested() -> None:
    forged = Forged()
    forged.write(Machine("cloud-1", "cloud", MachineState.LEAVING))
    forged.write(Machine("cloud-2", "cloud"))


def a_machine_is_created_before_it_is_on_disk() -> None:
    Forged().provider.on_call("create", "cloud-3")


def a_joined_machine_is_removed() -> None:
    forged = Forged()
    forged.write(Machine("cloud-1", "cloud", MachineState.JOINED))
    forged.provider.on_call("remove", "cloud-1")


def a_provider_is_called_without_backoff() -> None:
    forged = Forged()
    for _ in range(40):
        forged.provider.on_call("list", "cloud")


def more_machines_exist_than_allowed() -> None:
    forged = Forged()
    for name in ("cloud-1", "cloud-2"):
        forged.make(name)


def a_busy_machine_is_removed() -> None:
    forged = Forged()
    removed = forged.make("cloud-1")
    removed.machine = forged.stage.checks.nodes.machines["n1"]
    forged.stage.place("n1")
    forged.stage.checks.nodes.disturbed.clear()
    removed.machine.processes.children[1] = forged.stage.process_started("n1")
    forged.provider.end(removed)


FORGED: dict[Callable[[], None], str] = {
    a_failed_cluster_comes_back: "cluster cloud had failed and is draining",
    a_cluster_changes_state_against_its_table: "cluster cloud went from ready to requested",
    a_job_is_failed_while_its_cluster_is_ready: "job 1 was failed, and its cluster cloud has not failed",
    too_many_machines_are_requested: "2 machines are requested, the limit is 1",
    a_machine_is_created_before_it_is_on_disk: "machine cloud-3 was created and is not on disk",
    a_joined_machine_is_removed: "machine cloud-1 is joined, and its provider is asked to end it",
    a_provider_is_called_without_backoff: "within a minute the provider was asked 31 times to list cloud",
    more_machines_exist_than_allowed: "there are 2 machines, the limit is 1",
    a_busy_machine_is_removed: (
        "machine cloud-1 is removed, and attempt 1 of task 0 of job 1 runs there, on n1"
    ),
}
