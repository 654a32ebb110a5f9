"""Forged: machines above the limit, ended under work, asked for again and again; clusters that come back."""

from collections.abc import Callable

from rota.model.cluster import ClusterIntent, ClusterRecord
from rota.model.cluster import Machine as Wanted
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
from tests.sim.stage import ONE, Stage

WISH = ClusterIntent("cloud", provider=NAME, capacity={"cpu": 1000}, max_nodes=1)
READY = ClusterRecord("cloud", ClusterState.READY, made=2)


class Forged:
    """A cluster of at most one machine, and its provider."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.provider = SimProvider(self.stage.world, self.stage.network, [], 1000)
        machine = SimMachine(self.stage.world, self.stage.network, "spare", {"cpu": 1000}, {})
        self.fleets = MachineChecks(self.stage.checks, self.provider, WISH, machine)
        self.write(READY)

    def write(self, *records: Record) -> None:
        puts = [(str(record.key), codec.encode(record)) for record in records]
        self.fleets.committed(Batch(1, 0, 0, 0, puts, [], None))
        self.stage.write(*records)

    def make(self, name: str) -> JoiningMachine:
        order = MachineOrder(name, "cloud", "", {"cpu": 1000}, {}, {})
        one = JoiningMachine(self.stage.network, [], name, order)
        self.provider.there.append(one)
        self.provider.changed()
        return one


def a_failed_cluster_comes_back() -> None:
    forged = Forged()
    forged.write(ClusterRecord("cloud", ClusterState.FAILED))
    forged.write(ClusterRecord("cloud", ClusterState.DRAINING))


def a_cluster_takes_a_step_that_there_is_not() -> None:
    Forged().write(ClusterRecord("cloud", ClusterState.REQUESTED))


def a_job_is_given_up_though_its_cluster_is_well() -> None:
    Forged().write(JobCluster(ONE, "cloud", failed="why not"))


def too_many_are_asked_for() -> None:
    forged = Forged()
    forged.write(Wanted("cloud-1", "cloud", MachineState.LEAVING))
    forged.write(Wanted("cloud-2", "cloud"))


def a_machine_is_asked_for_before_that_is_on_disk() -> None:
    Forged().provider.asked("create", "cloud-3")


def a_machine_that_is_wanted_is_ended() -> None:
    forged = Forged()
    forged.write(Wanted("cloud-1", "cloud", MachineState.JOINED))
    forged.provider.asked("remove", "cloud-1")


def a_provider_is_asked_without_a_pause() -> None:
    forged = Forged()
    for _ in range(40):
        forged.provider.asked("list", "cloud")


def there_are_more_than_there_may_be() -> None:
    forged = Forged()
    for name in ("cloud-1", "cloud-2"):
        forged.make(name)


def a_machine_ends_under_work() -> None:
    forged = Forged()
    one = forged.make("cloud-1")
    one.machine = forged.stage.checks.nodes.machines["n1"]
    forged.stage.place("n1")
    forged.stage.checks.nodes.disturbed.clear()
    one.machine.processes.children[1] = forged.stage.born("n1")
    forged.provider.end(one)


FORGED: dict[Callable[[], None], str] = {
    a_failed_cluster_comes_back: "cluster cloud had failed and is draining",
    a_cluster_takes_a_step_that_there_is_not: "cluster cloud went from ready to requested",
    a_job_is_given_up_though_its_cluster_is_well: "job 1 is given up, and its cluster cloud has not failed",
    too_many_are_asked_for: "2 machines are asked for, the limit is 1",
    a_machine_is_asked_for_before_that_is_on_disk: "machine cloud-3 is asked for and is not on disk",
    a_machine_that_is_wanted_is_ended: "machine cloud-1 is joined, and its provider is asked to end it",
    a_provider_is_asked_without_a_pause: "within a minute the provider was asked 31 times to list cloud",
    there_are_more_than_there_may_be: "there are 2 machines, the limit is 1",
    a_machine_ends_under_work: "machine cloud-1 is ended, and attempt 1 of task 0 of job 1 runs there, on n1",
}
