"""A stage whose provider acts with a delay, or not at all."""

from collections.abc import Mapping

from rota.model.cluster import ClusterIntent
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import ClusterState, JobState, MachineState
from rota.model.messages import DrainRequest, ReportedState
from rota.testing import stage_provider
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine
from rota.watcher import node_messages

ELASTIC = ClusterIntent("default", provider="p", capacity={"cpu": 2000}, max_nodes=4, idle_seconds=30.0)
STEPS = ("adding ", "taking ")


class Cloud:
    """A stage with a provider that acts with a delay, or not at all."""

    def __init__(
        self, intent: ClusterIntent = ELASTIC, *, delay_ms: int = 3000, labels: dict[str, str] | None = None
    ) -> None:
        self.events: list[str] = []
        self.stage = Stage(self.events.append)
        self.makes = True
        self.dead = False  # every call fails
        self._delay_ms = delay_ms
        self._labels = labels or {}  # that machines detect by themselves
        self._number = 0
        self._most = 0
        self.stage.put(intent)

    @property
    def resizes(self) -> list[str]:
        return [why for why in self.events if why.startswith(STEPS)]

    @property
    def machines(self) -> Mapping[str, MachineState]:
        return {name: machine.state for name, machine in self.stage.mirror.machines.items()}

    @property
    def nodes(self) -> int:
        return sum(state is MachineState.JOINED for state in self.machines.values())

    @property
    def most(self) -> int:
        """The largest number of machines at one time."""
        return self._most

    def state_of(self, cluster: str, job: JobId) -> tuple[ClusterState, JobState]:
        status = self.stage.mirror.jobs[job].status
        assert status is not None
        return self.stage.mirror.clusters[cluster].state, status.state

    def submit(self, tasks: int, **fields: object) -> JobId:
        self._number += 1
        spec = job_spec(self._number, count=tasks, **fields)
        self.stage.submit(spec)
        return spec.id

    def end_all(self) -> None:
        """End everything that runs, and everything that starts after that."""
        while any(machine.held for machine in self.stage.machines.values()):
            for machine in self.stage.machines.values():
                for task, held in list(machine.held.items()):
                    if held.state is ReportedState.RUNNING:
                        machine.end(task, 0, 1000)
            self.stage.run_to_quiescence()

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.stage.wait(1000)
            self._serve()

    def _serve(self) -> None:
        mirror, now_ms = self.stage.mirror, self.stage.now_ms
        self._most = max(self._most, len(mirror.machines))
        for machine in list(mirror.machines.values()):
            if machine.state is MachineState.LEAVING and self.dead:
                stage_provider.keep(self.stage, machine.name, "it is dead")
            elif machine.state is MachineState.LEAVING:
                node = self.stage.machines.get(machine.name)
                is_connected = node is not None and node.dispatch is not None
                assert not (is_connected and node and node.held), "tasks run on a machine that is removed"
                stage_provider.remove(self.stage, machine.name)
            elif self.dead:
                stage_provider.fail(self.stage, machine.name, "it is dead")
            elif machine.place is None:
                stage_provider.ask(self.stage, machine.name)
            elif machine.is_being_created and self.makes and now_ms - machine.asked_ms >= self._delay_ms:
                stage_provider.provide(self.stage, StageMachine(machine.name, {"cpu": 2000}, self._labels))

    def notice(self, machine: str, within_ms: int, *, over: bool = False) -> None:
        """The node reports a termination notice of its provider, or its withdrawal."""
        request = DrainRequest("the price is too high", within_ms, moves=True, over=over)
        node = NodeId(machine)
        self.stage.ask("watcher", lambda view, now: node_messages.on_drain(view, node, request, now))
        self.stage.run_to_quiescence()
