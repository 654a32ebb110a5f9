"""Elastic clusters: limit on machines, state changes, removal only when idle, rate of provider calls."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rota.model.cluster import DEFAULT, ClusterIntent, ClusterRecord, Machine
from rota.model.job import JobCluster
from rota.model.lifecycle import CLUSTER, MACHINE, ClusterState, MachineState
from rota.sim.checks.records import reachable
from rota.sim.checks.suite import Checks
from rota.sim.cluster.joining_machine import JoiningMachine
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.provider import SimProvider
from rota.sim.world.invariant import InvariantBroken
from rota.store import codec
from rota.store.protocol import Batch

WINDOW_MS = 60_000
OFTEN = 10  # calls about one object within that time: backoff starts at 5 s and doubles
_OWN = ("cluster/", "machine/")
_CLUSTER, _MACHINE = reachable(CLUSTER), reachable(MACHINE)


class MachineChecks:
    """Compares the records of one elastic cluster with what its provider is asked and really has."""

    def __init__(
        self, checks: Checks, provider: SimProvider, intent: ClusterIntent, spare: SimMachine
    ) -> None:
        self._world = provider.world
        self._checks = checks
        self._spare = spare  # equal to a machine that is yet to be created
        self._provider = provider
        self._intent = intent
        self._epochs: dict[int, int] = {0: 0}  # epoch -> when it started
        self._calls: deque[tuple[int, str, str]] = deque()  # of the last minute
        provider.on_call, provider.on_created, provider.on_removing = (
            self._check_call,
            self._check_limit,
            self._check_idle,
        )

    @property
    def _known(self) -> Mapping[str, Any]:
        return self._checks.known

    # ---- commits

    def committed(self, batch: Batch) -> None:
        """Check a commit before `known` is updated with it."""
        self._epochs.setdefault(batch.epoch, self._world.now_ms)
        written = [put for put in batch.puts if put[0].startswith(_OWN) or put[0].endswith("/cluster")]
        fresh: list[Any] = [codec.decode(key, value) for key, value in written]
        for now in fresh:
            before = self._known.get(str(now.key))
            match now:
                case ClusterRecord() if before is not None:
                    self._follows(_CLUSTER, before, now, f"cluster {now.name}")
                    if before.state is ClusterState.FAILED and now.state is not ClusterState.FAILED:
                        raise InvariantBroken(f"cluster {now.name} had failed and is {now.state}")
                    if before.state is not now.state is ClusterState.FAILED:
                        self._world.count("cluster: failed permanently")
                case Machine() if before is not None:
                    self._follows(_MACHINE, before, now, f"machine {now.name}")
                case JobCluster(failed=str()):
                    self._check_failure(now, fresh)
                case _:
                    pass
        new = [
            machine for machine in fresh if isinstance(machine, Machine) and machine.key not in self._known
        ]
        if any(machine.state is MachineState.WANTED for machine in new):
            machines = {str(machine.key): machine for machine in fresh if isinstance(machine, Machine)}
            self._check_records(machines, batch.deletes)

    def _check_failure(self, job: JobCluster, fresh: list[Any]) -> None:
        written = (
            record for record in fresh if isinstance(record, ClusterRecord) and record.name == job.cluster
        )
        cluster = next(written, self._known.get(f"cluster/{job.cluster}"))
        if cluster is None or cluster.state is not ClusterState.FAILED:
            raise InvariantBroken(f"job {job.id} was failed, and its cluster {job.cluster} has not failed")

    def _follows(self, table: dict[Any, set[Any]], before: Any, now: Any, what: str) -> None:
        if now.state is not before.state and now.state not in table.get(before.state, ()):
            raise InvariantBroken(f"{what} went from {before.state} to {now.state}, which no table allows")

    def _check_records(self, fresh: Mapping[str, Machine], deletes: Sequence[str]) -> None:
        """Machines were requested: with those that exist, join or leave, they stay within the limit."""
        before = {key: record for key, record in self._known.items() if key.startswith("machine/")}
        left = [record for key, record in (before | dict(fresh)).items() if key not in deletes]
        size = sum(1 + machine.extra for machine in left if machine.cluster == self._intent.name)
        if size > self._intent.max_nodes:
            raise InvariantBroken(f"{size} machines are requested, the limit is {self._intent.max_nodes}")

    # ---- provider calls

    def _check_call(self, verb: str, about: str) -> None:
        now_ms, calls = self._world.now_ms, self._calls
        machine = self._known.get(f"machine/{about}")
        if verb == "create" and not self._known[f"cluster/{self._intent.name}"].has_requested(about):
            raise InvariantBroken(f"machine {about} was created and is not on disk")
        if verb == "remove" and machine is not None and machine.state is not MachineState.LEAVING:
            raise InvariantBroken(f"machine {about} is {machine.state}, and its provider is asked to end it")
        calls.append((now_ms, verb, about))
        while calls[0][0] < now_ms - WINDOW_MS:
            calls.popleft()
        allowed = OFTEN * sum(
            started_ms >= now_ms - WINDOW_MS for started_ms in (*self._epochs.values(), now_ms)
        )
        same = sum(call[1:] == (verb, about) for call in calls)
        others = sum(call[1] != "list" for call in calls) if verb == "list" else 0
        if same > allowed + others:
            raise InvariantBroken(f"within a minute the provider was asked {same} times to {verb} {about}")

    # ---- machines that exist

    def _check_limit(self) -> None:
        """Check the limit, without machines that the provider created twice or denied having."""
        names = {machine.order.machine for machine in self._provider.machines} - self._provider.denied
        if len(names) > self._intent.max_nodes:
            raise InvariantBroken(f"there are {len(names)} machines, the limit is {self._intent.max_nodes}")

    def _check_idle(self, removed: JoiningMachine) -> None:
        """A machine is about to be removed: nothing may run on it, unless a fault had disturbed it."""
        machine = removed.machine
        if machine is None or machine.node in self._checks.nodes.disturbed:
            return
        for child in machine.processes.live():
            job, index, attempt = child.key
            what = f"attempt {attempt} of task {index} of job {job}"
            raise InvariantBroken(
                f"machine {removed.order.machine} is removed, and {what} runs there, on {machine.name}"
            )

    def expected_machines(self, cluster: str) -> list[SimMachine]:
        """Machines that may yet be created for a job of this cluster; none if its provider is dead."""
        if cluster != self._intent.name:
            return []
        self._spare.on = True
        left = sum(joining.machine is not None and joining.machine.on for joining in self._provider.machines)
        never = self._provider.behaviour.dead and (cluster == DEFAULT or left > 0)
        return [] if never else [self._spare] * (self._intent.max_nodes - left)

    def describe_excess(self) -> str:
        """Describe a wrong number of idle machines; empty if right, or if the provider is dead."""
        cluster = self._known.get(f"cluster/{self._intent.name}")
        failed = cluster is not None and cluster.state is ClusterState.FAILED
        least, listed = 0 if failed else self._intent.min_nodes, len(self._provider.machines)
        if self._provider.behaviour.dead or listed == least:
            return ""
        names = ", ".join(machine.order.machine for machine in self._provider.machines)
        return f"nothing runs, and of {least} machines there are {listed}: {names}"
