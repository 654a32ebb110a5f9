"""Invariants of a memory store: what runs is not stopped, forgotten or run again when the server restarts."""

from collections.abc import Mapping, Sequence

from rota.keeper.resources.reservations import AttemptKey
from rota.model.columns import ints
from rota.model.ids import JobId
from rota.model.job import JobKind
from rota.model.lifecycle import TASK_ENDS, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.sim.checks.suite import Checks
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.machine_os import SimChild
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

ADOPTED_MS = 10_000  # after its node is healthy, for the server to adopt what runs there


class AdoptionChecks(Checks):
    """The invariants of any store, as far as the server can know, and those that hold across its restarts."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.canceled: Mapping[JobId, None] = {}  # jobs cancelled by their users
        self._submits: dict[JobId, str] = {}
        self._unknown_since_ms: dict[AttemptKey, int] = {}
        self._done: dict[tuple[str, int], None] = {}  # tasks whose success was acknowledged

    def forget(self) -> None:
        """The server was restarted: it knows no job until a node brings it back."""
        self._records.forget()
        self._unknown_since_ms.clear()

    def acknowledged(self, key: str, job: JobId, before: JobId | None) -> None:
        super().acknowledged(key, job, before)
        if self._submits.setdefault(job, key) != key:
            raise InvariantBroken(f"job {job} was made by submit {self._submits[job]} and by submit {key}")

    def process_started(self, name_of_machine: str, child: SimChild) -> None:
        """Only a machine that lost unsynced state may run a task again that has succeeded."""
        super().process_started(name_of_machine, child)
        job, index, attempt = child.key
        spec, may_forget = self.spec_of(job), bool(self.nodes.disturbed)
        if spec is not None and spec.kind is JobKind.BATCH and (job, index) in self._done and not may_forget:
            raise InvariantBroken(
                f"task {index} of job {job} has succeeded, and runs again as attempt {attempt}"
            )

    def process_ended(self, name_of_machine: str, child: SimChild) -> None:
        """A signal comes from the keeper: a stop was ordered, or the lease has expired."""
        super().process_ended(name_of_machine, child)
        self._unknown_since_ms.pop(child.key, None)
        job, index, attempt = child.key
        spec = self.spec_of(job)
        is_stopped = child.status is not None and child.status < 0
        if is_stopped and spec is not None and spec.lease_ms is None and not self._may_stop(child.key):
            raise InvariantBroken(
                f"attempt {attempt} of task {index} of job {job} was stopped without an order"
            )

    def _may_stop(self, key: AttemptKey) -> bool:
        """Whether the job was cancelled, the task has ended, or a later attempt replaces this one."""
        job, index, attempt = key
        block, at = divmod(index, BLOCK_TASKS)
        task = self.known.get(f"task/{job}/{block}")
        has_ended = task is not None and at < task.size and TaskState(task.state[at]) in TASK_ENDS
        return job in self.canceled or has_ended or self._number(key) > attempt

    def _number(self, key: AttemptKey) -> int:
        """Number of the attempt that the server considers current; 0 if it knows none."""
        block, at = divmod(key[1], BLOCK_TASKS)
        attempts = self.known.get(f"attempt/{key[0]}/{block}")
        return 0 if attempts is None or at >= len(attempts.flags) else ints(attempts, "number")[at]

    def forgotten(self, keys: Sequence[AttemptKey]) -> None:
        """A keeper is told that these results are durable: their jobs must be known."""
        super().forgotten(keys)
        for key in keys:
            job, index, attempt = key
            if f"job/{job}/spec" not in self.known:
                name = f"attempt {attempt} of task {index} of job {job}"
                raise InvariantBroken(f"the result of {name} is acknowledged, and the job is not known")
            if self._number(key) == attempt and self._process_log.succeeded(key):
                self._done[job, index] = None

    def check(self) -> None:
        super().check()
        for live in self._live.values():
            for key, machine in live.items():
                self._check_known(key, machine)

    def _check_known(self, key: AttemptKey, machine: SimMachine) -> None:
        """A process on a healthy node is known to the server within ADOPTED_MS."""
        if self._number(key) >= key[2] or not self.nodes.is_healthy(machine):
            self._unknown_since_ms.pop(key, None)
            return
        since_ms = self._unknown_since_ms.setdefault(key, self.world.now_ms)
        if self.world.now_ms - since_ms > ADOPTED_MS:
            name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
            raise InvariantBroken(
                f"{name} runs on {machine.name}, which is healthy, and is not known to the server"
            )
