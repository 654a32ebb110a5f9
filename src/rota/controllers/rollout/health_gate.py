"""The health gate of a rollout: which tasks of a service are healthy, being replaced, or have failed."""

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

SEEN_AGAIN_MS = 1_000  # heartbeats wake no reconciler: check again
_RUNNING, _FAILED = int(AttemptState.RUNNING), int(AttemptState.FAILED)


class RolloutGate:
    """The state of all tasks of a service at one moment. Indices are in ascending order."""

    def __init__(self, view: View, job: JobView, intent: JobIntent, healthy_ms: int, now: Instant) -> None:
        self.unavailable: dict[int, str] = {}  # tasks that do not serve, or not provably: why
        self.unhealthy_old: dict[int, int] = {}  # index -> attempt of an older version that is unhealthy
        self.healthy_old: dict[int, int] = {}  # index -> attempt of an older version that is healthy
        self.being_replaced: dict[int, int] = {}  # index -> attempt that is already being replaced
        self.healthy_since: dict[int, HealthySince] = {}  # of the newer version, by index
        self.healthy_new = 0
        self.failure: str | None = None  # of the newer version
        self.wake_at_ms: int | None = None  # when the next task may have been healthy for long enough
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
        # Only an attempt that ended by itself counts against the new version. A lost node
        # or a stop says nothing about it.
        is_new = status.versions.get(position, 1) >= self._intent.replace
        if is_new and status.state[position] == _FAILED and self.failure is None:
            self.failure = f"task {index} failed: {_describe_end(status, position)}"

    def _check_task(
        self, index: int, attempts: AttemptBlock, status: StatusBlock, task: TaskBlock | None
    ) -> None:
        position = index % BLOCK_TASKS
        number, version = ints(attempts, "number")[position], status.versions.get(position, 1)
        runs = status.state[position] == _RUNNING and ints(status, "number")[position] == number
        is_new, service = version >= self._intent.replace, status.lives.get(position)
        reason = (
            _unavailable_reason(service, is_checked=is_new and self._job.spec.check is not None)
            if runs
            else "ended"
        )
        # A replacement that was ordered is carried out.
        if task is not None and task.renew.get(position) == number:
            self.being_replaced[index] = number
            self.unavailable[index] = "is being replaced"
        elif self._intent.replaces(version):
            (self.healthy_old if reason is None else self.unhealthy_old)[index] = number
        if reason is not None:
            self.unavailable.setdefault(index, reason)
        elif is_new:
            before = None if task is None else task.proofs.get(position)
            node = attempts.nodes[ints(attempts, "node")[position]]
            fresh = HealthySince(number, 0 if service is None else service.restarts, self._now.ms)
            self._check_healthy_since(index, fresh, before, node)

    def _check_healthy_since(
        self, index: int, fresh: HealthySince, before: HealthySince | None, node: NodeId
    ) -> None:
        """Track since when a task is healthy. A restart resets it, and silence of its node proves nothing."""
        # A process that its keeper restarted is a new one: it has proved nothing yet,
        # although the attempt is the same.
        continues = before is not None and (before.attempt, before.restarts) == (
            fresh.attempt,
            fresh.restarts,
        )
        since = before if before is not None and continues else fresh
        self.healthy_since[index] = since
        proven_ms = since.since_ms + self._healthy_ms
        if proven_ms > self._now.ms:
            self._wait_until(index, "is healthy, but not yet for long enough", proven_ms)
        # The last report may be old: a node that died right after it would count as proof, and the
        # rollout would take down the next task.
        elif self._healthy_ms and not self._is_seen_since(node, proven_ms):
            name = self._view.nodes[node].spec.name
            self._wait_until(
                index, f"was healthy when {name} was last heard from", self._now.ms + SEEN_AGAIN_MS
            )
        else:
            self.healthy_new += 1

    def _is_seen_since(self, node: NodeId, at_ms: int) -> bool:
        entry = self._view.nodes[node]
        return entry.connection is Connection.UP and entry.last_seen_at_ms >= at_ms

    def _wait_until(self, index: int, how: str, until_ms: int) -> None:
        self.unavailable[index] = how
        self.wake_at_ms = min(until_ms, self.wake_at_ms or until_ms)


def _unavailable_reason(service: ServiceStatus | None, *, is_checked: bool) -> str | None:
    """Why the task does not serve; None: it serves."""
    if service is None:
        return "starts" if is_checked else None
    match Health(service.health):
        case Health.HEALTHY:
            return None
        case Health.UP:
            return "starts" if is_checked else None
        case Health.STARTING:
            return f"is not healthy yet{_describe_restarts(service)}"
        case Health.UNHEALTHY:
            return f"is {service.why or 'unhealthy'}{_describe_restarts(service)}"
        case Health.DOWN:
            return f"ended ({service.why or service.last_end}){_describe_restarts(service)}"


def _describe_restarts(service: ServiceStatus) -> str:
    return f", restarted {service.restarts} times" if service.restarts > 1 else ""


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
