"""A service whose newer version is on its way -> which of its tasks are well, make way, or have failed."""

from rota.model.attempt import NO_EXIT_CODE, AttemptBlock, StatusBlock
from rota.model.columns import ints
from rota.model.ids import NodeId
from rota.model.job import JobWish
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Link
from rota.model.phase import AFTER_ENDS, FIRST_END, Phase
from rota.model.plan import Instant
from rota.model.service import Health, Life, Proof
from rota.model.task import TaskBlock
from rota.model.view import JobView, View

HEAR_AGAIN_MS = 1_000  # nodes beat without waking anybody
_RUNNING, _FAILED = int(AttemptState.RUNNING), int(AttemptState.FAILED)


class Gate:
    """All of its tasks, looked at once. Indices are in rising order."""

    def __init__(self, view: View, job: JobView, wish: JobWish, proof_ms: int, now: Instant) -> None:
        self.away: dict[int, str] = {}  # tasks that do not serve, or not surely: how they are
        self.useless: dict[int, int] = {}  # index -> attempt of an older version that is not well
        self.useful: dict[int, int] = {}  # the same of those that are
        self.leaving: dict[int, int] = {}  # the same of those that make way already
        self.proofs: dict[int, Proof] = {}  # of the newer version, by index
        self.proven = 0
        self.failure: str | None = None  # of the newer version
        self.look_again_ms: int | None = None  # when the next one may be proven
        self._view, self._job, self._wish, self._now = view, job, wish, now
        self._proof_ms = proof_ms
        for block in range(job.spec.blocks):
            self._look(block)

    def _look(self, block: int) -> None:
        job, first = self._job, block * BLOCK_TASKS
        phases = job.phases.get(block) or bytes(job.spec.block_size(block))
        attempts, status = job.attempts.get(block), job.statuses.get(block)
        for position, phase in enumerate(phases):
            if FIRST_END <= phase < AFTER_ENDS:
                continue
            index = first + position
            if status is not None:
                self._look_for_failure(index, status)
            if attempts is None or status is None or phase != Phase.RUNNING:
                self.away[index] = _not_running(phase)
            else:
                self._look_at_one(index, attempts, status, job.tasks.get(block))

    def _look_for_failure(self, index: int, status: StatusBlock) -> None:
        position = index % BLOCK_TASKS
        is_new = status.versions.get(position, 1) >= self._wish.replace
        if is_new and status.state[position] == _FAILED and self.failure is None:
            self.failure = f"task {index} failed: {_how(status, position)}"

    def _look_at_one(
        self, index: int, attempts: AttemptBlock, status: StatusBlock, task: TaskBlock | None
    ) -> None:
        position = index % BLOCK_TASKS
        number, version = ints(attempts, "number")[position], status.versions.get(position, 1)
        runs = status.state[position] == _RUNNING and ints(status, "number")[position] == number
        is_new, life = version >= self._wish.replace, status.lives.get(position)
        trouble = _trouble(life, is_checked=is_new and self._job.spec.check is not None) if runs else "ended"
        if task is not None and task.renew.get(position) == number:  # whoever was told to go, goes
            self.leaving[index] = number
            self.away[index] = "makes way"
        elif self._wish.makes_way(version):
            (self.useful if trouble is None else self.useless)[index] = number
        if trouble is not None:
            self.away.setdefault(index, trouble)
        elif is_new:
            before = None if task is None else task.proofs.get(position)
            node = attempts.nodes[ints(attempts, "node")[position]]
            fresh = Proof(number, 0 if life is None else life.restarts, self._now.ms)
            self._prove(index, fresh, before, node)

    def _prove(self, index: int, fresh: Proof, before: Proof | None, node: NodeId) -> None:
        """A process that was started again begins anew; that its node says nothing proves nothing."""
        goes_on = before is not None and (before.attempt, before.restarts) == (fresh.attempt, fresh.restarts)
        proof = before if before is not None and goes_on else fresh
        self.proofs[index] = proof
        proven_ms = proof.since_ms + self._proof_ms
        if proven_ms > self._now.ms:
            self._await(index, "is well, and not yet for long", proven_ms)
        elif self._proof_ms and not self._is_heard_since(node, proven_ms):
            name = self._view.nodes[node].spec.name
            self._await(index, f"was well when {name} was last heard", self._now.ms + HEAR_AGAIN_MS)
        else:
            self.proven += 1

    def _is_heard_since(self, node: NodeId, at_ms: int) -> bool:
        entry = self._view.nodes[node]
        return entry.link is Link.UP and entry.heard_at_ms >= at_ms

    def _await(self, index: int, how: str, until_ms: int) -> None:
        self.away[index] = how
        self.look_again_ms = min(until_ms, self.look_again_ms or until_ms)


def _trouble(life: Life | None, *, is_checked: bool) -> str | None:
    """None: it serves."""
    if life is None:
        return "starts" if is_checked else None
    match Health(life.health):
        case Health.HEALTHY:
            return None
        case Health.UP:
            return "starts" if is_checked else None
        case Health.STARTING:
            return f"is not healthy yet{_times(life)}"
        case Health.UNHEALTHY:
            return f"is {life.why or 'unhealthy'}{_times(life)}"
        case Health.DOWN:
            return f"ended ({life.why or life.last_end}){_times(life)}"


def _times(life: Life) -> str:
    return f", restarted {life.restarts} times" if life.restarts > 1 else ""


def _not_running(phase: int) -> str:
    match Phase(phase):
        case Phase.HELD:
            return "is held as suspect"
        case Phase.STOPPING:
            return "is being stopped"
        case _:
            return "waits to be started"


def _how(status: StatusBlock, position: int) -> str:
    if reason := status.reasons.get(position):
        return reason
    code, signal = ints(status, "exit_code")[position], status.signal[position]
    return f"killed by signal {signal}" if signal or code == NO_EXIT_CODE else f"exit {code}"
