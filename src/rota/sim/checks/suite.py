"""All invariants: checked at each commit, process start, process end and answer, and at the end of a run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rota.keeper.resources.reservations import AttemptKey
from rota.model.amounts import GPU, WHOLE_GPU
from rota.model.columns import ints
from rota.model.ids import JobId
from rota.model.job import JobKind, JobSpec, JobStatus
from rota.model.lifecycle import ATTEMPT_FIRST_END, TASK_ENDS, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.shape import RunMode
from rota.sim.checks import mirror, recovery
from rota.sim.checks.deadlines import DeadlineChecks
from rota.sim.checks.nodes import NodeHistory
from rota.sim.checks.process_log import ProcessLog, tries
from rota.sim.checks.records import RecordChecks
from rota.sim.checks.results import ResultChecks
from rota.sim.checks.spec_versions import SpecVersionChecks
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import SimChild
from rota.sim.cluster.server import SimServer
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World
from rota.store.protocol import Batch

OVERLAP_MS = 10_000  # once both nodes are healthy, for one of two attempts to end
THAW_MS = 1_000  # for a resumed keeper to kill what lost its lease
GRACE_MS = 15_000  # on top: grace period of a program that ignores SIGTERM, and its kill
COMMITS_BETWEEN = 50  # between two comparisons with the whole disk, which are expensive


class Checks:
    """The invariants, and everything that is known to be durable.

    The simulation calls it with what happens: `committed` before a server learns of its commit,
    `process_started` and `process_ended` as the machine sees them, `acknowledged` and `forgotten` as answers
    arrive. A violated invariant raises InvariantBroken.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes = NodeHistory(world)
        self._process_log = ProcessLog()
        self._versions = SpecVersionChecks()
        self._deadlines = DeadlineChecks(world, self.nodes)
        self._records = RecordChecks(world, self.nodes, self._process_log, self._deadlines)
        self.reported = ResultChecks(self._records.known, world)
        self._process_log.reported_failures = self.reported.failed
        self._commits = 0  # since the last comparison with the disk
        self._started_on: dict[AttemptKey, str] = {}
        self._steps: dict[AttemptKey, tuple[int, int]] = {}  # last step started, and number of restarts
        self._succeeded: dict[tuple[str, int], None] = {}  # tasks whose process exited with 0
        self._once: dict[tuple[str, int], AttemptKey] = {}
        self._live: dict[tuple[str, int], dict[AttemptKey, SimMachine]] = {}
        # Tasks with two live processes -> both nodes healthy since.
        self._twice: dict[tuple[str, int], int | None] = {}
        self._used: dict[tuple[str, str], int] = {}

    @property
    def known(self) -> dict[str, Any]:
        """All durable records, by key."""
        return self._records.known

    @property
    def attempts(self) -> int:
        return self._records.attempts

    @property
    def held(self) -> list[JobId]:
        """Jobs with quarantined tasks."""
        return self._records.quarantine.jobs()

    # ---- commits

    def committed(self, batch: Batch, writer: SimServer | None = None) -> None:
        """A commit became durable; `writer` has it in its mirror."""
        self.reported.committed(batch)
        # Ordering: results are compared with the attempts before this commit, so they come first.
        placed = self._records.committed(batch)
        if writer is not None:
            mirror.within_capacity(writer, placed)
            self._commits += 1
            # In proportion to the records: a comparison costs as much as there are, so its
            # share of a run stays constant.
            if self._commits >= max(COMMITS_BETWEEN, len(self.known) // 2):
                self.check_mirror(writer)

    def check_mirror(self, server: SimServer) -> None:
        self._commits = 0
        mirror.equal_disk(server, self.known)

    # ---- processes

    def process_started(self, machine_name: str, child: SimChild) -> None:
        machine = self.nodes.machines[machine_name]
        key, task = child.key, child.key[:2]
        name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
        started_on = self._started_on.get(key)
        step, restart = self._steps.get(key, (0, 0))
        # The next step of an attempt, or a restart by its keeper, is the same attempt and no second start.
        follows = started_on == machine.name and (step == child.step - 1 > 0 or restart < child.restart)
        if started_on is not None and not follows:
            raise InvariantBroken(f"{name} was started twice: on {started_on} and on {machine.name}")
        self._started_on[key], self._steps[key] = machine.name, (child.step, child.restart)
        # Invariant: nothing runs that is not durable. An offer is sent after its commit, never before.
        if not self._is_known(key):
            raise InvariantBroken(f"{name} was started on {machine.name} and is not on disk")
        spec = self.spec_of(key[0])
        assert spec is not None
        if spec.run is RunMode.AT_MOST_ONCE and self._once.get(task, key) != key:
            raise InvariantBroken(f"task {key[1]} of job {key[0]} may run once and was started again: {name}")
        # Invariant: an at-most-once task has one attempt that ever started.
        self._once[task] = key
        self._versions.process_started(machine.name, child, spec.version)
        if spec.kind is JobKind.SYSTEM:
            self._check_twins(machine, key)
        self._use(machine, spec, child)
        self._deadlines.process_started(machine, child, spec)
        live = self._live.setdefault(task, {})
        if key in live:
            raise InvariantBroken(f"{name} was started again on {machine.name} while it ran")
        live[key] = machine
        if len(live) > 1:
            self.world.count("task: two attempts alive at once")
            # Two live attempts are legal while a node is cut off. How long is checked from
            # when both nodes are healthy.
            self._twice[task] = None
            self._check_leases(task, live, spec)

    def _check_twins(self, machine: SimMachine, key: AttemptKey) -> None:
        """A system job has one task per node."""
        for task, live in self._live.items():
            if task[0] == key[0] and task[1] != key[1] and machine in live.values():
                raise InvariantBroken(
                    f"tasks {task[1]} and {key[1]} of job {key[0]} both run on {machine.name}"
                )

    def _use(self, machine: SimMachine, spec: JobSpec, child: SimChild) -> None:
        capacity = machine.capacity | {_device(gpu): WHOLE_GPU for gpu in child.gpus}
        for resource, amount in _uses(spec, child).items():
            used = self._used[machine.name, resource] = self._used.get((machine.name, resource), 0) + amount
            if used > capacity.get(resource, 0):
                raise InvariantBroken(f"{machine.name} runs {used} of {resource}, more than it has")

    def process_ended(self, machine_name: str, child: SimChild) -> None:
        machine = self.nodes.machines[machine_name]
        task = child.key[:2]
        live = self._live[task]
        del live[child.key]
        if len(live) < 2:
            self._twice.pop(task, None)
            if not live:
                del self._live[task]
        spec = self.spec_of(child.key[0])
        for resource, amount in (_uses(spec, child) if spec is not None else {}).items():
            self._used[machine.name, resource] -= amount
        self._process_log.process_ended(machine, child)
        self._deadlines.process_ended(child)
        if child.status == 0 and child.is_last:
            self._succeeded[task] = None

    def _is_known(self, key: AttemptKey) -> bool:
        """Whether the attempt was ever placed, also by a server that has lost its memory since."""
        block, at = divmod(key[1], BLOCK_TASKS)
        placed = [known.get(f"attempt/{key[0]}/{block}") for known in (self.known, self._records.forgotten)]
        return any(block is not None and ints(block, "number")[at] >= key[2] for block in placed)

    def spec_of(self, job: str) -> JobSpec | None:
        name = f"job/{job}/spec"
        spec: JobSpec | None = self.known.get(name) or self._records.forgotten.get(name)
        return spec

    def live_tasks(self) -> set[tuple[str, int]]:
        return set(self._live)

    def check(self) -> None:
        """Check what depends on time; called once a second."""
        self.nodes.sample()
        self._deadlines.check()
        self._check_overlaps()

    def _check_leases(
        self, task: tuple[str, int], live: dict[AttemptKey, SimMachine], spec: JobSpec | None
    ) -> None:
        """Under leases one attempt lives at a time; only a keeper that was frozen has THAW_MS to notice."""
        if spec is None or spec.run is not RunMode.ONE_AT_A_TIME:
            return
        *older, newest = sorted(live, key=lambda key: key[2])
        awake = [key for key in older if not live[key].keeper.has_slept_within(THAW_MS)]
        if awake:
            names = ", ".join(f"{key[2]} on {live[key].name}" for key in (*awake, newest))
            raise InvariantBroken(
                f"task {task[1]} of job {task[0]} runs one at a time and runs as attempts {names}"
            )

    def _check_overlaps(self) -> None:
        """Two attempts of one task may live only while one of their nodes is unhealthy."""
        for task, since_ms in list(self._twice.items()):
            self._check_leases(task, self._live[task], self.known.get(f"job/{task[0]}/spec"))
            well = all(self.nodes.is_healthy(machine) for machine in self._live[task].values())
            if not well:
                self._twice[task] = None
            elif since_ms is None:
                self._twice[task] = self.world.now_ms
            elif self.world.now_ms - since_ms > OVERLAP_MS + GRACE_MS:
                names = ", ".join(f"{key[2]} on {machine.name}" for key, machine in self._live[task].items())
                raise InvariantBroken(
                    f"task {task[1]} of job {task[0]} runs as attempts {names}, with both well"
                )

    # ---- answers

    def leaves(self, keys: Sequence[AttemptKey]) -> None:
        """A node stops these attempts because it leaves, without an order."""
        for key in keys:
            self._records.left[key] = None
            if (spec := self.known.get(f"job/{key[0]}/spec")) is not None:
                self.world.count(f"recovery: a node leaves under {spec.recovery}")

    def acknowledged(self, key: str, job: JobId, before: JobId | None) -> None:
        if before is not None and before != job:
            raise InvariantBroken(f"submit {key} was answered with job {before} and with job {job}")
        if self.spec_of(job) is None:
            raise InvariantBroken(f"submit {key} was answered with job {job}, which is not on disk")

    def forgotten(self, keys: Sequence[AttemptKey]) -> None:
        """A keeper is told that these results are durable and may be forgotten: they must be."""
        for job, index, attempt in keys:
            block, at = divmod(index, BLOCK_TASKS)
            attempts, status = (
                self.known.get(f"attempt/{job}/{block}"),
                self.known.get(f"status/{job}/{block}"),
            )
            # Its result is void: the server has to acknowledge it so that the keeper can
            # forget it, but need not store it.
            if attempts is None or ints(attempts, "number")[at] != attempt:
                continue  # a later attempt has replaced it
            if (
                status is None
                or ints(status, "number")[at] != attempt
                or status.state[at] < ATTEMPT_FIRST_END
            ):
                name = f"attempt {attempt} of task {index} of job {job}"
                raise InvariantBroken(f"the result of {name} is acknowledged and not durable")

    # ---- at the end of a run

    def at_the_end(
        self, jobs: Iterable[JobId], canceled: Mapping[JobId, None], deleted: Mapping[JobId, None]
    ) -> None:
        self.known.update(self._records.expired)  # expired jobs had to end correctly, too
        for job in jobs:
            spec, status = self.known.get(f"job/{job}/spec"), self.known.get(f"job/{job}/status")
            if spec is None and (job in deleted or f"job/{job}/spec" in self._records.forgotten):
                continue
            if spec is None:
                raise InvariantBroken(f"job {job} was acknowledged and is gone")
            if status is None or not status.ended:
                raise InvariantBroken(f"job {job} has not ended: {self._task_states(spec)}")
            self._check_results(spec, status, was_canceled=job in canceled)
        for task, live in self._live.items():
            raise InvariantBroken(
                f"task {task[1]} of job {task[0]} still runs on {[m.name for m in live.values()]}"
            )
        self.reported.at_the_end()

    def _check_results(self, spec: JobSpec, status: JobStatus, *, was_canceled: bool) -> None:
        verdict = self.known.get(f"job/{spec.id}/verdict")
        assigned = self.known.get(f"job/{spec.id}/cluster")
        was_canceled = was_canceled or (assigned is not None and assigned.failed is not None)
        is_late = verdict is not None and verdict.late
        not_started = (None,) if verdict is None else (None, TaskState.WANTED)
        for index, state in self._desired(spec):
            name = f"task {index} of job {spec.id}"
            if state is TaskState.SUCCEEDED and (spec.id, index) not in self._succeeded:
                raise InvariantBroken(f"{name} is recorded as succeeded and never did")
            if state not in not_started and state not in TASK_ENDS:
                raise InvariantBroken(f"job {spec.id} is {status.state} and its task {index} is {state!r}")
            if was_canceled or (state is not None and recovery.may_be(self.known, spec, index, state)):
                continue
            if state is TaskState.CANCELED:
                raise InvariantBroken(f"{name} was canceled without a request")
            if state is TaskState.FAILED and not is_late:
                failures = self._process_log.failures[spec.id, index]
                if failures < tries(spec):
                    raise InvariantBroken(f"{name} has failed after {failures} of {tries(spec)} tries")

    def _task_states(self, spec: JobSpec) -> str:
        found: dict[str, int] = {}
        for _, state in self._states(spec):
            name = "wanted" if state is None else state.name.lower()
            found[name] = found.get(name, 0) + 1
        return ", ".join(f"{count} {name}" for name, count in found.items())

    def _desired(self, spec: JobSpec) -> Iterable[tuple[int, TaskState | None]]:
        """States of desired tasks; of an at-most-once job, without those that a scale-down once canceled."""
        once = spec.desired_count is not None and spec.run is RunMode.AT_MOST_ONCE
        for index, state in self._states(spec):
            if not (spec.is_scaled_down(index) or (once and state is TaskState.CANCELED)):
                yield index, state

    def _states(self, spec: JobSpec) -> Iterable[tuple[int, TaskState | None]]:
        """Index and state of each task; None if its block was never written."""
        for block in range(spec.blocks):
            tasks = self.known.get(f"task/{spec.id}/{block}")
            for at in range(spec.block_size(block)):
                state = TaskState(tasks.state[at]) if tasks is not None and at < tasks.size else None
                yield block * BLOCK_TASKS + at, state


def _uses(spec: JobSpec, child: SimChild) -> dict[str, int]:
    """What a process uses of the machine, and of each GPU it was given."""
    each = min(spec.needs.get(GPU, 0), WHOLE_GPU)
    return spec.needs | {_device(gpu): each for gpu in child.gpus}


def _device(gpu: str) -> str:
    return f"GPU {gpu}"
