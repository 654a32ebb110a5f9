"""A cluster whose machines a provider makes: its limit, its steps, whose work ends, how often is asked."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from rota.model.cluster import Cluster, ClusterWish, Machine
from rota.model.lifecycle import CLUSTER, MACHINE, ClusterState, MachineState
from rota.sim.broken import Broken
from rota.sim.checks import Checks
from rota.sim.newcomer import Newcomer
from rota.sim.provider import Provider
from rota.sim.records import reachable
from rota.sim.world import World
from rota.store import codec
from rota.store.protocol import Batch

WINDOW_MS = 60_000
OFTEN = 6  # calls about one thing within that time: the pauses between them begin with 5 s and double
_CLUSTER, _MACHINE = reachable(CLUSTER), reachable(MACHINE)


class Fleets:
    def __init__(self, world: World, checks: Checks, provider: Provider, wish: ClusterWish) -> None:
        self._world = world
        self._checks = checks
        self._provider = provider
        self._wish = wish
        self._epochs: dict[int, int] = {0: 0}  # when each began
        self._calls: deque[tuple[int, str, str]] = deque()  # of the last minute
        provider.asked, provider.changed, provider.ends = self._asked, self._look_at_limit, self._look_at_work

    @property
    def _known(self) -> Mapping[str, Any]:
        return self._checks.known

    # ---- what is written

    def committed(self, batch: Batch) -> None:
        """Before it is known."""
        self._epochs.setdefault(batch.epoch, self._world.now_ms)
        kinds = ("cluster/", "machine/")
        fresh = [codec.decode(key, value) for key, value in batch.puts if key.startswith(kinds)]
        for now in fresh:
            before = self._known.get(str(now.key))
            match now:
                case Cluster() if before is not None:
                    self._follows(_CLUSTER, before, now, f"cluster {now.name}")
                    if before.state is ClusterState.FAILED and now.state is not ClusterState.FAILED:
                        raise Broken(f"cluster {now.name} had failed and is {now.state}")
                    if now.state is not before.state:
                        self._world.count(f"cluster: {before.state} to {now.state}")
                case Machine() if before is not None:
                    self._follows(_MACHINE, before, now, f"machine {now.name}")
                case _:
                    pass
        new = [one for one in fresh if isinstance(one, Machine) and one.key not in self._known]
        if any(one.state is MachineState.WANTED for one in new):
            self._look_at_records({one.key: one for one in fresh if isinstance(one, Machine)})

    def _follows(self, table: dict[Any, set[Any]], before: Any, now: Any, what: str) -> None:
        if now.state is not before.state and now.state not in table.get(before.state, ()):
            raise Broken(f"{what} went from {before.state} to {now.state}, which no table allows")

    def _look_at_records(self, fresh: Mapping[str, Machine]) -> None:
        """Some are asked for: with those that are there, on their way or about to go."""
        before = {key: one for key, one in self._known.items() if key.startswith("machine/")}
        size = sum(1 + one.extra for one in (before | dict(fresh)).values() if one.cluster == self._wish.name)
        if size > self._wish.max_nodes:
            raise Broken(
                f"cluster {self._wish.name} asks for {size} machines, its limit is {self._wish.max_nodes}"
            )

    # ---- what is asked of the provider

    def _asked(self, verb: str, about: str) -> None:
        now_ms, calls = self._world.now_ms, self._calls
        machine = self._known.get(f"machine/{about}")
        if verb == "create" and not self._known[f"cluster/{self._wish.name}"].gave(about):
            raise Broken(f"machine {about} is asked for and is not on disk")
        if verb == "remove" and machine is not None and machine.state is not MachineState.LEAVING:
            raise Broken(f"machine {about} is {machine.state}, and its provider is asked to end it")
        calls.append((now_ms, verb, about))
        while calls[0][0] < now_ms - WINDOW_MS:
            calls.popleft()
        often = OFTEN * sum(begun_ms >= now_ms - WINDOW_MS for begun_ms in (*self._epochs.values(), now_ms))
        same = sum(call[1:] == (verb, about) for call in calls)
        others = sum(call[1] != "list" for call in calls) if verb == "list" else 0
        if same > often + others:
            raise Broken(f"within a minute the provider was asked {same} times to {verb} {about}")

    # ---- what there really is

    def _look_at_limit(self) -> None:
        """Those that its provider made twice, or said it does not have, it has to answer for itself."""
        names = {one.order.machine for one in self._provider.there} - self._provider.lied_about
        if len(names) > self._wish.max_nodes:
            raise Broken(f"there are {len(names)} machines, the limit is {self._wish.max_nodes}")

    def _look_at_work(self, one: Newcomer) -> None:
        """One is about to end: nothing runs on it, unless something had befallen it."""
        machine = one.machine
        if machine is None or machine.node in self._checks.nodes.disturbed:
            return
        for child in machine.processes.live():
            job, index, attempt = child.key
            what = f"attempt {attempt} of task {index} of job {job}"
            raise Broken(f"machine {one.order.machine} is ended, and {what} runs there, on {machine.name}")
