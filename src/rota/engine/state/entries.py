"""What the mirror holds of a job and of a node: its records, and what is derived from them."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from rota.engine.state.system_jobs import SystemJobIndex
from rota.model.adoption import JobAdoption
from rota.model.affinity import NO_MEMBERSHIP
from rota.model.attempt import AttemptBlock, StatusBlock, state_of
from rota.model.cluster_matching import JobGroup
from rota.model.columns import changes, differing, ints, widened
from rota.model.ids import JobId, NodeId
from rota.model.job import (
    JobCluster,
    JobIntent,
    JobKind,
    JobSpec,
    JobStatus,
    SchedulerVerdict,
    Unplaceable,
    assigned_to,
)
from rota.model.lifecycle import NODE_PRESENT, AttemptState, NodeState
from rota.model.limits import BLOCK_TASKS, SHORT_RUN_US
from rota.model.move import MoveOrder
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
from rota.model.system_job import PinBlock, grown
from rota.model.task import TaskBlock
from rota.model.usage import NamespaceUsage
from rota.rules.move_window import move_window
from rota.rules.phases import AFTER_ENDS, FIRST_END, BlockPhases, NodeHold, Phase, block_phases

# Plain numbers: enum members are slow to look up, and these are needed at every change.
_PHASES, _PENDING, _OFFERED, _STOPPING = (
    len(Phase),
    int(Phase.PENDING),
    int(Phase.OFFERED),
    int(Phase.STOPPING),
)
_HELD, _UNRESOLVED, _ENDS, _AFTER_ENDS = (
    int(Phase.HELD),
    int(Phase.UNRESOLVED),
    int(FIRST_END),
    int(AFTER_ENDS),
)
_NAMES = tuple(phase.name.lower() for phase in Phase)
_STARTED = int(AttemptState.RUNNING)  # the lowest state of an attempt that has been started
_NEVER_TAKEN = (int(AttemptState.REFUSED), int(AttemptState.WITHDRAWN))
_LINE, _ROOM, _LEAVING = int(NodeHold.LOOKAHEAD), int(NodeHold.RESERVED), int(NodeHold.RESERVED_UNTIL_STOPPED)


class HoldChange:
    """By how much attempts of one block changed what they hold of one node."""

    def __init__(self) -> None:
        self.room = 0
        self.lookahead = 0
        self.preemptible = 0  # of `room`: what may have to give way
        self.leaving = 0  # of `room`: what does
        self.freed = False  # or a place in the line of the node, which short tasks wait for too

    def shift(self, before: int, now: int) -> None:
        """Numbers of Hold: whatever is at least ROOM holds room."""
        self.room += (now >= _ROOM) - (before >= _ROOM)
        self.lookahead += (now == _LINE) - (before == _LINE)
        self.preemptible += (now == _ROOM) - (before == _ROOM)
        self.leaving += (now == _LEAVING) - (before == _LEAVING)
        self.freed |= before >= _ROOM > now or before == _LINE != now


class ReservedGpus(NamedTuple):
    """GPUs that are reserved for one attempt."""

    slot: int  # of its node
    share: int  # thousandths of each, as the spec asked when they were reserved
    devices: int  # one bit each


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
        self.usage = NamespaceUsage()  # what it counts for in the account of its namespace
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
        self.run_us: float | None = None  # how long its tasks run, a moving mean
        self.started_at_ms: int | None = None  # the earliest start of any attempt
        self.first_never_placed = 0  # the lowest index that was never placed
        self.has_gaps = False  # some tasks have ended and were never placed
        self.retry_at_ms: dict[int, dict[int, int]] = {}  # by block: placed, pending again -> not before
        self._retry_count = 0  # entries of `again`
        # A heap of (not before, index); an entry is void if `again` says otherwise.
        self._backoffs: list[tuple[int, int]] = []
        self.queue: QueueKey | None = None  # the line it waits in
        self.in_group: tuple[str, JobGroup] | None = None  # of the index of unfinished jobs by cluster
        self.resumes_ms: int | None = None  # when a pause ends after which its line is to be tried
        self.is_parked = False  # our own code failed on it: it is not offered to the scheduler
        self.live_by_node: dict[NodeId, int] = {}  # live attempts by node
        self.moving: dict[int, MoveOrder] = {}  # by index: moves that are not carried out yet
        self.devices: dict[int, ReservedGpus] = {}  # by index; only of attempts that hold some
        self.counted = NO_MEMBERSHIP
        self.counted_version = -1  # of the neighbours when `counted` was made
        if spec.kept is not None:
            self._bound()

    def records(self) -> Iterator[Record]:
        """All that is on disk about it, but its results."""
        yield from self.parts()
        yield from self.tasks.values()
        yield from self.attempts.values()
        yield from self.statuses.values()

    def parts(self) -> Iterator[Record]:
        """Its records that are not blocks of tasks."""
        yield self.spec
        decided = (self.cluster, self.status, self.verdict, self.unplaceable)
        parts = (self.intent, *decided, self.answers, self.previous_version, self.rollout, self.adoption)
        yield from (part for part in parts if part is not None)
        yield from self.pins.values()

    def adopt(self, record: JobAdoption) -> None:
        """Of an adopted job any task may have been placed or not, whatever its index."""
        self.adoption = record
        self.has_gaps = True

    def add_result(self, result: ResultRecord) -> None:
        self.results[result.index, result.attempt] = result
        self.results_bytes += result.size

    def set_block(self, record: TaskBlock | AttemptBlock | StatusBlock) -> None:
        """Since it was written there may be more tasks."""
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
        """Of what is pending: a pause may have been cut short."""
        again = self.retry_at_ms.get(new.block)
        if again:
            for index, before_ms in list(again.items()):
                now_ms = self._not_before_ms(index, new)
                if now_ms != before_ms:
                    self._set_backoff(again, index, now_ms)

    def _update_first_start(self, new: StatusBlock) -> None:
        old = self.statuses.get(new.block)
        if old is None or old.started_at_ms != new.started_at_ms:
            first = min((start for start in ints(new, "started_at_ms") if start), default=None)
            if first is not None:
                self.started_at_ms = min(first, self.started_at_ms or first)

    def replace_spec(self, spec: JobSpec) -> None:
        """The spec is another; tasks may have been added to it, never taken away, but perhaps unwanted."""
        if self.cluster is not None:
            spec = assigned_to(spec, self.cluster.cluster)
        if spec.kind is JobKind.SYSTEM:  # its tasks come with its nodes
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
        """Tasks beyond what is wanted have no record of that: the spec tells, as long as it does."""
        for block in range(self.spec.blocks if self.spec.kept is not None else 0):
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

    def bounded(self, block: int, found: BlockPhases) -> BlockPhases:
        if self.spec.kept is None:
            return found
        return found.bounded(max(0, self.spec.kept - block * BLOCK_TASKS))

    def differing(self, record: TaskBlock | AttemptBlock | StatusBlock) -> list[int] | None:
        """Tasks of a block for which the record says something else than the one before; None: maybe all."""
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
        """Of the tasks at these positions that were ever placed: which are pending again, from when on."""
        first = attempt.block * BLOCK_TASKS
        number = ints(attempt, "number")
        task = self.tasks.get(attempt.block)
        again = self.retry_at_ms.setdefault(attempt.block, {})
        for position in positions:
            index = first + position
            if not number[position]:
                self.has_gaps |= phase[position] != _PENDING
                continue
            if self.adoption is None:
                self.first_never_placed = max(self.first_never_placed, index + 1)
            if phase[position] == _PENDING:
                self._retry_count += index not in again
                self._set_backoff(again, index, self._not_before_ms(index, task))
            else:
                self._retry_count -= again.pop(index, None) is not None
        if not again:
            del self.retry_at_ms[attempt.block]

    def _not_before_ms(self, index: int, task: TaskBlock | None) -> int:
        """Cluster time from which a pending task may be placed on any node.

        Until the wait of its move is over a moved task is in no line: the scheduler places it apart from the
        others, where its move says. So a line holds only tasks that may go to the same nodes.
        """
        position = index % BLOCK_TASKS
        move = self.moving.get(index)
        wait = None if move is None else move_window(move, task, position)
        if wait is not None:
            return wait.until_ms
        return 0 if task is None else ints(task, "not_before")[position]

    def set_moves(self, moves: Mapping[int, MoveOrder]) -> None:
        """Keep those of these moves that are not carried out yet; the tasks of the others may go anywhere."""
        before = self.moving
        self.moving = {index: move for index, move in moves.items() if self._is_moving(index, move)}
        for index in before.keys() - self.moving.keys():
            block = index // BLOCK_TASKS
            again = self.retry_at_ms.get(block, {})
            if index in again:
                self._set_backoff(again, index, self._not_before_ms(index, self.tasks.get(block)))

    def move_waits_end_ms(self, now_ms: int) -> list[int]:
        """For each pending task that is still between two nodes: the cluster time at which that wait ends."""
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
        if number == move.attempt and self.spec.run is not RunMode.AT_MOST_ONCE:  # that runs on where it is
            return True
        state = None if status is None else state_of(status, position, number)
        return state is None or state < _STARTED or state in _NEVER_TAKEN

    def _outlives(self, move: MoveOrder, block: int, position: int) -> bool:
        """Whether a later try is wanted than the one that the move leads to.

        An attempt that was stopped makes its task's next try wanted. One whose offer was withdrawn does not:
        the next attempt serves the same try, and the try after that is no part of the move. Where it is no
        longer known how the moved attempt ended, several others have come since.
        """
        task, status = self.tasks.get(block), self.statuses.get(block)
        if task is None or status is None:
            return False
        tries = ints(task, "wanted")[position] - move.tries
        state = state_of(status, position, move.attempt)
        return tries > 1 or (tries == 1 and (state is None or state in _NEVER_TAKEN))

    def _set_backoff(self, again: dict[int, int], index: int, until_ms: int) -> None:
        again[index] = until_ms
        heapq.heappush(self._backoffs, (until_ms, index))

    def clear_retries(self, block: int) -> None:
        """The block is about to be looked at as if for the first time."""
        self._retry_count -= len(self.retry_at_ms.pop(block, {}))

    def holds_of(self, block: int) -> bytes:
        """By each of its tasks; nothing while that is being found out."""
        return self.holds.get(block, b"")

    @property
    def task_by_node(self) -> dict[NodeId, int]:
        return self._pins.index

    @property
    def pins(self) -> dict[int, PinBlock]:
        return self._pins.blocks

    def add_pins(self, record: PinBlock) -> None:
        """Tasks come with their nodes."""
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
        """Those that are pending, whole blocks at a time."""
        for block in range(self.first_never_placed // BLOCK_TASKS, self.spec.blocks):
            phases = self.phases.get(block) or bytes(self.spec.block_size(block))
            if _PENDING in phases:
                first = block * BLOCK_TASKS
                indices = range(max(first, self.first_never_placed), first + len(phases))
                placed = self.retry_at_ms.get(block, {})  # they pend again
                yield from (at for at in indices if phases[at - first] == _PENDING and at not in placed)

    @property
    def runs_briefly(self) -> bool:
        """Whether its tasks are known to run so briefly that some may wait on a node for the next slot."""
        return self.run_us is not None and self.run_us <= SHORT_RUN_US

    def ready_ms(self) -> int:
        """Cluster time from which one of its pending tasks may be placed; 0: at once."""
        if self.task_counts.pending > self._retry_count:  # some were never placed
            return 0
        while self._backoffs:
            until_ms, index = self._backoffs[0]
            if self.retry_at_ms.get(index // BLOCK_TASKS, {}).get(index) == until_ms:
                return until_ms
            heapq.heappop(self._backoffs)
        return 0

    def next_backoff_end_ms(self, now_ms: int) -> int | None:
        """Cluster time after `now_ms` at which the first of its tasks in a pause may be placed."""
        ends = (at_ms for block in self.retry_at_ms.values() for at_ms in block.values() if at_ms > now_ms)
        return min(ends, default=None)

    def all_ready_ms(self) -> int:
        """The same of all of them at once."""
        return max((at_ms for block in self.retry_at_ms.values() for at_ms in block.values()), default=0)


def touched_by(before: JobIntent | None, now: JobIntent, blocks: Iterable[int]) -> Iterable[int]:
    """Blocks of whose attempts something else is wished."""
    old = before or JobIntent(now.id)
    if (old.kill, old.paused, old.halted) != (now.kill, now.paused, now.halted):
        return blocks
    sent = [index for one in now.sent if one not in old.sent for index in one.attempts]
    named = (*now.restart, *now.killed, *now.moves, *now.cancel_tasks, *sent)
    return sorted({index // BLOCK_TASKS for index in named})


class NodeEntry:
    """One node, what it said last, and what it holds."""

    def __init__(self, node: NodeId) -> None:
        self.id = node
        self.spec = NodeSpec(node, node)
        self.intent: NodeIntent | None = None
        self.status: NodeStatus | None = None
        self.connection = Connection.UNKNOWN
        self.last_seen_at_ms = 0
        self.load: NodeLoad | None = None
        self.measured_at_ms = 0  # cluster time at which `load` was reported
        self.report_ms = 0  # how often it was told to measure that; 0: not yet
        self.assigned: dict[tuple[JobId, int], int] = {}
        self.machine_leaving = False  # its machine is about to be ended
        self.refused: RefusedHandshake | None = None  # it calls, and may not come in
        self.disconnect_reason: str | None = None  # why it closed its last connection, as it said itself
        self.left_at: tuple[int, int] | None = None  # revision and index of the event that told of its leave
        self.counted: tuple[str, NodeState] | None = None  # its cluster and state, as they were last counted

    def records(self) -> Iterator[Record]:
        """All that is on disk about it."""
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
        wished = self.intent is not None and self.intent.drains
        return wished or self.machine_leaving or (self.status is not None and self.status.leaving)

    @property
    def open(self) -> bool:
        status = self.status
        ready = status is not None and status.state is NodeState.READY
        return ready and self.connection is Connection.UP and self.expected

    @property
    def expected(self) -> bool:
        """Whether it takes new work, or would if its connection were up."""
        wished = self.intent is None or self.intent.eligibility is Eligibility.OPEN
        status = self.status
        there = status is not None and status.state in NODE_PRESENT and status.accepts_work
        return wished and there and not self.machine_leaving
