"""Where work may be placed: held against the records alone, by rules written here a second time."""

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
    """Where the last attempt of a task was placed, while it lives."""

    spec: JobSpec
    task: Task
    number: int
    node: str
    gpus: int  # its devices, one bit each
    waits: bool  # for room on the node, and takes none yet

    @property
    def name(self) -> str:
        return f"task {self.task[1]} of job {self.spec.id}"


class PlacementChecks:
    """What lives where; each commit's placements are looked at when all of it is known."""

    def __init__(self, known: Mapping[str, Any], world: World, is_well: Callable[[str], bool]) -> None:
        self._known = known
        self._world = world
        self._live: dict[Task, LivePlacement] = {}
        self._held: dict[str, dict[str, int]] = {}  # by namespace
        self._devices: dict[str, dict[Task, LivePlacement]] = {}  # by node: what has some of its GPUs
        self._company = AffinityChecks(known, is_well)
        self._placed: dict[Task, None] = {}  # in this commit
        self._touched: dict[Task, None] = {}  # in this commit something was said of it

    # ---- what a commit says

    def place(self, seat: LivePlacement) -> None:
        self._end(seat.task, seat.number)
        self._live[seat.task] = seat
        self._placed[seat.task] = None
        self._company.add(seat.spec, seat.node)
        if not seat.waits:
            self._charge(seat, 1)

    def report(self, task: Task, number: int, state: AttemptState) -> None:
        """What waited may have begun, or it is over."""
        self.touch(task)
        seat = self._live.get(task)
        if state >= ATTEMPT_FIRST_END:
            self._end(task, number)
        elif seat is not None and seat.number == number and seat.waits and state >= AttemptState.ACCEPTED:
            self._live[task] = seat._replace(waits=False)
            self._charge(self._live[task], 1)

    def forget(self, spec: JobSpec) -> None:
        """The job was deleted: what ended in the same commit was never said to have ended."""
        for index in range(spec.count):
            seat = self._live.get((spec.id, index))
            if seat is not None:
                self._end(seat.task, seat.number)

    def touch(self, task: Task) -> None:
        self._touched[task] = None

    def _end(self, task: Task, number: int) -> None:
        """Whatever it was up to that attempt."""
        seat = self._live.get(task)
        if seat is not None and seat.number <= number:
            del self._live[task]
            self._placed.pop(task, None)
            self._company.remove(seat.spec, seat.node)
            if not seat.waits:
                self._charge(seat, -1)

    def _charge(self, seat: LivePlacement, times: int) -> None:
        held = self._held.setdefault(seat.spec.namespace, {})
        for resource, amount in _taken(seat.spec):
            held[resource] = held.get(resource, 0) + times * amount
        if seat.spec.needs.get(GPU):
            here = self._devices.setdefault(seat.node, {})
            if times > 0:
                here[seat.task] = seat
            else:
                del here[seat.task]

    # ---- what may not be

    def check(self) -> None:
        """The whole commit is known."""
        placed = [self._live[task] for task in self._placed]
        alike = {(seat.spec.id, seat.node, seat.waits): seat for seat in placed}
        for seat in alike.values():
            self._count_demands(seat.spec)
            self._check_node(seat)
            self._check_quota(seat)
        for seat in placed:
            if seat.spec.needs.get(GPU):
                self._check_gpus(seat)
        self._company.check([(seat.spec, seat.node) for seat in placed])
        for spec in {seat.spec.id: seat.spec for seat in placed if seat.spec.gang}.values():
            self._check_gang(spec)
        self._placed.clear()
        self._touched.clear()

    def _count_demands(self, spec: JobSpec) -> None:
        asked = {
            "in a gang": spec.gang,
            "near others": spec.near,
            "apart from others": spec.apart,
            "spread": spec.spread,
            "with GPUs": GPU in spec.needs,
            "with a condition": spec.where,
            "with a toleration": spec.tolerate,
            "under a quota": f"namespace/{spec.namespace}" in self._known,
        }
        for demand in filter(asked.get, asked):
            self._world.count(f"placed: {demand}")

    def _check_node(self, seat: LivePlacement) -> None:
        wish, node = (self._known.get(f"node/{seat.node}/{part}") for part in ("wish", "spec"))
        home = home_of(self._known, seat.spec)
        if node is not None and node.cluster != home:
            raise InvariantBroken(
                f"{seat.name} was placed on {seat.node}, of cluster {node.cluster}, and is for {home}"
            )
        if wish is not None and wish.eligibility is not Eligibility.OPEN:
            raise InvariantBroken(f"{seat.name} was placed on {seat.node}, which is {wish.eligibility}")
        for taint in () if wish is None else wish.taints:
            if not {"*", taint, taint.split("=")[0]} & set(seat.spec.tolerate):
                raise InvariantBroken(f"{seat.name} was placed on {seat.node} and does not tolerate {taint}")
        for condition in seat.spec.where:
            if not self._company.fulfils(seat.node, condition):
                raise InvariantBroken(
                    f"{seat.name} was placed on {seat.node}, where '{condition}' does not hold"
                )

    def _check_quota(self, seat: LivePlacement) -> None:
        namespace = seat.spec.namespace
        limits = self._known.get(f"namespace/{namespace}")
        quota = {} if limits is None or seat.waits else limits.quota
        for resource, _ in _taken(seat.spec):
            held, most = self._held.get(namespace, {}).get(resource, 0), quota.get(resource)
            if most is not None and held > most:
                raise InvariantBroken(
                    f"with {seat.name} namespace {namespace} holds {held} of {most} {resource}"
                )

    def _check_gpus(self, seat: LivePlacement) -> None:
        status = self._known.get(f"node/{seat.node}/status")
        there = 0 if status is None else status.capacity.get(GPU, 0) // WHOLE_GPU
        devices, asked = bits(seat.gpus), seat.spec.needs[GPU]
        if len(devices) != max(1, asked // WHOLE_GPU) or any(device >= there for device in devices):
            raise InvariantBroken(f"{seat.name} asks for {asked} of GPUs and was given {devices} of {there}")
        for device in devices:
            users = [other for other in self._devices[seat.node].values() if other.gpus >> device & 1]
            used = sum(min(other.spec.needs[GPU], WHOLE_GPU) for other in users)
            if used > WHOLE_GPU:
                raise InvariantBroken(
                    f"with {seat.name} {used} thousandths of GPU {device} of {seat.node} are taken"
                )

    def _check_gang(self, spec: JobSpec) -> None:
        """Some of it was placed: none of it waits, but for what has ended since."""
        for index in range(spec.count):
            task = (spec.id, index)
            if task not in self._live and task not in self._touched and self._waits(task):
                raise InvariantBroken(
                    f"of the gang of job {spec.id} some tasks were placed, and task {index} waits"
                )

    def _waits(self, task: Task) -> bool:
        """It is wanted and has no attempt, or one that counts as if it had never been."""
        block, at = divmod(task[1], BLOCK_TASKS)
        wish = self._known.get(f"task/{task[0]}/{block}")
        attempt = self._known.get(f"attempt/{task[0]}/{block}")
        if wish is not None and wish.state[at] != TaskState.WANTED:
            return False
        if attempt is None or not ints(attempt, "number")[at]:
            return True
        wanted = 0 if wish is None else ints(wish, "wanted")[at]
        ended = self._known[f"status/{task[0]}/{block}"].state[at]  # else it would live
        return bool(wanted != ints(attempt, "tries")[at] or ended >= AttemptState.REFUSED)


def _taken(spec: JobSpec) -> Iterator[tuple[str, int]]:
    yield "tasks", 1
    yield from spec.needs.items()
