"""A service whose newer version is on its way -> which of its tasks are well, make way, or have failed."""

from rota.model.attempt import NO_EXIT_CODE, AttemptBlock, StatusBlock
from rota.model.columns import ints
from rota.model.ids import NodeId
from rota.model.job import JobIntent
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Connection
from rota.model.plan import Instant
from rota.model.service import Health, HealthySince, ServiceStatus
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.rules.phases import AFTER_ENDS, FIRST_END, Phase

SEEN_AGAIN_MS = 1_000  # nodes beat without waking anybody
_RUNNING, _FAILED = int(AttemptState.RUNNING), int(AttemptState.FAILED)


class RolloutGate:
    """All of its tasks, looked at once. Indices are in rising order."""

    def __init__(self, view: View, job: JobView, intent: JobIntent, healthy_ms: int, now: Instant) -> None:
        self.unavailable: dict[int, str] = {}  # tasks that do not serve, or not surely: how they are
        self.unhealthy_old: dict[int, int] = {}  # index -> attempt of an older version that is not well
        self.healthy_old: dict[int, int] = {}  # the same of those that are
        self.being_replaced: dict[int, int] = {}  # the same of those that make way already
        self.healthy_since: dict[int, HealthySince] = {}  # of the newer version, by index
        self.healthy_new = 0
        self.failure: str | None = None  # of the newer version
        self.wake_at_ms: int | None = None  # when the next one may be proven
        self._view, self._job, self._intent, self._now = view, job, intent, now
        self._healthy_ms = healthy_ms
        for block in range(job.spec.blocks):
            self._check_block(block)

    def _check_block(self, block: int) -> None:
        job, first = self._job, block * BLOCK_TASKS
        phases = job.phases.get(block) or bytes(job.spec.block_size(block))
        attempts, status = job.attempts.get(block), job.statuses.get(block)
        for position, phase in enumerate(phases):
            if FIRST_END <= phase < AFTER_ENDS:
                continue
            index = first + position
            if status is not None:
                self._check_failure(index, status)
            if attempts is None or status is None or phase != Phase.RUNNING:
                self.unavailable[index] = _describe_phase(phase)
            else:
                self._check_task(index, attempts, status, job.tasks.get(block))

    def _check_failure(self, index: int, status: StatusBlock) -> None:
        position = index % BLOCK_TASKS
        is_new = status.versions.get(position, 1) >= self._intent.replace
        if is_new and status.state[position] == _FAILED and self.failure is None:
            self.failure = f"task {index} failed: {_describe_end(status, position)}"

    def _check_task(
        self, index: int, attempts: AttemptBlock, status: StatusBlock, task: TaskBlock | None
    ) -> None:
        position = index % BLOCK_TASKS
        number, version = ints(attempts, "number")[position], status.versions.get(position, 1)
        runs = status.state[position] == _RUNNING and ints(status, "number")[position] == number
        is_new, life = version >= self._intent.replace, status.lives.get(position)
        trouble = (
            _unavailable_reason(life, is_checked=is_new and self._job.spec.check is not None)
            if runs
            else "ended"
        )
        if task is not None and task.renew.get(position) == number:  # whoever was told to go, goes
            self.being_replaced[index] = number
            self.unavailable[index] = "makes way"
        elif self._intent.replaces(version):
            (self.healthy_old if trouble is None else self.unhealthy_old)[index] = number
        if trouble is not None:
            self.unavailable.setdefault(index, trouble)
        elif is_new:
            before = None if task is None else task.proofs.get(position)
            node = attempts.nodes[ints(attempts, "node")[position]]
            fresh = HealthySince(number, 0 if life is None else life.restarts, self._now.ms)
            self._check_healthy_since(index, fresh, before, node)

    def _check_healthy_since(
        self, index: int, fresh: HealthySince, before: HealthySince | None, node: NodeId
    ) -> None:
        """A process that was started again begins anew; that its node says nothing proves nothing."""
        goes_on = before is not None and (before.attempt, before.restarts) == (fresh.attempt, fresh.restarts)
        proof = before if before is not None and goes_on else fresh
        self.healthy_since[index] = proof
        proven_ms = proof.since_ms + self._healthy_ms
        if proven_ms > self._now.ms:
            self._wait_until(index, "is well, and not yet for long", proven_ms)
        elif self._healthy_ms and not self._is_seen_since(node, proven_ms):
            name = self._view.nodes[node].spec.name
            self._wait_until(index, f"was well when {name} was last heard", self._now.ms + SEEN_AGAIN_MS)
        else:
            self.healthy_new += 1

    def _is_seen_since(self, node: NodeId, at_ms: int) -> bool:
        entry = self._view.nodes[node]
        return entry.connection is Connection.UP and entry.last_seen_at_ms >= at_ms

    def _wait_until(self, index: int, how: str, until_ms: int) -> None:
        self.unavailable[index] = how
        self.wake_at_ms = min(until_ms, self.wake_at_ms or until_ms)


def _unavailable_reason(life: ServiceStatus | None, *, is_checked: bool) -> str | None:
    """None: it serves."""
    if life is None:
        return "starts" if is_checked else None
    match Health(life.health):
        case Health.HEALTHY:
            return None
        case Health.UP:
            return "starts" if is_checked else None
        case Health.STARTING:
            return f"is not healthy yet{_describe_restarts(life)}"
        case Health.UNHEALTHY:
            return f"is {life.why or 'unhealthy'}{_describe_restarts(life)}"
        case Health.DOWN:
            return f"ended ({life.why or life.last_end}){_describe_restarts(life)}"


def _describe_restarts(life: ServiceStatus) -> str:
    return f", restarted {life.restarts} times" if life.restarts > 1 else ""


def _describe_phase(phase: int) -> str:
    match Phase(phase):
        case Phase.HELD:
            return "is held as suspect"
        case Phase.STOPPING:
            return "is being stopped"
        case _:
            return "waits to be started"


def _describe_end(status: StatusBlock, position: int) -> str:
    if reason := status.reasons.get(position):
        return reason
    code, signal = ints(status, "exit_code")[position], status.signal[position]
    return f"killed by signal {signal}" if signal or code == NO_EXIT_CODE else f"exit {code}"
