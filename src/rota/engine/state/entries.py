"""Entries of the mirror for one job and one node: their records, and the state derived from them."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from rota.engine.state.system_jobs import SystemJobIndex
from rota.model.adoption import JobAdoption
from rota.model.affinity import NO_MEMBERSHIP
from rota.model.attempt import AttemptBlock, StatusBlock, state_of
from rota.model.columns import changes, differing, ints, widened
from rota.model.ids import JobId, NodeId
from rota.model.job import (
    JobCluster,
    JobGroup,
    JobIntent,
    JobKind,
    JobSpec,
    JobStatus,
    MoveOrder,
    SchedulerVerdict,
    Unplaceable,
    assigned_to,
)
from rota.model.lifecycle import NODE_PRESENT, AttemptState, NodeState
from rota.model.limits import BLOCK_TASKS, SHORT_RUN_US
from rota.model.namespace import NamespaceUsage
from rota.model.node import (
    Connection,
    Eligibility,
    NodeIntent,
    NodeLoad,
    NodeSpec,
    NodeStatus,
    RefusedHandshake,
)
from rota.model.plan import Record
from rota.model.recovery import RecoveryAnswers
from rota.model.result import ResultRecord
from rota.model.rollout import JobPreviousVersion, JobRollout
from rota.model.shape import QueueKey, RunMode
from rota.model.task import PinBlock, TaskBlock, grown
from rota.rules.move_window import move_window
from rota.rules.phases import AFTER_ENDS, FIRST_END, BlockPhases, NodeHold, Phase, block_phases

# Plain numbers: enum members are slow to look up, and these are needed at every change.
_PHASES = len(Phase)
_PENDING = int(Phase.PENDING)
_OFFERED = int(Phase.OFFERED)
_STOPPING = int(Phase.STOPPING)
_HELD = int(Phase.HELD)
_UNRESOLVED = int(Phase.UNRESOLVED)
_ENDS = int(FIRST_END)
_AFTER_ENDS = int(AFTER_ENDS)
_NAMES = tuple(phase.name.lower() for phase in Phase)
_STARTED = int(AttemptState.RUNNING)  # the lowest state of an attempt that has been started
_NEVER_ACCEPTED = (int(AttemptState.REFUSED), int(AttemptState.WITHDRAWN))
_LOOKAHEAD, _RESERVED = int(NodeHold.LOOKAHEAD), int(NodeHold.RESERVED)
_LEAVING = int(NodeHold.RESERVED_UNTIL_STOPPED)


class HoldChange:
    """Change of what attempts of one block hold on one node, in attempts."""

    def __init__(self) -> None:
        self.reserved = 0
        self.lookahead = 0
        self.preemptible = 0  # of `reserved`: attempts that may be preempted
        self.leaving = 0  # of `reserved`: attempts that are stopping
        self.freed = False  # some attempt released resources, or a lookahead slot that short tasks wait for

    def shift(self, before: int, now: int) -> None:
        """Count one attempt's change between two values of NodeHold; from RESERVED on it holds resources."""
        self.reserved += (now >= _RESERVED) - (before >= _RESERVED)
        self.lookahead += (now == _LOOKAHEAD) - (before == _LOOKAHEAD)
        self.preemptible += (now == _RESERVED) - (before == _RESERVED)
        self.leaving += (now == _LEAVING) - (before == _LEAVING)
        self.freed |= before >= _RESERVED > now or before == _LOOKAHEAD != now


class ReservedGpus(NamedTuple):
    """GPUs reserved for one attempt."""

    slot: int  # of its node in the node table
    share: int  # thousandths of each device, as the spec requested when they were reserved
    devices: int  # one bit per device


class PhaseCounts:
    """Counts of a job's tasks per phase."""

    def __init__(self, count: int) -> None:
        self.by_phase = [0] * _PHASES
        self.by_phase[_PENDING] = count

    @property
    def pending(self) -> int:
        return self.by_phase[_PENDING]

    @property
    def ended(self) -> int:
        return sum(self.by_phase[_ENDS:_AFTER_ENDS])

    @property
    def live(self) -> int:
        return sum(self.by_phase[_OFFERED:_ENDS])

    @property
    def stopping(self) -> int:
        return self.by_phase[_STOPPING]

    @property
    def held(self) -> int:
        return self.by_phase[_HELD]

    @property
    def unresolved(self) -> int:
        return self.by_phase[_UNRESOLVED]

    def shift(self, before: bytes, now: bytes, changed: list[int]) -> None:
        for position in changed:
            self.by_phase[before[position]] -= 1
            self.by_phase[now[position]] += 1

    def as_dict(self) -> dict[str, int]:
        return dict(zip(_NAMES, self.by_phase, strict=True))


class JobEntry:
    """One job and what is derived from its records."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.usage = NamespaceUsage()  # what its namespace is charged for it
        self.intent: JobIntent | None = None
        self.cluster: JobCluster | None = None
        self.status: JobStatus | None = None
        self.verdict: SchedulerVerdict | None = None
        self.unplaceable: Unplaceable | None = None
        self.answers: RecoveryAnswers | None = None
        self.results: dict[tuple[int, int], ResultRecord] = {}  # by index and attempt
        self.results_bytes = 0
        self.previous_version: JobPreviousVersion | None = None
        self.rollout: JobRollout | None = None
        self.adoption: JobAdoption | None = None
        self.tasks: dict[int, TaskBlock] = {}
        self.attempts: dict[int, AttemptBlock] = {}
        self.statuses: dict[int, StatusBlock] = {}
        self.phases: dict[int, bytes] = {}  # by block; a block without an entry is all pending
        self.holds: dict[int, bytes] = {}
        self._pins = SystemJobIndex()
        self.task_counts = PhaseCounts(spec.count)
        self.run_us: float | None = None  # moving average of its tasks' run times
        self.started_at_ms: int | None = None  # the earliest start of any attempt
        self.first_never_placed = 0  # the lowest index that was never placed
        self.has_gaps = False  # some tasks ended without ever being placed
        # By block and index: tasks that were placed before and are pending again -> end of their backoff.
        self.retry_at_ms: dict[int, dict[int, int]] = {}
        self._retry_count = 0  # entries of `retry_at_ms`
        # A heap of (end of backoff, index); an entry is void if `retry_at_ms` has another time.
        self._backoffs: list[tuple[int, int]] = []
        self.queue: QueueKey | None = None  # the pending queue it is in
        self.in_group: tuple[str, JobGroup] | None = None  # its place in the index of jobs by cluster
        self.resumes_ms: int | None = None  # end of the backoff after which its queue is to be tried
        self.is_parked = False  # our own code failed on it: the scheduler does not see it
        self.live_by_node: dict[NodeId, int] = {}  # live attempts by node
        self.moving: dict[int, MoveOrder] = {}  # by index: move orders that are not carried out yet
        self.devices: dict[int, ReservedGpus] = {}  # by index; only of attempts with GPUs
        self.counted = NO_MEMBERSHIP
        self.counted_version = -1  # version of the affinity index from which `counted` was computed
        if spec.desired_count is not None:
            self._bound()

    def records(self) -> Iterator[Record]:
        """All its stored records except results."""
        yield from self.parts()
        yield from self.tasks.values()
        yield from self.attempts.values()
        yield from self.statuses.values()

    def parts(self) -> Iterator[Record]:
        """Its records other than blocks of tasks, attempts and statuses."""
        yield self.spec
        decided = (self.cluster, self.status, self.verdict, self.unplaceable)
        parts = (self.intent, *decided, self.answers, self.previous_version, self.rollout, self.adoption)
        yield from (part for part in parts if part is not None)
        yield from self.pins.values()

    def adopt(self, record: JobAdoption) -> None:
        """Mark the job as adopted: whether a task was ever placed does not follow from its index then."""
        self.adoption = record
        self.has_gaps = True

    def add_result(self, result: ResultRecord) -> None:
        self.results[result.index, result.attempt] = result
        self.results_bytes += result.size

    def set_block(self, record: TaskBlock | AttemptBlock | StatusBlock) -> None:
        """Store a block, widened to its current size: the job may have grown since it was written."""
        size = self.spec.block_size(record.block)
        match record:
            case TaskBlock():
                self.tasks[record.block] = widened(record, size)
                self._update_backoffs(self.tasks[record.block])
            case AttemptBlock():
                self.attempts[record.block] = widened(record, size)
            case StatusBlock():
                self._update_first_start(record)
                self.statuses[record.block] = widened(record, size)

    def _update_backoffs(self, new: TaskBlock) -> None:
        """Update the backoffs of pending tasks: the new record may have shortened one."""
        retries = self.retry_at_ms.get(new.block)
        if retries:
            for index, before_ms in list(retries.items()):
                now_ms = self._not_before_ms(index, new)
                if now_ms != before_ms:
                    self._set_backoff(retries, index, now_ms)

    def _update_first_start(self, new: StatusBlock) -> None:
        old = self.statuses.get(new.block)
        if old is None or old.started_at_ms != new.started_at_ms:
            first = min((start for start in ints(new, "started_at_ms") if start), default=None)
            if first is not None:
                self.started_at_ms = min(first, self.started_at_ms or first)

    def replace_spec(self, spec: JobSpec) -> None:
        """Apply a new version of the spec. Its count never shrinks: scaling down lowers `desired_count`."""
        if self.cluster is not None:
            spec = assigned_to(spec, self.cluster.cluster)
        if spec.kind is JobKind.SYSTEM:  # its count is the number of pins
            spec = grown(spec, self.spec.count - spec.count)
        self.task_counts.by_phase[_PENDING] += spec.count - self.spec.count
        self.spec = spec
        self.counted_version = -1
        records: tuple[TaskBlock | AttemptBlock | StatusBlock, ...]
        records = (*self.tasks.values(), *self.attempts.values(), *self.statuses.values())
        for record in records:
            self.set_block(record)
        for known in (self.phases, self.holds):
            known.update({block: old.ljust(spec.block_size(block), b"\0") for block, old in known.items()})
        self._bound()

    def _bound(self) -> None:
        """Give scaled-down tasks their phase: it follows from the spec alone and is in no record."""
        for block in range(self.spec.blocks if self.spec.desired_count is not None else 0):
            size, attempt = self.spec.block_size(block), self.attempts.get(block)
            before = self.phases.get(block) or bytes(size)
            now = self.bounded(
                block, block_phases(size, self.tasks.get(block), attempt, self.statuses.get(block))
            )
            changed = changes(before, now.phase)
            self.task_counts.shift(before, now.phase, changed)
            if attempt is not None:
                self.update_retries(attempt, changed, now.phase)
            else:
                self.has_gaps |= bool(changed)
            if changed:
                self.phases[block] = now.phase

    def bounded(self, block: int, phases: BlockPhases) -> BlockPhases:
        """The phases of a block, in which tasks beyond the desired count are canceled."""
        if self.spec.desired_count is None:
            return phases
        return phases.bounded(max(0, self.spec.desired_count - block * BLOCK_TASKS))

    def differing(self, record: TaskBlock | AttemptBlock | StatusBlock) -> list[int] | None:
        """Positions at which a record differs from the previous one of its key; None: possibly all."""
        match record:
            case TaskBlock():
                before = self.tasks.get(record.block)
                if before is not None and before.losses != record.losses:
                    return None
                return differing(before, record, ("state", "wanted"))
            case AttemptBlock():
                return differing(self.attempts.get(record.block), record, ("number", "flags"))
            case StatusBlock():
                return differing(self.statuses.get(record.block), record, ("number", "state"))

    def update_retries(self, attempt: AttemptBlock, positions: list[int], phase: bytes) -> None:
        """Update `retry_at_ms` for those of these tasks that were ever placed."""
        first = attempt.block * BLOCK_TASKS
        number = ints(attempt, "number")
        task = self.tasks.get(attempt.block)
        retries = self.retry_at_ms.setdefault(attempt.block, {})
        for position in positions:
            index = first + position
            if not number[position]:
                self.has_gaps |= phase[position] != _PENDING
                continue
            if self.adoption is None:
                self.first_never_placed = max(self.first_never_placed, index + 1)
            if phase[position] == _PENDING:
                self._retry_count += index not in retries
                self._set_backoff(retries, index, self._not_before_ms(index, task))
            else:
                self._retry_count -= retries.pop(index, None) is not None
        if not retries:
            del self.retry_at_ms[attempt.block]

    def _not_before_ms(self, index: int, task: TaskBlock | None) -> int:
        """Cluster time from which a pending task may be placed on any node.

        A moved task is in no queue until its move window has passed: the scheduler places it separately,
        where its move order says. So all tasks of a queue may go to the same nodes.
        """
        position = index % BLOCK_TASKS
        move = self.moving.get(index)
        window = None if move is None else move_window(move, task, position)
        if window is not None:
            return window.until_ms
        return 0 if task is None else ints(task, "not_before")[position]

    def set_moves(self, moves: Mapping[int, MoveOrder]) -> None:
        """Keep the move orders that are not carried out yet; tasks of the others may go to any node."""
        before = self.moving
        self.moving = {index: move for index, move in moves.items() if self._is_moving(index, move)}
        for index in before.keys() - self.moving.keys():
            block = index // BLOCK_TASKS
            retries = self.retry_at_ms.get(block, {})
            if index in retries:
                self._set_backoff(retries, index, self._not_before_ms(index, self.tasks.get(block)))

    def move_waits_end_ms(self, now_ms: int) -> list[int]:
        """Ends of the move windows of all pending tasks that are between two nodes, in cluster time."""
        ends = (self.retry_at_ms.get(index // BLOCK_TASKS, {}).get(index, 0) for index in self.moving)
        return [end_ms for end_ms in ends if end_ms > now_ms]

    def _is_moving(self, index: int, move: MoveOrder) -> bool:
        """Whether the task has neither ended nor started on another node.

        A refused offer leaves the order in force. While records are loaded the attempt may not be known yet.
        """
        block, position = divmod(index, BLOCK_TASKS)
        attempt, status = self.attempts.get(block), self.statuses.get(block)
        if attempt is None or block not in self.phases:
            return True
        if _ENDS <= self.phases[block][position] < _AFTER_ENDS or self._outlives(move, block, position):
            return False
        number = ints(attempt, "number")[position]
        # An at_most_once attempt is never stopped for a move: it keeps running where it is.
        if number == move.attempt and self.spec.run is not RunMode.AT_MOST_ONCE:
            return True
        state = None if status is None else state_of(status, position, number)
        return state is None or state < _STARTED or state in _NEVER_ACCEPTED

    def _outlives(self, move: MoveOrder, block: int, position: int) -> bool:
        """Whether the task has retried beyond the retry that the move leads to.

        Stopping an attempt raises the desired attempt number of its task. Withdrawing its offer does not: the
        next attempt is for the same number, and any retry after that is not part of the move. If the end of
        the moved attempt is no longer known, several attempts have followed it.
        """
        task, status = self.tasks.get(block), self.statuses.get(block)
        if task is None or status is None:
            return False
        tries = ints(task, "wanted")[position] - move.tries
        state = state_of(status, position, move.attempt)
        return tries > 1 or (tries == 1 and (state is None or state in _NEVER_ACCEPTED))

    def _set_backoff(self, retries: dict[int, int], index: int, until_ms: int) -> None:
        retries[index] = until_ms
        heapq.heappush(self._backoffs, (until_ms, index))

    def clear_retries(self, block: int) -> None:
        """Forget the retries of a block that is about to be derived again from its records."""
        self._retry_count -= len(self.retry_at_ms.pop(block, {}))

    def holds_of(self, block: int) -> bytes:
        """The hold of each task of a block; empty before the block was derived."""
        return self.holds.get(block, b"")

    @property
    def task_by_node(self) -> dict[NodeId, int]:
        return self._pins.index

    @property
    def pins(self) -> dict[int, PinBlock]:
        return self._pins.blocks

    def add_pins(self, record: PinBlock) -> None:
        """Add the tasks of a system job that a pin block names."""
        more = self._pins.apply(record)
        self.spec = grown(self.spec, more)
        self.task_counts.by_phase[_PENDING] += more

    def ready(self, now_ms: int, most: int) -> list[int]:
        if self._pins.blocks:
            return self._pins.pending(self.phases, self.retry_at_ms, now_ms)[:most]
        found: list[int] = []
        for block in sorted(self.retry_at_ms):
            if len(found) >= most:
                break
            found += sorted(index for index, at_ms in self.retry_at_ms[block].items() if at_ms <= now_ms)
        del found[most:]
        if not self.has_gaps:
            found += range(
                self.first_never_placed, min(self.spec.count, self.first_never_placed + most - len(found))
            )
            return found
        found += islice(self._never_placed(), most - len(found))
        return found

    def _never_placed(self) -> Iterator[int]:
        """Indices of pending tasks that were never placed, whole blocks at a time."""
        for block in range(self.first_never_placed // BLOCK_TASKS, self.spec.blocks):
            phases = self.phases.get(block) or bytes(self.spec.block_size(block))
            if _PENDING in phases:
                first = block * BLOCK_TASKS
                indices = range(max(first, self.first_never_placed), first + len(phases))
                placed = self.retry_at_ms.get(block, {})  # pending again after an attempt
                yield from (at for at in indices if phases[at - first] == _PENDING and at not in placed)

    @property
    def runs_briefly(self) -> bool:
        """Whether its tasks are known to be short enough for lookahead on a node."""
        return self.run_us is not None and self.run_us <= SHORT_RUN_US

    def ready_ms(self) -> int:
        """Cluster time from which one of its pending tasks may be placed; 0: immediately."""
        if self.task_counts.pending > self._retry_count:  # some were never placed
            return 0
        while self._backoffs:
            until_ms, index = self._backoffs[0]
            if self.retry_at_ms.get(index // BLOCK_TASKS, {}).get(index) == until_ms:
                return until_ms
            heapq.heappop(self._backoffs)
        return 0

    def next_backoff_end_ms(self, now_ms: int) -> int | None:
        """The first end of a backoff after `now_ms`, in cluster time."""
        ends = (at_ms for block in self.retry_at_ms.values() for at_ms in block.values() if at_ms > now_ms)
        return min(ends, default=None)

    def all_ready_ms(self) -> int:
        """Cluster time from which all its pending tasks may be placed together."""
        return max((at_ms for block in self.retry_at_ms.values() for at_ms in block.values()), default=0)


def touched_by(before: JobIntent | None, now: JobIntent, blocks: Iterable[int]) -> Iterable[int]:
    """Blocks with attempts whose orders may differ because of a changed intent."""
    old = before or JobIntent(now.id)
    if (old.kill, old.paused, old.halted) != (now.kill, now.paused, now.halted):
        return blocks
    sent = [index for signal in now.sent if signal not in old.sent for index in signal.attempts]
    named = (*now.restart, *now.killed, *now.moves, *now.cancel_tasks, *sent)
    return sorted({index // BLOCK_TASKS for index in named})


class NodeEntry:
    """One node: its records, its observations, and the attempts assigned to it."""

    def __init__(self, node: NodeId) -> None:
        self.id = node
        self.spec = NodeSpec(node, node)
        self.intent: NodeIntent | None = None
        self.status: NodeStatus | None = None
        self.connection = Connection.UNKNOWN
        self.last_seen_at_ms = 0
        self.load: NodeLoad | None = None
        self.measured_at_ms = 0  # cluster time at which `load` was reported
        self.report_ms = 0  # the load report interval last sent to it; 0: none yet
        self.assigned: dict[tuple[JobId, int], int] = {}
        self.machine_leaving = False  # its machine is about to be removed
        self.refused: RefusedHandshake | None = None  # its last handshake, if that was refused
        self.disconnect_reason: str | None = None  # why it closed its last connection, as it reported
        self.left_at: tuple[int, int] | None = None  # revision and index of the event of its leave
        self.counted: tuple[str, NodeState] | None = None  # cluster and state under which it was counted

    def records(self) -> Iterator[Record]:
        """All its stored records."""
        yield self.spec
        yield from (part for part in (self.intent, self.status) if part is not None)

    def set_refused(self, why: RefusedHandshake | None) -> None:
        self.refused = why

    def set_disconnect_reason(self, reason: str) -> None:
        self.disconnect_reason = reason

    def set_report_interval(self, report_ms: int) -> None:
        self.report_ms = report_ms

    @property
    def revoked(self) -> bool:
        return self.intent is not None and self.intent.revoked

    @property
    def is_draining(self) -> bool:
        requested = self.intent is not None and self.intent.drains
        return requested or self.machine_leaving or (self.status is not None and self.status.leaving)

    @property
    def open(self) -> bool:
        status = self.status
        ready = status is not None and status.state is NodeState.READY
        return ready and self.connection is Connection.UP and self.expected

    @property
    def expected(self) -> bool:
        """Whether it takes new tasks, or would if it were connected."""
        is_open = self.intent is None or self.intent.eligibility is Eligibility.OPEN
        status = self.status
        is_present = status is not None and status.state in NODE_PRESENT and status.accepts_work
        return is_open and is_present and not self.machine_leaving
