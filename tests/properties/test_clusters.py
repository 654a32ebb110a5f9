"""Whatever a provider does: never above a limit, no task ended by scaling in, nothing stuck."""

from collections import Counter
from random import Random

import pytest

from rota.clusters import provider_sync
from rota.clusters.provider_sync import ProviderListing
from rota.model.cluster import ClusterIntent
from rota.model.cluster import Machine as Asked
from rota.model.lifecycle import JOB_ENDS, MachineState
from rota.model.messages import ReportedState
from rota.testing import stage_provider
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine

WISH = ClusterIntent(
    "build",
    provider="p",
    capacity={"cpu": 2000},
    max_nodes=3,
    idle_seconds=5,
    join_seconds=20,
    max_clusters=2,
    wait_seconds=15,
)
STEPS = 250


class Wild:
    """A provider that behaves randomly, until it is set to behave correctly."""

    def __init__(self, seed: int) -> None:
        self.luck = Random(f"{seed}/clusters")
        self.stage = Stage()
        self.stage.put(WISH)
        self.behaves = False
        self.outside: Counter[str] = Counter()  # existing machines
        self.ended: set[str] = set()  # machines it reported as removed
        self.jobs = 0

    def step(self) -> None:
        luck = self.luck
        if not self.behaves and luck.random() < 0.1:
            self.jobs += 1
            self.stage.submit(job_spec(self.jobs, count=luck.choice((1, 3, 9)), cluster="build"))
        if not self.behaves and luck.random() < 0.02:
            self.restart()
        self.work()
        self.stage.wait(1000)
        self.provide()
        self.look()

    def work(self) -> None:
        for machine in list(self.stage.machines.values()):
            for task, held in list(machine.held.items()):
                if held.state is ReportedState.RUNNING and self.luck.random() < 0.2:
                    machine.end(task, 0, 1000)

    def provide(self) -> None:
        luck = self.luck
        for machine in list(self.stage.mirror.machines.values()):
            if self.behaves or luck.random() < 0.5:
                self.serve(machine)
        if self.behaves or luck.random() < 0.2:
            for cluster in [name for name in self.stage.mirror.clusters if name.startswith("build")]:
                self.list(cluster)

    def serve(self, machine: Asked) -> None:
        name, roll = machine.name, 0.99 if self.behaves else self.luck.random()
        if machine.state is MachineState.LEAVING:
            self.remove(name, roll)
        elif machine.state is MachineState.WANTED and roll < 0.15:
            stage_provider.ask(self.stage, name)
            stage_provider.fail(self.stage, name, "no quota left")
        elif machine.state is MachineState.WANTED and roll < 0.3:
            stage_provider.make(self.stage, name)  # it lies
        elif machine.state is MachineState.WANTED and roll < 0.4:
            stage_provider.ask(self.stage, name)  # it hangs
        elif machine.state is MachineState.WANTED:
            self.outside[name] += 2 if roll < 0.5 else 1
            stage_provider.provide(self.stage, StageMachine(name, {"cpu": 2000}, {}))

    def remove(self, name: str, roll: float) -> None:
        node = self.stage.machines.get(name)
        assert node is None or node.dispatch is None or not node.held, (
            f"tasks run on {name}, which is removed"
        )
        if roll < 0.3:
            return  # it fails, and is asked again
        self.ended.add(name)
        if roll > 0.5:  # else it lies
            self.outside[name] = max(0, self.outside[name] - (5 if self.behaves else 1))
        if not self.outside[name]:
            self.stage.machines.pop(name, None)

    def list(self, cluster: str) -> None:
        listed = {
            name: count for name, count in self.outside.items() if count and name.startswith(f"{cluster}-")
        }
        known = [machine for machine in self.stage.mirror.machines.values() if machine.cluster == cluster]
        made = (MachineState.CREATED, MachineState.JOINED)
        missing = frozenset(
            machine.name for machine in known if machine.state in made and machine.name not in listed
        )
        listing = ProviderListing(listed, dict.fromkeys(listed, ""), missing, frozenset(self.ended))
        self.stage.ask("clusters", lambda view, now: provider_sync.on_listed(view, cluster, listing, now))
        self.ended -= set(listed)
        self.stage.run_to_quiescence()

    def restart(self) -> None:
        self.stage.restart()
        self.ended.clear()  # reported to the previous provider
        for machine in self.stage.machines.values():
            self.stage.call(machine)

    def settled(self) -> bool:
        mirror = self.stage.mirror
        ended = all(job.status is not None and job.status.ended for job in mirror.jobs.values())
        return ended and not mirror.machines and not +self.outside

    def look(self) -> None:
        family = [name for name in self.stage.mirror.clusters if name.startswith("build")]
        machines = Counter(machine.cluster for machine in self.stage.mirror.machines.values())
        assert len(family) <= WISH.max_clusters
        assert all(count <= WISH.max_nodes for count in machines.values())


@pytest.mark.parametrize("seed", range(8))
def test_an_erratic_provider_never_breaks_a_limit_or_work_and_the_cluster_recovers(seed: int) -> None:
    wild = Wild(seed)
    for _ in range(STEPS):
        wild.step()
    wild.behaves = True
    for _ in range(6 * STEPS):
        wild.step()
        if wild.settled():
            break

    states = {job.spec.id: job.status.state for job in wild.stage.mirror.jobs.values() if job.status}
    assert set(states.values()) <= JOB_ENDS, states
    assert dict(wild.stage.mirror.machines) == {}
    assert +wild.outside == Counter()
