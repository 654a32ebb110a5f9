"""What may never break with a store in memory: what runs is not stopped, forgotten or run again."""

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

ADOPTED_MS = 10_000  # after its node is well again, what runs there is known


class AdoptionChecks(Checks):
    """All that holds with any store, as far as the server can know it, and what holds over its restarts."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.canceled: Mapping[JobId, None] = {}  # jobs, by their users
        self._submits: dict[JobId, str] = {}
        self._unknown_since_ms: dict[AttemptKey, int] = {}
        self._done: dict[tuple[str, int], None] = {}  # tasks of which a success was acknowledged

    def forget(self) -> None:
        """The server was restarted: it knows no job, as long as no node brings it back."""
        self._records.forget()
        self._unknown_since_ms.clear()

    def acknowledged(self, key: str, job: JobId, before: JobId | None) -> None:
        super().acknowledged(key, job, before)
        if self._submits.setdefault(job, key) != key:
            raise InvariantBroken(f"job {job} was made by submit {self._submits[job]} and by submit {key}")

    def born(self, name_of_machine: str, child: SimChild) -> None:
        """Only a machine that forgets what it had not synced may bring back what has succeeded."""
        super().born(name_of_machine, child)
        job, index, attempt = child.key
        spec, may_forget = self.spec_of(job), bool(self.nodes.disturbed)
        if spec is not None and spec.kind is JobKind.BATCH and (job, index) in self._done and not may_forget:
            raise InvariantBroken(
                f"task {index} of job {job} has succeeded, and runs again as attempt {attempt}"
            )

    def died(self, name_of_machine: str, child: SimChild) -> None:
        """A signal comes from the keeper: it was told to stop the work, or its lease has run out."""
        super().died(name_of_machine, child)
        self._unknown_since_ms.pop(child.key, None)
        job, index, attempt = child.key
        spec = self.spec_of(job)
        is_stopped = child.status is not None and child.status < 0
        if is_stopped and spec is not None and spec.lease_ms is None and not self._may_stop(child.key):
            raise InvariantBroken(
                f"attempt {attempt} of task {index} of job {job} was stopped, for which nobody asked"
            )

    def _may_stop(self, key: AttemptKey) -> bool:
        """Its user has canceled it, its task has ended, or a later attempt has taken its place."""
        job, index, attempt = key
        block, at = divmod(index, BLOCK_TASKS)
        task = self.known.get(f"task/{job}/{block}")
        has_ended = task is not None and at < task.size and TaskState(task.state[at]) in TASK_ENDS
        return job in self.canceled or has_ended or self._number(key) > attempt

    def _number(self, key: AttemptKey) -> int:
        """Of the attempt that the server takes for the current one of that task; 0: it knows of none."""
        block, at = divmod(key[1], BLOCK_TASKS)
        attempts = self.known.get(f"attempt/{key[0]}/{block}")
        return 0 if attempts is None or at >= len(attempts.flags) else ints(attempts, "number")[at]

    def forgotten(self, keys: Sequence[AttemptKey]) -> None:
        """A keeper is told that these results are stored: so the jobs that they are of must be known."""
        super().forgotten(keys)
        for key in keys:
            job, index, attempt = key
            if f"job/{job}/spec" not in self.known:
                name = f"attempt {attempt} of task {index} of job {job}"
                raise InvariantBroken(f"the result of {name} is said to be stored, and the job is not known")
            if self._number(key) == attempt and self._witness.succeeded(key):
                self._done[job, index] = None

    def check(self) -> None:
        super().check()
        for live in self._live.values():
            for key, machine in live.items():
                self._look_at_one(key, machine)

    def _look_at_one(self, key: AttemptKey, machine: SimMachine) -> None:
        """What runs on a node that is well is known soon."""
        if self._number(key) >= key[2] or not self.nodes.is_well(machine):
            self._unknown_since_ms.pop(key, None)
            return
        since_ms = self._unknown_since_ms.setdefault(key, self.world.now_ms)
        if self.world.now_ms - since_ms > ADOPTED_MS:
            name = f"attempt {key[2]} of task {key[1]} of job {key[0]}"
            raise InvariantBroken(
                f"{name} runs on {machine.name}, which is well, and is not known to the server"
            )
