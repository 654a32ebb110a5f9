"""Attempts over their time limit or no longer desired end soon, on machines that are able to stop them."""

from typing import NamedTuple

from rota.keeper.resources.reservations import AttemptKey
from rota.model.job import JobSpec
from rota.sim.checks.nodes import NodeHistory
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import SimChild
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

SLACK_MS = 5_000  # on top of the grace period: to decide, to order, to kill


class _Living(NamedTuple):
    machine: SimMachine
    child: SimChild
    spec: JobSpec
    began_ms: int  # start of its first step

    @property
    def limits(self) -> list[tuple[int, float]]:
        """Start and limit in seconds: of the whole attempt, and of its step."""
        step = self.spec.steps[self.child.step - 1].timeout_seconds if self.child.step else None
        both = ((self.began_ms, self.spec.timeout_seconds), (self.child.started_ms, step))
        return [(since_ms, seconds) for since_ms, seconds in both if seconds is not None]

    @property
    def is_over_time(self) -> bool:
        now_ms = self.machine.clock.boot_ms()
        return any(now_ms - since_ms > 1000 * seconds for since_ms, seconds in self.limits)


class DeadlineChecks:
    """Tracks live processes that must end, and for how long they could have been stopped."""

    def __init__(self, world: World, nodes: NodeHistory) -> None:
        self._world = world
        self._nodes = nodes
        self._living: dict[AttemptKey, _Living] = {}
        self._began_ms: dict[AttemptKey, int] = {}
        self._of_task: dict[tuple[str, int], dict[AttemptKey, None]] = {}
        # Since when it is over its limit while the keeper runs.
        self._limited: dict[AttemptKey, int | None] = {}
        self._canceled: dict[tuple[str, int], None] = {}  # tasks
        self._evicted: dict[AttemptKey, None] = {}
        self._stopping: dict[AttemptKey, int | None] = {}  # since when it must stop while its node is healthy

    def process_started(self, machine: SimMachine, child: SimChild, spec: JobSpec) -> None:
        key, task = child.key, child.key[:2]
        began_ms = self._began_ms.setdefault(key, child.started_ms)
        living = self._living[key] = _Living(machine, child, spec, began_ms)
        self._of_task.setdefault(task, {})[key] = None
        if living.limits:
            self._limited[key] = None
        if task in self._canceled or key in self._evicted:
            self._stopping[key] = None

    def process_ended(self, child: SimChild) -> None:
        key, task = child.key, child.key[:2]
        del self._living[key]
        self._limited.pop(key, None)
        self._stopping.pop(key, None)
        del self._of_task[task][key]
        if not self._of_task[task]:
            del self._of_task[task]

    def expect_stop(self, task: tuple[str, int]) -> None:
        self._canceled[task] = None
        for key in self._of_task.get(task, ()):
            self._stopping.setdefault(key, None)

    def evict(self, key: AttemptKey) -> None:
        self._evicted[key] = None
        if key in self._living:
            self._stopping.setdefault(key, None)

    def forget_requests(self) -> None:
        """Drop all expected stops: the restarted server does not know of them."""
        self._canceled.clear()
        self._evicted.clear()
        self._stopping.clear()

    def check(self) -> None:
        """Check every process that must end; called once a second."""
        for key, since_ms in self._limited.items():
            living = self._living[key]
            is_seen = living.machine.keeper.runs and living.is_over_time
            self._limited[key] = self._since(key, since_ms, "is over its time", counts=is_seen)
        for key, since_ms in self._stopping.items():
            is_healthy = self._nodes.is_healthy(self._living[key].machine)
            self._stopping[key] = self._since(key, since_ms, "must stop", counts=is_healthy)

    def _since(self, key: AttemptKey, since_ms: int | None, why: str, *, counts: bool) -> int | None:
        now_ms = self._world.now_ms
        if not counts or since_ms is None:
            return now_ms if counts else None
        living = self._living[key]
        if now_ms - since_ms > 1000 * living.spec.grace_seconds + SLACK_MS:
            name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
            raise InvariantBroken(
                f"{name} {why} and lives on for {now_ms - since_ms} ms on {living.machine.name}"
            )
        return since_ms
