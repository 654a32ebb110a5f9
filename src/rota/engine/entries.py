"""What the mirror holds of a job and of a node: its records, and what is derived from them."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from rota.engine.pins import Pins
from rota.model.accounts import Kept
from rota.model.adoption import JobAdoption
from rota.model.attempt import AttemptBlock, StatusBlock, state_of
from rota.model.columns import changes, differing, ints, widened
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobSpec, JobStatus, JobVerdict, JobWish, Kind, Unplaceable, at_home
from rota.model.lifecycle import NODE_IS_THERE, AttemptState, NodeState
from rota.model.limits import BLOCK_TASKS, SHORT_RUN_US
from rota.model.move import MoveOrder
from rota.model.move_wait import wait_of
from rota.model.neighbours import NOWHERE
from rota.model.node import Eligibility, Link, Load, NodeSpec, NodeStatus, NodeWish, Unwelcome
from rota.model.phase import AFTER_ENDS, FIRST_END, Cells, Hold, Phase, cells
from rota.model.pins import PinBlock, grown
from rota.model.plan import Record
from rota.model.recovery import JobAnswers
from rota.model.result import Result
from rota.model.rollout import JobFormer, JobRollout
from rota.model.serve import Group
from rota.model.shape import Line, RunMode
from rota.model.task import TaskBlock

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
_LINE, _ROOM, _LEAVING = int(Hold.A_PLACE_IN_LINE), int(Hold.ROOM), int(Hold.ROOM_FOR_NOW)


class Move:
    """By how much attempts of one block changed what they hold of one node."""

    def __init__(self) -> None:
        self.room = 0
        self.line = 0
        self.lent = 0  # of `room`: what may have to give way
        self.leaving = 0  # of `room`: what does
        self.gave_room = False  # or a place in the line of the node, which short tasks wait for too

    def shift(self, before: int, now: int) -> None:
        """Numbers of Hold: whatever is at least ROOM holds room."""
        self.room += (now >= _ROOM) - (before >= _ROOM)
        self.line += (now == _LINE) - (before == _LINE)
        self.lent += (now == _ROOM) - (before == _ROOM)
        self.leaving += (now == _LEAVING) - (before == _LEAVING)
        self.gave_room |= before >= _ROOM > now or before == _LINE != now


class Devices(NamedTuple):
    """GPUs that are reserved for one attempt."""

    slot: int  # of its node
    share: int  # thousandths of each, as the spec asked when they were reserved
    devices: int  # one bit each


class JobTally:
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
        self.kept = Kept()  # what it counts for in the account of its namespace
        self.wish: JobWish | None = None
        self.cluster: JobCluster | None = None
        self.status: JobStatus | None = None
        self.verdict: JobVerdict | None = None
        self.unplaceable: Unplaceable | None = None
        self.answers: JobAnswers | None = None
        self.results: dict[tuple[int, int], Result] = {}  # by index and attempt
        self.results_bytes = 0
        self.former: JobFormer | None = None
        self.rollout: JobRollout | None = None
        self.adoption: JobAdoption | None = None
        self.tasks: dict[int, TaskBlock] = {}
        self.attempts: dict[int, AttemptBlock] = {}
        self.statuses: dict[int, StatusBlock] = {}
        self.phases: dict[int, bytes] = {}  # by block; a block without an entry is all pending
        self.holds: dict[int, bytes] = {}
        self._pins = Pins()
        self.tally = JobTally(spec.count)
        self.run_us: float | None = None  # how long its tasks run, a moving mean
        self.started_at_ms: int | None = None  # the earliest start of any attempt
        self.fresh = 0  # the lowest index that was never placed
        self.has_gaps = False  # some tasks have ended and were never placed
        self.again: dict[int, dict[int, int]] = {}  # by block: placed, pending again -> not before
        self._again_count = 0  # entries of `again`
        # A heap of (not before, index); an entry is void if `again` says otherwise.
        self._pauses: list[tuple[int, int]] = []
        self.in_line: Line | None = None  # the line it waits in
        self.in_group: tuple[str, Group] | None = None  # of the index of unfinished jobs by cluster
        self.resumes_ms: int | None = None  # when a pause ends after which its line is to be tried
        self.is_parked = False  # our own code failed on it: it is not offered to the scheduler
        self.on: dict[NodeId, int] = {}  # live attempts by node
        self.moving: dict[int, MoveOrder] = {}  # by index: moves that are not carried out yet
        self.devices: dict[int, Devices] = {}  # by index; only of attempts that hold some
        self.counted = NOWHERE
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
        parts = (self.wish, *decided, self.answers, self.former, self.rollout, self.adoption)
        yield from (part for part in parts if part is not None)
        yield from self.pins.values()

    def adopt(self, record: JobAdoption) -> None:
        """Of an adopted job any task may have been placed or not, whatever its index."""
        self.adoption = record
        self.has_gaps = True

    def report(self, result: Result) -> None:
        self.results[result.index, result.attempt] = result
        self.results_bytes += result.size

    def keep(self, record: TaskBlock | AttemptBlock | StatusBlock) -> None:
        """Since it was written there may be more tasks."""
        size = self.spec.block_size(record.block)
        match record:
            case TaskBlock():
                self.tasks[record.block] = widened(record, size)
                self._note_pauses(self.tasks[record.block])
            case AttemptBlock():
                self.attempts[record.block] = widened(record, size)
            case StatusBlock():
                self._note_starts(record)
                self.statuses[record.block] = widened(record, size)

    def _note_pauses(self, new: TaskBlock) -> None:
        """Of what is pending: a pause may have been cut short."""
        again = self.again.get(new.block)
        if again:
            for index, before_ms in list(again.items()):
                now_ms = self._not_before_ms(index, new)
                if now_ms != before_ms:
                    self._pause(again, index, now_ms)

    def _note_starts(self, new: StatusBlock) -> None:
        old = self.statuses.get(new.block)
        if old is None or old.started_at_ms != new.started_at_ms:
            first = min((start for start in ints(new, "started_at_ms") if start), default=None)
            if first is not None:
                self.started_at_ms = min(first, self.started_at_ms or first)

    def revise(self, spec: JobSpec) -> None:
        """The spec is another; tasks may have been added to it, never taken away, but perhaps unwanted."""
        if self.cluster is not None:
            spec = at_home(spec, self.cluster.cluster)
        if spec.kind is Kind.SYSTEM:  # its tasks come with its nodes
            spec = grown(spec, self.spec.count - spec.count)
        self.tally.by_phase[_PENDING] += spec.count - self.spec.count
        self.spec = spec
        self.counted_version = -1
        records: tuple[TaskBlock | AttemptBlock | StatusBlock, ...]
        records = (*self.tasks.values(), *self.attempts.values(), *self.statuses.values())
        for record in records:
            self.keep(record)
        for known in (self.phases, self.holds):
            known.update({block: old.ljust(spec.block_size(block), b"\0") for block, old in known.items()})
        self._bound()

    def _bound(self) -> None:
        """Tasks beyond what is wanted have no record of that: the spec tells, as long as it does."""
        for block in range(self.spec.blocks if self.spec.kept is not None else 0):
            size, attempt = self.spec.block_size(block), self.attempts.get(block)
            before = self.phases.get(block) or bytes(size)
            now = self.bounded(block, cells(size, self.tasks.get(block), attempt, self.statuses.get(block)))
            changed = changes(before, now.phase)
            self.tally.shift(before, now.phase, changed)
            if attempt is not None:
                self.place_again(attempt, changed, now.phase)
            else:
                self.has_gaps |= bool(changed)
            if changed:
                self.phases[block] = now.phase

    def bounded(self, block: int, found: Cells) -> Cells:
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

    def place_again(self, attempt: AttemptBlock, positions: list[int], phase: bytes) -> None:
        """Of the tasks at these positions that were ever placed: which are pending again, from when on."""
        first = attempt.block * BLOCK_TASKS
        number = ints(attempt, "number")
        task = self.tasks.get(attempt.block)
        again = self.again.setdefault(attempt.block, {})
        for position in positions:
            index = first + position
            if not number[position]:
                self.has_gaps |= phase[position] != _PENDING
                continue
            if self.adoption is None:
                self.fresh = max(self.fresh, index + 1)
            if phase[position] == _PENDING:
                self._again_count += index not in again
                self._pause(again, index, self._not_before_ms(index, task))
            else:
                self._again_count -= again.pop(index, None) is not None
        if not again:
            del self.again[attempt.block]

    def _not_before_ms(self, index: int, task: TaskBlock | None) -> int:
        """Cluster time from which a pending task may be placed on any node.

        Until the wait of its move is over a moved task is in no line: the scheduler places it apart from the
        others, where its move says. So a line holds only tasks that may go to the same nodes.
        """
        position = index % BLOCK_TASKS
        move = self.moving.get(index)
        wait = None if move is None else wait_of(move, task, position)
        if wait is not None:
            return wait.until_ms
        return 0 if task is None else ints(task, "not_before")[position]

    def note_moves(self, moves: Mapping[int, MoveOrder]) -> None:
        """Keep those of these moves that are not carried out yet; the tasks of the others may go anywhere."""
        before = self.moving
        self.moving = {index: move for index, move in moves.items() if self._is_moving(index, move)}
        for index in before.keys() - self.moving.keys():
            block = index // BLOCK_TASKS
            again = self.again.get(block, {})
            if index in again:
                self._pause(again, index, self._not_before_ms(index, self.tasks.get(block)))

    def move_waits_end_ms(self, now_ms: int) -> list[int]:
        """For each pending task that is still between two nodes: the cluster time at which that wait ends."""
        ends = (self.again.get(index // BLOCK_TASKS, {}).get(index, 0) for index in self.moving)
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

    def _pause(self, again: dict[int, int], index: int, until_ms: int) -> None:
        again[index] = until_ms
        heapq.heappush(self._pauses, (until_ms, index))

    def forget_again(self, block: int) -> None:
        """The block is about to be looked at as if for the first time."""
        self._again_count -= len(self.again.pop(block, {}))

    def held(self, block: int) -> bytes:
        """By each of its tasks; nothing while that is being found out."""
        return self.holds.get(block, b"")

    @property
    def pinned(self) -> dict[NodeId, int]:
        return self._pins.index

    @property
    def pins(self) -> dict[int, PinBlock]:
        return self._pins.blocks

    def pin(self, record: PinBlock) -> None:
        """Tasks come with their nodes."""
        more = self._pins.take(record)
        self.spec = grown(self.spec, more)
        self.tally.by_phase[_PENDING] += more

    def ready(self, now_ms: int, most: int) -> list[int]:
        if self._pins.blocks:
            return self._pins.pending(self.phases, self.again, now_ms)[:most]
        found: list[int] = []
        for block in sorted(self.again):
            if len(found) >= most:
                break
            found += sorted(index for index, at_ms in self.again[block].items() if at_ms <= now_ms)
        del found[most:]
        if not self.has_gaps:
            found += range(self.fresh, min(self.spec.count, self.fresh + most - len(found)))
            return found
        found += islice(self._never_placed(), most - len(found))
        return found

    def _never_placed(self) -> Iterator[int]:
        """Those that are pending, whole blocks at a time."""
        for block in range(self.fresh // BLOCK_TASKS, self.spec.blocks):
            phases = self.phases.get(block) or bytes(self.spec.block_size(block))
            if _PENDING in phases:
                first = block * BLOCK_TASKS
                indices = range(max(first, self.fresh), first + len(phases))
                placed = self.again.get(block, {})  # they pend again
                yield from (at for at in indices if phases[at - first] == _PENDING and at not in placed)

    @property
    def is_short(self) -> bool:
        """Whether its tasks are known to run so briefly that some may wait on a node for the next slot."""
        return self.run_us is not None and self.run_us <= SHORT_RUN_US

    def ready_ms(self) -> int:
        """Cluster time from which one of its pending tasks may be placed; 0: at once."""
        if self.tally.pending > self._again_count:  # some were never placed
            return 0
        while self._pauses:
            until_ms, index = self._pauses[0]
            if self.again.get(index // BLOCK_TASKS, {}).get(index) == until_ms:
                return until_ms
            heapq.heappop(self._pauses)
        return 0

    def next_pause_end_ms(self, now_ms: int) -> int | None:
        """Cluster time after `now_ms` at which the first of its tasks in a pause may be placed."""
        ends = (at_ms for block in self.again.values() for at_ms in block.values() if at_ms > now_ms)
        return min(ends, default=None)

    def all_ready_ms(self) -> int:
        """The same of all of them at once."""
        return max((at_ms for block in self.again.values() for at_ms in block.values()), default=0)


def touched_by(before: JobWish | None, now: JobWish, blocks: Iterable[int]) -> Iterable[int]:
    """Blocks of whose attempts something else is wished."""
    old = before or JobWish(now.id)
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
        self.wish: NodeWish | None = None
        self.status: NodeStatus | None = None
        self.link = Link.UNKNOWN
        self.heard_at_ms = 0
        self.load: Load | None = None
        self.measured_at_ms = 0  # cluster time at which `load` was reported
        self.report_ms = 0  # how often it was told to measure that; 0: not yet
        self.assigned: dict[tuple[JobId, int], int] = {}
        self.retires = False  # its machine is about to be ended
        self.refused: Unwelcome | None = None  # it calls, and may not come in
        self.parting: str | None = None  # why it closed its last connection, as it said itself
        self.left_at: tuple[int, int] | None = None  # revision and index of the event that told of its leave
        self.counted: tuple[str, NodeState] | None = None  # its cluster and state, as they were last counted

    def records(self) -> Iterator[Record]:
        """All that is on disk about it."""
        yield self.spec
        yield from (part for part in (self.wish, self.status) if part is not None)

    def refuse(self, why: Unwelcome | None) -> None:
        self.refused = why

    def part(self, reason: str) -> None:
        self.parting = reason

    def paced(self, report_ms: int) -> None:
        self.report_ms = report_ms

    @property
    def revoked(self) -> bool:
        return self.wish is not None and self.wish.revoked

    @property
    def drains(self) -> bool:
        wished = self.wish is not None and self.wish.drains
        return wished or self.retires or (self.status is not None and self.status.leaving)

    @property
    def open(self) -> bool:
        status = self.status
        ready = status is not None and status.state is NodeState.READY
        return ready and self.link is Link.UP and self.expected

    @property
    def expected(self) -> bool:
        """Whether it takes new work, or would if its connection were up."""
        wished = self.wish is None or self.wish.eligibility is Eligibility.OPEN
        status = self.status
        there = status is not None and status.state in NODE_IS_THERE and status.welcomes
        return wished and there and not self.retires
