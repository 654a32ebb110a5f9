"""Queues whose head found no node, as columns -> those that may fit since free resources have grown.

A round must not try every blocked queue again after each change, and must never miss one that could start. So
each entry records the free amounts with which it was tried, and a queue is tried again only where a node
offers more than that.
"""

from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np

from rota.model.affinity import Repulsion
from rota.model.amounts import GPU, TASKS
from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import QueueRank
from rota.model.limits import PREEMPT_MARGIN
from rota.model.plan import Instant
from rota.model.shape import Constraint, QueueKey, Shape
from rota.scheduler.placement.board import TASKS_ROW, Board
from rota.scheduler.placement.filters import UNSATISFIABLE, matching_nodes
from rota.scheduler.policy.backfill import BackfillReservation

_UNTRIED = -1  # less of everything than any task needs: whatever is free counts as growth
_MANY = 64  # grown nodes: beyond it a queue is tried if it fits into the maximum amounts of all of them
_ROWS_MIN = 64
_NO_EXPECTED_TIME = np.iinfo(np.int64).max
_NO_MASK: tuple[tuple[int, int], Array] = ((-1, -1), np.zeros(0, np.bool_))

NodeConditions = tuple[tuple[Constraint, ...], tuple[str, ...], str]  # constraints, tolerations, cluster


class FailedTrial(NamedTuple):
    """The circumstances in which the head of a queue found no node."""

    rank: QueueRank  # of its first job
    behind_reservation: bool = False  # resources were held back for the head of line
    repelled_by: Set[tuple[Repulsion, ...]] = frozenset()  # of each job, where all were repelled
    any_change_may_help: bool = False  # amounts alone do not decide: GPUs, filter plugins, pinned tasks
    may_use_lookahead: bool = False  # its tasks may queue on a node, unless resources there are held back


class TriedAmounts(NamedTuple):
    """Free amounts with which queues were tried without success, by resource and slot."""

    plain: Array
    behind_reservation: Array  # the same for queues that a reservation held resources back from

    def mark_untried(self, slots: Array) -> None:
        self.plain[:, slots] = self.behind_reservation[:, slots] = _UNTRIED

    def max_with(self, now: "TriedAmounts") -> "TriedAmounts":
        return TriedAmounts(
            _max_amounts(self.plain, now.plain), _max_amounts(self.behind_reservation, now.behind_reservation)
        )


class BlockedQueues:
    """One row per queue.

    Invariant: no task of a blocked queue can start on any node with the amounts that are `_tried` there, and
    no gang with the amounts of all nodes that were tried last. A node has grown for a queue if the queue
    needs no more than it may use there now, and more than what was tried. So resources that are allocated and
    released again cost no further trial, however many queues are blocked.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._row: dict[QueueKey, int] = {}
        self._queues: list[QueueKey | None] = []  # by row
        self._trials: list[FailedTrial] = []
        self._unused: list[int] = []
        self._needs: Array = np.zeros((0, 0), np.int64)  # by row and resource
        self._rank: Array = np.zeros((0, 3), np.int64)
        self._expect_ms: Array = np.zeros(0, np.int64)
        self._behind: Array = np.zeros(0, np.bool_)  # by row: it was last tried behind a reservation
        self._any_change: Array = np.zeros(0, np.bool_)
        self._gang: Array = np.zeros(0, np.bool_)
        self._lookahead: Array = np.zeros(0, np.bool_)
        self._conditions: Array = np.zeros(0, np.intp)
        self._condition_numbers: dict[NodeConditions, int] = {}
        # By conditions: version, mask of matching nodes.
        self._masks: list[tuple[tuple[int, int], Array]] = []
        self._tried = self._tried_last = TriedAmounts(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))
        self._acceptance_versions: Array = np.zeros(0, np.int64)  # by slot: version with which it was tried
        self._position = -1  # of the board's log
        self._capacity_version = -1  # of the node table
        self._reservation: BackfillReservation | None = None  # of the last round
        self.head_changed = False  # since then: which rows are behind a reservation is not known
        self._tried_reduced = False  # this round tried queues after others had allocated
        self._top_priority = -1  # upper bound of the priorities of all rows

    def __contains__(self, queue: QueueKey) -> bool:
        return queue in self._row

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self._row)

    def failed_trial(self, queue: QueueKey) -> FailedTrial:
        return self._trials[self._row[queue]]

    def add(self, queue: QueueKey, trial: FailedTrial) -> None:
        self._resize_to_board()
        row = self._row.get(queue)
        if row is None:
            row = self._row[queue] = self._unused.pop() if self._unused else self._append_row()
        self._queues[row], self._trials[row] = queue, trial
        self._needs[row] = self._needs_of(queue.shape)
        self._rank[row] = trial.rank
        # The queue was tried in the middle of a round, when others had allocated: only
        # the smaller amounts were seen.
        self._tried_reduced = True
        self._top_priority = max(self._top_priority, -trial.rank[0])
        self._expect_ms[row] = _NO_EXPECTED_TIME if queue.expect_ms is None else queue.expect_ms
        self._behind[row], self._any_change[row] = trial.behind_reservation, trial.any_change_may_help
        self._gang[row], self._lookahead[row] = queue.gang > 0, trial.may_use_lookahead
        self._conditions[row] = self._number_of_conditions(queue.shape)

    def remove(self, queue: QueueKey) -> None:
        row = self._row.pop(queue, None)
        if row is not None:
            self._queues[row] = None
            # The row stays in the columns and must match no node until it is reused.
            self._needs[row, TASKS_ROW] = UNSATISFIABLE
            self._unused.append(row)

    def has_changed(self, head: JobId | None, now: Instant) -> bool:
        """Whether a node or the head of line has changed since all queues were tried."""
        board, previous = self._board, self._reservation
        if self.head_changed or head != _reserved_job(previous):
            return True
        # The head of line starts later than expected.
        if previous is not None and previous.at_ms <= now.wall_ms:
            return True
        if (
            self._position != board.log_position
            or self._capacity_version != board.node_table.capacity_version
        ):
            return True
        return self._acceptance_versions.size != board.size or bool(
            (board.node_table.acceptance_version[: board.size] != self._acceptance_versions).any()
        )

    def find_startable(self, reservation: BackfillReservation | None, now: Instant) -> list[QueueKey]:
        """Queues that might start now; they stay blocked until they are tried."""
        self._resize_to_board()
        board, table = self._board, self._board.node_table
        releases = self.head_changed or bool(
            _reserved_slots(self._reservation) - _reserved_slots(reservation)
        )
        self._reservation, self.head_changed = reservation, False
        fresh = np.nonzero(table.acceptance_version[: board.size] != self._acceptance_versions)[0]
        # A node that opened, or whose refusals ended, accepts tasks that it did not accept
        # with the same amounts before.
        self._tried.mark_untried(fresh)
        self._tried_last.mark_untried(fresh)
        behind = self._behind_reservation(reservation, now)
        beside = board.free if reservation is None else _beside_reservation(board.free, board, reservation)
        found = np.zeros(behind.size, np.bool_)
        # A gang needs several nodes at once. That no task fitted a node once says nothing about a sum, so
        # gangs compare with the amounts of the last round only.
        for tried, kind in ((self._tried, ~self._gang), (self._tried_last, self._gang)):
            for rows, free in ((kind & ~behind, board.free), (kind & behind, beside)):
                found |= self._newly_fitting(free, tried.plain, rows & ~self._behind)
                found |= self._newly_fitting(free, tried.behind_reservation, rows & self._behind)
        # Behind a reservation a trial does not evict others, does not restart a gang as a whole, and sends no
        # lookahead tasks to nodes with reserved resources: those rows have to be tried again without one.
        found |= (self._preempts() | self._gang | self._lookahead) & self._behind & ~behind
        if releases:
            found |= self._lookahead & self._behind
        # A queue that was tried behind a reservation saw smaller amounts than others. That stays true until
        # it is tried again, also after the reservation has ended.
        self._behind = self._behind | behind
        changed = board.changed_since(self._position)
        slots = np.arange(board.size) if changed is None else changed
        if slots.size and self._any_change.any():
            # Amounts do not decide about these rows, so any changed node is a reason; the
            # maximum only rules out hopeless ones.
            found |= self._any_change & self._fitting(board.free[:, slots].max(axis=1, initial=0))
        found |= self._may_preempt(
            slots if table.capacity_version == self._capacity_version else np.arange(board.size)
        )
        return [queue for row in np.nonzero(found)[0].tolist() if (queue := self._queues[row]) is not None]

    def may_still_fit(self, queue: QueueKey) -> bool:
        """Whether the queue might still start, after other jobs were placed in this round."""
        row = self._row[queue]
        # For these, what is free on one node does not tell whether they could start.
        if self._any_change[row] or self._gang[row] or self._lookahead[row] or self._preempts()[row]:
            return True
        fits = bool((self._needs[row][:, None] <= self._board.free).all(axis=0).any())
        # Skipped is not tried: the amounts at the start of the round must not be
        # recorded as tried for this queue.
        self._tried_reduced |= not fits
        return fits

    def end_round(self, before: Array, reservation: BackfillReservation | None) -> None:
        """Record the amounts that all blocked queues were tried with.

        `before` is what was free at the start.
        """
        self._resize_to_board()
        board, previous = self._board, self._reservation
        # A queue tried early saw more than one tried late: only the minimum was seen by all of them.
        plain = behind = np.minimum(before, board.free)
        for each in (previous, reservation):  # the head of line may have changed during the round
            if each is not None:
                behind = _beside_reservation(behind, board, each)
        self._tried_last = TriedAmounts(plain, behind.copy())
        if self._tried_reduced:
            self._tried = TriedAmounts(plain.copy(), behind)
        else:
            behind = before if previous is None else _beside_reservation(before, board, previous)
            # No queue was tried with less, so what failed before still fails: the
            # larger amounts remain valid.
            self._tried = self._tried.max_with(TriedAmounts(before, behind))
        self._tried_reduced = False
        self.head_changed = _reserved_job(reservation) != _reserved_job(previous)
        self._reservation = reservation
        self._acceptance_versions = board.node_table.acceptance_version[: board.size].copy()
        self._position, self._capacity_version = board.log_position, board.node_table.capacity_version

    def _behind_reservation(self, reservation: BackfillReservation | None, now: Instant) -> Array:
        """Mask of the rows that the reservation holds resources back from."""
        if reservation is None:
            return np.zeros(self._behind.size, np.bool_)
        (first, second, third), (a, b, c) = self._rank.T, reservation.rank
        later: Array = (first > a) | ((first == a) & ((second > b) | ((second == b) & (third > c))))
        return later & (self._expect_ms > reservation.at_ms - now.wall_ms)

    def _newly_fitting(self, free: Array, tried: Array, rows: Array) -> Array:
        """Of these rows, those that fit on a node that offers more than was tried."""
        found: Array = np.zeros(rows.size, np.bool_)
        if not rows.any():
            return found
        grew = np.nonzero((free > tried).any(axis=0))[0]
        # An overestimate: a queue may be tried for nothing, but the check stays one
        # comparison at any number of nodes.
        if grew.size > _MANY:
            return rows & self._fitting(free[:, grew].max(axis=1))
        known: Array = ~(self._gang | self._any_change)
        for slot in grew.tolist():
            able = rows & self._fitting(free[:, slot]) & ~found & ~(known & self._fitting(tried[:, slot]))
            found = found | self._keep_eligible(able, slot)
        return found

    def _fitting(self, amounts: Array) -> Array:
        fits: Array = np.logical_and.reduce(self._needs <= amounts, axis=1)
        return fits

    def _keep_eligible(self, rows: Array, slot: int) -> Array:
        """Of these rows, those whose constraints and tolerations the node satisfies."""
        if not rows.any():
            return rows
        several = len(self._condition_numbers) > 1
        for conditions in np.unique(self._conditions[rows]).tolist() if several else (0,):
            if not self._eligible_nodes(conditions, self._shape_of(rows, conditions))[slot]:
                rows &= self._conditions != conditions
        return rows

    def _number_of_conditions(self, shape: Shape) -> int:
        """The number of the shape's conditions.

        Numbers of removed queues are dropped when they are the majority.
        """
        key = (shape.where, shape.tolerate, shape.cluster)
        number = self._condition_numbers.get(key)
        if number is not None:
            return number
        # Amortised: numbers are assigned again only when most of them belong to queues that are gone.
        if len(self._condition_numbers) > 2 * len(self._row) + _ROWS_MIN:
            self._condition_numbers.clear()
            self._masks.clear()
            for queue, row in self._row.items():
                self._conditions[row] = self._number_of_conditions(queue.shape)
            return self._number_of_conditions(shape)
        self._masks.append(_NO_MASK)
        return self._condition_numbers.setdefault(key, len(self._condition_numbers))

    def _shape_of(self, rows: Array, conditions: int) -> Shape:
        queue = self._queues[int(np.nonzero(rows & (self._conditions == conditions))[0][0])]
        assert queue is not None, "a removed row needs more than any node has"
        return queue.shape

    def _eligible_nodes(self, conditions: int, shape: Shape) -> Array:
        """Mask of the nodes that satisfy the conditions of this shape; cached until labels change."""
        table = self._board.node_table
        version = (table.labels_version, table.size)
        if self._masks[conditions][0] != version:
            only_conditions = Shape((), shape.where, tolerate=shape.tolerate, cluster=shape.cluster)
            self._masks[conditions] = (version, matching_nodes(table, only_conditions))
        return self._masks[conditions][1]

    def _may_preempt(self, slots: Array) -> Array:
        """Mask of the rows that would fit on these nodes if all preemptible usage there were evicted."""
        evicts = self._preempts()
        if not slots.size or not evicts.any():
            return evicts & False
        board, preemptible = self._board, self._board.node_table.preemptible
        free = board.free.copy()
        for resource, row in ((TASKS, TASKS_ROW), *board.rows.items()):
            free[row] += preemptible.below(UNSATISFIABLE, resource, board.size)
        return evicts & self._fitting(free[:, slots].max(axis=1, initial=0))

    def _preempts(self) -> Array:
        """Mask of the rows whose priority is high enough to evict some live task."""
        levels = self._board.node_table.preemptible.by_priority.items()
        lowest = min((level for level, columns in levels if _any_nonzero(columns.get(TASKS))), default=None)
        if lowest is None or self._top_priority < lowest + PREEMPT_MARGIN:
            return np.zeros(self._behind.size, np.bool_)
        evicts: Array = -self._rank[:, 0] >= lowest + PREEMPT_MARGIN
        return evicts

    def _needs_of(self, shape: Shape) -> Array:
        needs = self._board.needs(shape)
        if any(amount > 0 and self._board.row(resource) is None for resource, amount in shape.needs):
            needs[TASKS_ROW] = UNSATISFIABLE
        return needs

    def _resize_to_board(self) -> None:
        """Adapt all columns to the board: nodes or resources may have been added."""
        board, (rows, width) = self._board, self._tried.plain.shape
        if (self._needs.shape[1], rows, width) == (board.row_count, board.row_count, board.size):
            return
        if self._needs.shape[1] != board.row_count:
            width = 0
            self._needs = np.zeros((self._behind.size, board.row_count), np.int64)
            self._needs[:, TASKS_ROW] = UNSATISFIABLE
            for queue, row in self._row.items():
                self._needs[row] = self._needs_of(queue.shape)
        self._tried = _resized(self._tried, board.row_count, board.size, width)
        self._tried_last = _resized(self._tried_last, board.row_count, board.size, width)
        versions = np.full(board.size, -1, np.int64)
        versions[:width] = self._acceptance_versions[:width]
        # -1 for new nodes, which no queue has been tried with.
        self._acceptance_versions = versions

    def _append_row(self) -> int:
        row = len(self._queues)
        self._queues.append(None)
        self._trials.append(FailedTrial((0, 0, 0)))
        if row >= self._behind.size:
            self._grow_columns(max(_ROWS_MIN, row))
        return row

    def _grow_columns(self, more: int) -> None:
        def longer(column: Array) -> Array:
            return np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)])

        size = self._behind.size
        self._needs = longer(self._needs)
        self._needs[size:, TASKS_ROW] = UNSATISFIABLE
        self._rank, self._expect_ms = longer(self._rank), longer(self._expect_ms)
        self._behind, self._any_change = longer(self._behind), longer(self._any_change)
        self._gang, self._lookahead = longer(self._gang), longer(self._lookahead)
        self._conditions = longer(self._conditions)


def _reserved_job(reservation: BackfillReservation | None) -> JobId | None:
    return None if reservation is None else reservation.job


def _reserved_slots(reservation: BackfillReservation | None) -> Set[int]:
    """Slots of the nodes on which resources are reserved."""
    return frozenset() if reservation is None else reservation.slots.keys()


def needs_gpus(shape: Shape) -> bool:
    return any(resource == GPU and amount for resource, amount in shape.needs)


def _any_nonzero(column: Array | None) -> bool:
    return column is not None and bool(column.any())


def _resized(tried: TriedAmounts, rows: int, size: int, kept: int) -> TriedAmounts:
    """The same amounts for more nodes; new ones are untried."""
    found = TriedAmounts(*(np.full((rows, size), _UNTRIED, np.int64) for _ in range(2)))
    for old, new in zip(tried, found, strict=True):
        if kept:
            new[:, :kept] = old
    return found


def _max_amounts(tried: Array, now: Array) -> Array:
    """By node: the earlier amounts if they were larger in every resource, else those of now."""
    found: Array = np.where(np.logical_and.reduce(tried >= now, axis=0), tried, now)
    return found


def _beside_reservation(free: Array, board: Board, reservation: BackfillReservation) -> Array:
    """The part of the free amounts that a job behind the reservation may use."""
    found = free.copy()
    for slot, left in reservation.slots.items():
        beside = np.array([left.get(resource, 0) for resource in (TASKS, *board.rows)], np.int64)
        found[:, slot] = np.minimum(found[:, slot], beside)
    return found
