"""A cluster whose machines a provider makes: its limit, its steps, whose work ends, how often is asked."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rota.model.cluster import DEFAULT, ClusterIntent, ClusterRecord
from rota.model.cluster import Machine as Wanted
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
OFTEN = 10  # calls about one thing within that time: pauses begin with 5 s and double, lists may differ
_OWN = ("cluster/", "machine/")
_CLUSTER, _MACHINE = reachable(CLUSTER), reachable(MACHINE)


class MachineChecks:
    def __init__(self, checks: Checks, provider: SimProvider, wish: ClusterIntent, spare: SimMachine) -> None:
        self._world = provider.world
        self._checks = checks
        self._spare = spare  # as those would be that are made
        self._provider = provider
        self._wish = wish
        self._epochs: dict[int, int] = {0: 0}  # when each began
        self._calls: deque[tuple[int, str, str]] = deque()  # of the last minute
        provider.asked, provider.changed, provider.ends = self._asked, self._check_limit, self._check_work

    @property
    def _known(self) -> Mapping[str, Any]:
        return self._checks.known

    # ---- what is written

    def committed(self, batch: Batch) -> None:
        """Before it is known."""
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
                        self._world.count("cluster: failed for good")
                case Wanted() if before is not None:
                    self._follows(_MACHINE, before, now, f"machine {now.name}")
                case JobCluster(failed=str()):
                    self._check_failure(now, fresh)
                case _:
                    pass
        new = [one for one in fresh if isinstance(one, Wanted) and one.key not in self._known]
        if any(one.state is MachineState.WANTED for one in new):
            machines = {str(one.key): one for one in fresh if isinstance(one, Wanted)}
            self._check_records(machines, batch.deletes)

    def _check_failure(self, job: JobCluster, fresh: list[Any]) -> None:
        written = (one for one in fresh if isinstance(one, ClusterRecord) and one.name == job.cluster)
        cluster = next(written, self._known.get(f"cluster/{job.cluster}"))
        if cluster is None or cluster.state is not ClusterState.FAILED:
            raise InvariantBroken(f"job {job.id} is given up, and its cluster {job.cluster} has not failed")

    def _follows(self, table: dict[Any, set[Any]], before: Any, now: Any, what: str) -> None:
        if now.state is not before.state and now.state not in table.get(before.state, ()):
            raise InvariantBroken(f"{what} went from {before.state} to {now.state}, which no table allows")

    def _check_records(self, fresh: Mapping[str, Wanted], deletes: Sequence[str]) -> None:
        """Some are asked for: with those that are there, on their way or about to go."""
        before = {key: one for key, one in self._known.items() if key.startswith("machine/")}
        left = [one for key, one in (before | dict(fresh)).items() if key not in deletes]
        size = sum(1 + one.extra for one in left if one.cluster == self._wish.name)
        if size > self._wish.max_nodes:
            raise InvariantBroken(f"{size} machines are asked for, the limit is {self._wish.max_nodes}")

    # ---- what is asked of the provider

    def _asked(self, verb: str, about: str) -> None:
        now_ms, calls = self._world.now_ms, self._calls
        machine = self._known.get(f"machine/{about}")
        if verb == "create" and not self._known[f"cluster/{self._wish.name}"].gave(about):
            raise InvariantBroken(f"machine {about} is asked for and is not on disk")
        if verb == "remove" and machine is not None and machine.state is not MachineState.LEAVING:
            raise InvariantBroken(f"machine {about} is {machine.state}, and its provider is asked to end it")
        calls.append((now_ms, verb, about))
        while calls[0][0] < now_ms - WINDOW_MS:
            calls.popleft()
        often = OFTEN * sum(begun_ms >= now_ms - WINDOW_MS for begun_ms in (*self._epochs.values(), now_ms))
        same = sum(call[1:] == (verb, about) for call in calls)
        others = sum(call[1] != "list" for call in calls) if verb == "list" else 0
        if same > often + others:
            raise InvariantBroken(f"within a minute the provider was asked {same} times to {verb} {about}")

    # ---- what there really is

    def _check_limit(self) -> None:
        """Those that its provider made twice, or said it does not have, it has to answer for itself."""
        names = {one.order.machine for one in self._provider.there} - self._provider.lied_about
        if len(names) > self._wish.max_nodes:
            raise InvariantBroken(f"there are {len(names)} machines, the limit is {self._wish.max_nodes}")

    def _check_work(self, one: JoiningMachine) -> None:
        """One is about to end: nothing runs on it, unless something had befallen it."""
        machine = one.machine
        if machine is None or machine.node in self._checks.nodes.disturbed:
            return
        for child in machine.processes.live():
            job, index, attempt = child.key
            what = f"attempt {attempt} of task {index} of job {job}"
            raise InvariantBroken(
                f"machine {one.order.machine} is ended, and {what} runs there, on {machine.name}"
            )

    def to_come(self, cluster: str) -> list[SimMachine]:
        """To a job there they count as if they were there; where they never come, its cluster is to fail."""
        if cluster != self._wish.name:
            return []
        self._spare.on = True
        left = sum(one.machine is not None and one.machine.on for one in self._provider.there)
        never = self._provider.mood.dead and (cluster == DEFAULT or left > 0)
        return [] if never else [self._spare] * (self._wish.max_nodes - left)

    def too_many(self) -> str:
        """What is left, in words, though nothing runs or waits; of a provider that is dead nobody knows."""
        cluster = self._known.get(f"cluster/{self._wish.name}")
        failed = cluster is not None and cluster.state is ClusterState.FAILED
        least, there = 0 if failed else self._wish.min_nodes, len(self._provider.there)
        if self._provider.mood.dead or there == least:
            return ""
        names = ", ".join(one.order.machine for one in self._provider.there)
        return f"nothing runs, and of {least} machines there are {there}: {names}"
