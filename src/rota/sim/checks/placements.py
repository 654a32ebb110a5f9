"""Placement rules, implemented a second time over the records alone, and checked at each commit."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.columns import ints
from rota.model.job import JobSpec
from rota.model.lifecycle import ATTEMPT_FIRST_END, AttemptState, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Eligibility
from rota.model.node_table import bits
from rota.sim.checks.affinity import AffinityChecks, home_of
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

Task = tuple[str, int]


class LivePlacement(NamedTuple):
    """The node and GPUs of the latest attempt of a task, while it lives."""

    spec: JobSpec
    task: Task
    number: int
    node: str
    gpus: int  # its devices, as a bit mask
    waits: bool  # queued on the node (lookahead): reserves nothing yet

    @property
    def name(self) -> str:
        return f"task {self.task[1]} of job {self.spec.id}"


class PlacementChecks:
    """Live placements; those of a commit are checked when all its records are applied."""

    def __init__(self, known: Mapping[str, Any], world: World, is_healthy: Callable[[str], bool]) -> None:
        self._known = known
        self._world = world
        self._live: dict[Task, LivePlacement] = {}
        self._held: dict[str, dict[str, int]] = {}  # by namespace
        self._devices: dict[str, dict[Task, LivePlacement]] = {}  # by node: placements with GPUs
        self._affinity = AffinityChecks(known, is_healthy)
        self._placed: dict[Task, None] = {}  # in this commit
        self._touched: dict[Task, None] = {}  # tasks that this commit wrote

    # ---- records of a commit

    def place(self, placement: LivePlacement) -> None:
        self._end(placement.task, placement.number)
        self._live[placement.task] = placement
        self._placed[placement.task] = None
        self._affinity.add(placement.spec, placement.node)
        if not placement.waits:
            self._charge(placement, 1)

    def report(self, task: Task, number: int, state: AttemptState) -> None:
        """A queued attempt was accepted, or an attempt ended."""
        self.touch(task)
        placement = self._live.get(task)
        if state >= ATTEMPT_FIRST_END:
            self._end(task, number)
        elif (
            placement is not None
            and placement.number == number
            and placement.waits
            and state >= AttemptState.ACCEPTED
        ):
            self._live[task] = placement._replace(waits=False)
            self._charge(self._live[task], 1)

    def forget(self, spec: JobSpec) -> None:
        """The job was deleted, with attempts that ended in the same commit."""
        for index in range(spec.count):
            placement = self._live.get((spec.id, index))
            if placement is not None:
                self._end(placement.task, placement.number)

    def touch(self, task: Task) -> None:
        self._touched[task] = None

    def _end(self, task: Task, number: int) -> None:
        """Remove the placement, if it is of that attempt or an earlier one."""
        placement = self._live.get(task)
        if placement is not None and placement.number <= number:
            del self._live[task]
            self._placed.pop(task, None)
            self._affinity.remove(placement.spec, placement.node)
            if not placement.waits:
                self._charge(placement, -1)

    def _charge(self, placement: LivePlacement, times: int) -> None:
        held = self._held.setdefault(placement.spec.namespace, {})
        for resource, amount in _taken(placement.spec):
            held[resource] = held.get(resource, 0) + times * amount
        if placement.spec.needs.get(GPU):
            here = self._devices.setdefault(placement.node, {})
            if times > 0:
                here[placement.task] = placement
            else:
                del here[placement.task]

    # ---- invariants

    def check(self) -> None:
        """Check all placements of this commit."""
        placed = [self._live[task] for task in self._placed]
        distinct = {(placement.spec.id, placement.node, placement.waits): placement for placement in placed}
        for placement in distinct.values():
            self._count_rules(placement.spec)
            self._check_node(placement)
            self._check_quota(placement)
        for placement in placed:
            if placement.spec.needs.get(GPU):
                self._check_gpus(placement)
        self._affinity.check([(placement.spec, placement.node) for placement in placed])
        for spec in {
            placement.spec.id: placement.spec for placement in placed if placement.spec.gang
        }.values():
            self._check_gang(spec)
        self._placed.clear()
        self._touched.clear()

    def _count_rules(self, spec: JobSpec) -> None:
        rules = {
            "in a gang": spec.gang,
            "near others": spec.near,
            "apart from others": spec.apart,
            "spread": spec.spread,
            "with GPUs": GPU in spec.needs,
            "with a condition": spec.where,
            "with a toleration": spec.tolerate,
            "under a quota": f"namespace/{spec.namespace}" in self._known,
        }
        for rule in filter(rules.get, rules):
            self._world.count(f"placed: {rule}")

    def _check_node(self, placement: LivePlacement) -> None:
        intent, node = (self._known.get(f"node/{placement.node}/{part}") for part in ("wish", "spec"))
        home = home_of(self._known, placement.spec)
        if node is not None and node.cluster != home:
            raise InvariantBroken(
                f"{placement.name}, for cluster {home}, was placed on {placement.node} of {node.cluster}"
            )
        if intent is not None and intent.eligibility is not Eligibility.OPEN:
            raise InvariantBroken(
                f"{placement.name} was placed on {placement.node}, which is {intent.eligibility}"
            )
        for taint in () if intent is None else intent.taints:
            if not {"*", taint, taint.split("=")[0]} & set(placement.spec.tolerate):
                raise InvariantBroken(
                    f"{placement.name} was placed on {placement.node} and does not tolerate {taint}"
                )
        for condition in placement.spec.where:
            if not self._affinity.fulfils(placement.node, condition):
                raise InvariantBroken(
                    f"{placement.name} was placed on {placement.node}, where '{condition}' does not hold"
                )

    def _check_quota(self, placement: LivePlacement) -> None:
        namespace = placement.spec.namespace
        limits = self._known.get(f"namespace/{namespace}")
        quota = {} if limits is None or placement.waits else limits.quota
        for resource, _ in _taken(placement.spec):
            held, most = self._held.get(namespace, {}).get(resource, 0), quota.get(resource)
            if most is not None and held > most:
                raise InvariantBroken(
                    f"with {placement.name} namespace {namespace} holds {held} of {most} {resource}"
                )

    def _check_gpus(self, placement: LivePlacement) -> None:
        status = self._known.get(f"node/{placement.node}/status")
        device_count = 0 if status is None else status.capacity.get(GPU, 0) // WHOLE_GPU
        devices, asked = bits(placement.gpus), placement.spec.needs[GPU]
        if len(devices) != max(1, asked // WHOLE_GPU) or any(device >= device_count for device in devices):
            raise InvariantBroken(
                f"{placement.name} asks for {asked} of GPUs and was given {devices} of {device_count}"
            )
        for device in devices:
            users = [other for other in self._devices[placement.node].values() if other.gpus >> device & 1]
            used = sum(min(other.spec.needs[GPU], WHOLE_GPU) for other in users)
            if used > WHOLE_GPU:
                raise InvariantBroken(
                    f"with {placement.name} {used} thousandths of GPU {device} of {placement.node} are taken"
                )

    def _check_gang(self, spec: JobSpec) -> None:
        """A part of a gang was placed: no other task of it waits, unless it ended in this commit."""
        for index in range(spec.count):
            task = (spec.id, index)
            if task not in self._live and task not in self._touched and self._waits(task):
                raise InvariantBroken(
                    f"of the gang of job {spec.id} some tasks were placed, and task {index} waits"
                )

    def _waits(self, task: Task) -> bool:
        """Whether the task is desired and has no attempt, or one that was withdrawn or refused."""
        block, at = divmod(task[1], BLOCK_TASKS)
        tasks = self._known.get(f"task/{task[0]}/{block}")
        attempt = self._known.get(f"attempt/{task[0]}/{block}")
        if tasks is not None and tasks.state[at] != TaskState.WANTED:
            return False
        if attempt is None or not ints(attempt, "number")[at]:
            return True
        wanted = 0 if tasks is None else ints(tasks, "wanted")[at]
        ended = self._known[f"status/{task[0]}/{block}"].state[at]  # else it would live
        return bool(wanted != ints(attempt, "tries")[at] or ended >= AttemptState.REFUSED)


def _taken(spec: JobSpec) -> Iterator[tuple[str, int]]:
    yield "tasks", 1
    yield from spec.needs.items()
