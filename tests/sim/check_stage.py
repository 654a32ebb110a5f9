"""The checks of the simulator over a world of two machines, in which every record can be forged."""

from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus
from rota.model.lifecycle import AttemptState, JobState
from rota.model.plan import Record
from rota.model.task import TaskBlock
from rota.sim.checks.suite import Checks
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import SimChild, TaskBehaviour
from rota.sim.cluster.server import LivenessTimes, SimServer
from rota.sim.world.network import SimNetwork
from rota.sim.world.store import SimStore
from rota.sim.world.virtual_time import World
from rota.store import codec
from rota.store.protocol import Batch
from rota.testing.builders import job_spec
from rota.testing.records import placed, reported

ONE = JobId("1")
SPEC = job_spec(1, count=2)
ATTEMPTS = AttemptBlock.new(ONE, 0, 2)
STATUSES = StatusBlock.new(ONE, 0, 2)
TASKS = TaskBlock.new(ONE, 0, 2)


class CheckStage:
    """Checks over two machines of one cpu each, and a job of two tasks."""

    def __init__(self, spec: JobSpec = SPEC, checks: type[Checks] = Checks) -> None:
        self.world = World(0)
        self.network = SimNetwork(self.world)
        self.checks = checks(self.world)
        for name in ("n1", "n2"):
            self.checks.nodes.machines[name] = SimMachine(self.world, self.network, name, {"cpu": 1000}, {})
        self.write(spec, JobStatus(ONE, JobState.ACTIVE))

    def write(
        self,
        *records: Record,
        epoch: int = 1,
        deletes: tuple[str, ...] = (),
        writer: SimServer | None = None,
    ) -> None:
        puts = [(str(record.key), codec.encode(record)) for record in records]
        self.checks.committed(Batch(epoch, 0, 0, 0, puts, deletes, None), writer)

    def place(self, *nodes: str) -> AttemptBlock:
        """Place task 0 on one node after the other; each attempt but the last is lost."""
        self.checks.nodes.disturbed |= dict.fromkeys(nodes)
        block, status = ATTEMPTS, STATUSES
        for number, node in enumerate(nodes, start=1):
            block = placed(block, [0], node)
            self.write(block)
            if number < len(nodes):
                status = reported(status, [0], AttemptState.LOST, number=number)
                self.write(status)
        return block

    def process_started(
        self, node: str, index: int = 0, attempt: int = 1, gpus: tuple[str, ...] = ()
    ) -> SimChild:
        child = SimChild((ONE, index, attempt), TaskBehaviour(1000), 0, gpus)
        self.checks.process_started(node, child)
        return child

    def process_ended(self, node: str, child: SimChild, status: int) -> None:
        child.status = status
        self.checks.process_ended(node, child)

    def end(self, **jobs: dict[JobId, None]) -> None:
        self.checks.at_the_end([ONE], jobs.get("canceled", {}), jobs.get("deleted", {}))

    def server(self) -> SimServer:
        """A server whose mirror holds all written records."""
        server = SimServer(self.world, "server-1", SimStore(self.world, self.network), LivenessTimes(30_000))
        server.mirror.load(self.checks.known.values())
        return server
