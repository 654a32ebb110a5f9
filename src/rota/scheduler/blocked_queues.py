"""Lines that were tried in vain, as columns: which of them might fit now that room has grown somewhere?"""

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

_UNTRIED = -1  # of every amount: less than any task needs
_MANY = 64  # grown nodes: from here on a line is tried if it fits into the largest amounts of all of them
_ROWS_MIN = 64
_NO_EXPECTED_TIME = np.iinfo(np.int64).max
_NO_MASK: tuple[tuple[int, int], Array] = ((-1, -1), np.zeros(0, np.bool_))

NodeConditions = tuple[
    tuple[Constraint, ...], tuple[str, ...], str
]  # what labels and taints are held against


class FailedTrial(NamedTuple):
    """How a line was tried in vain."""

    rank: QueueRank  # of its first job
    behind_reservation: bool = False  # some room was held back for the head of the queue
    repelled_by: Set[tuple[Repulsion, ...]] = frozenset()  # by whom each of its jobs was, where all were
    any_change_may_help: bool = (
        False  # amounts alone do not tell whether a change of a node helps: GPUs, filters, bound tasks
    )
    may_use_lookahead: bool = False  # its tasks may also wait on a node, unless some of its room is held back


class TriedAmounts(NamedTuple):
    """Amounts with which lines were tried in vain, by resource and slot."""

    plain: Array
    behind_reservation: Array  # the same of lines that a promise held room back from

    def mark_untried(self, slots: Array) -> None:
        self.plain[:, slots] = self.behind_reservation[:, slots] = _UNTRIED

    def max_with(self, now: "TriedAmounts") -> "TriedAmounts":
        return TriedAmounts(
            _max_amounts(self.plain, now.plain), _max_amounts(self.behind_reservation, now.behind_reservation)
        )


class BlockedQueues:
    """One row per line.

    Invariant: no task of a line of the table can start on any node with the amounts that are `_tried` there,
    and no gang with the amounts of all nodes that were tried last. A node has grown for a line if the line
    needs no more than it may have there now and more than what was tried. So room that is taken and given
    back costs no further try, however many lines wait.
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
        self._behind: Array = np.zeros(0, np.bool_)  # by row: it was last tried behind a promise
        self._any_change: Array = np.zeros(0, np.bool_)
        self._gang: Array = np.zeros(0, np.bool_)
        self._lookahead: Array = np.zeros(0, np.bool_)
        self._conditions: Array = np.zeros(0, np.intp)
        self._condition_numbers: dict[NodeConditions, int] = {}
        self._masks: list[tuple[tuple[int, int], Array]] = []  # by admission: version, nodes that admit it
        self._tried = self._tried_last = TriedAmounts(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))
        self._acceptance_versions: Array = np.zeros(0, np.int64)  # of the room, as they were tried
        self._position = -1  # of the board's log
        self._capacity_version = -1  # of the room
        self._reservation: BackfillReservation | None = None  # as it was when lines were last looked at
        self.head_changed = False  # since then: who is behind a promise is not known
        self._tried_reduced = False  # lines were tried in this round when others had taken some of the room
        self._top_priority = -1  # no line has a higher one

    def __contains__(self, queue: QueueKey) -> bool:
        return queue in self._row

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self._row)

    def failed_trial(self, queue: QueueKey) -> FailedTrial:
        """How it was tried."""
        return self._trials[self._row[queue]]

    def add(self, queue: QueueKey, trial: FailedTrial) -> None:
        self._resize_to_board()
        row = self._row.get(queue)
        if row is None:
            row = self._row[queue] = self._unused.pop() if self._unused else self._append_row()
        self._queues[row], self._trials[row] = queue, trial
        self._needs[row] = self._needs_of(queue.shape)
        self._rank[row] = trial.rank
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
            self._needs[row, TASKS_ROW] = UNSATISFIABLE
            self._unused.append(row)

    def has_changed(self, head: JobId | None, now: Instant) -> bool:
        """Whether anything has changed since all lines were tried: a node, or the head of the queue."""
        board, held_back = self._board, self._reservation
        if self.head_changed or head != _reserved_job(held_back):
            return True
        if held_back is not None and held_back.at_ms <= now.wall_ms:  # it will start later than was thought
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
        """Lines that might start now."""
        self._resize_to_board()
        board, room = self._board, self._board.node_table
        lets_go = self.head_changed or bool(_reserved_slots(self._reservation) - _reserved_slots(reservation))
        self._reservation, self.head_changed = reservation, False
        fresh = np.nonzero(room.acceptance_version[: board.size] != self._acceptance_versions)[0]
        self._tried.mark_untried(fresh)
        self._tried_last.mark_untried(fresh)
        behind = self._behind_reservation(reservation, now)
        beside = board.free if reservation is None else _beside_reservation(board.free, board, reservation)
        found = np.zeros(behind.size, np.bool_)
        for tried, kind in ((self._tried, ~self._gang), (self._tried_last, self._gang)):
            for rows, free in ((kind & ~behind, board.free), (kind & behind, beside)):
                found |= self._newly_fitting(free, tried.plain, rows & ~self._behind)
                found |= self._newly_fitting(free, tried.behind_reservation, rows & self._behind)
        # Behind a promise it was not tried to evict others, to start a gang again as a whole, or to let short
        # tasks wait on the nodes that it holds room back on.
        found |= (self._preempts() | self._gang | self._lookahead) & self._behind & ~behind
        if lets_go:
            found |= self._lookahead & self._behind
        # A line that was tried behind a promise has seen less room than others: that holds until it is tried
        # again, also when the promise is over.
        self._behind = self._behind | behind
        changed = board.changed_since(self._position)
        slots = np.arange(board.size) if changed is None else changed
        if slots.size and self._any_change.any():
            found |= self._any_change & self._fitting(board.free[:, slots].max(axis=1, initial=0))
        found |= self._may_preempt(
            slots if room.capacity_version == self._capacity_version else np.arange(board.size)
        )
        return [line for row in np.nonzero(found)[0].tolist() if (line := self._queues[row]) is not None]

    def may_still_fit(self, queue: QueueKey) -> bool:
        """Whether it might start still, after others were placed in this round."""
        row = self._row[queue]
        if self._any_change[row] or self._gang[row] or self._lookahead[row] or self._preempts()[row]:
            return True
        fits = bool((self._needs[row][:, None] <= self._board.free).all(axis=0).any())
        self._tried_reduced |= not fits
        return fits

    def end_round(self, before: Array, reservation: BackfillReservation | None) -> None:
        """All that might have started have had their turn; `before` is what was free when that began."""
        self._resize_to_board()
        board, held_back = self._board, self._reservation
        plain = behind = np.minimum(before, board.free)
        for one in (held_back, reservation):  # another job may be the head of the queue by now
            if one is not None:
                behind = _beside_reservation(behind, board, one)
        self._tried_last = TriedAmounts(plain, behind.copy())
        if self._tried_reduced:
            self._tried = TriedAmounts(plain.copy(), behind)
        else:
            behind = before if held_back is None else _beside_reservation(before, board, held_back)
            self._tried = self._tried.max_with(TriedAmounts(before, behind))
        self._tried_reduced = False
        self.head_changed = _reserved_job(reservation) != _reserved_job(held_back)
        self._reservation = reservation
        self._acceptance_versions = board.node_table.acceptance_version[: board.size].copy()
        self._position, self._capacity_version = board.log_position, board.node_table.capacity_version

    def _behind_reservation(self, reservation: BackfillReservation | None, now: Instant) -> Array:
        """Rows that the promise holds room back from."""
        if reservation is None:
            return np.zeros(self._behind.size, np.bool_)
        (first, second, third), (a, b, c) = self._rank.T, reservation.rank
        later: Array = (first > a) | ((first == a) & ((second > b) | ((second == b) & (third > c))))
        return later & (self._expect_ms > reservation.at_ms - now.wall_ms)

    def _newly_fitting(self, free: Array, tried: Array, rows: Array) -> Array:
        """Of these rows: those that fit into a node that has more than was tried."""
        found: Array = np.zeros(rows.size, np.bool_)
        if not rows.any():
            return found
        grew = np.nonzero((free > tried).any(axis=0))[0]
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
        """Of these rows: those whose conditions on labels and taints the node satisfies."""
        if not rows.any():
            return rows
        several = len(self._condition_numbers) > 1
        for admission in np.unique(self._conditions[rows]).tolist() if several else (0,):
            if not self._eligible_nodes(admission, self._shape_of(rows, admission))[slot]:
                rows &= self._conditions != admission
        return rows

    def _number_of_conditions(self, shape: Shape) -> int:
        """The number of its conditions. Those of lines that are gone are forgotten when they are most."""
        key = (shape.where, shape.tolerate, shape.cluster)
        number = self._condition_numbers.get(key)
        if number is not None:
            return number
        if len(self._condition_numbers) > 2 * len(self._row) + _ROWS_MIN:
            self._condition_numbers.clear()
            self._masks.clear()
            for line, row in self._row.items():
                self._conditions[row] = self._number_of_conditions(line.shape)
            return self._number_of_conditions(shape)
        self._masks.append(_NO_MASK)
        return self._condition_numbers.setdefault(key, len(self._condition_numbers))

    def _shape_of(self, rows: Array, admission: int) -> Shape:
        line = self._queues[int(np.nonzero(rows & (self._conditions == admission))[0][0])]
        assert line is not None, "rows of lines that are gone fit nowhere"
        return line.shape

    def _eligible_nodes(self, admission: int, shape: Shape) -> Array:
        """The nodes that admit tasks with the conditions of this shape."""
        room = self._board.node_table
        version = (room.labels_version, room.size)
        if self._masks[admission][0] != version:
            conditions = Shape((), shape.where, tolerate=shape.tolerate, cluster=shape.cluster)
            self._masks[admission] = (version, matching_nodes(room, conditions))
        return self._masks[admission][1]

    def _may_preempt(self, slots: Array) -> Array:
        """Rows that fit into what is free on these nodes and what others would have to give up there."""
        evicts = self._preempts()
        if not slots.size or not evicts.any():
            return evicts & False
        board, lent = self._board, self._board.node_table.preemptible
        free = board.free.copy()
        for resource, row in ((TASKS, TASKS_ROW), *board.rows.items()):
            free[row] += lent.below(UNSATISFIABLE, resource, board.size)
        return evicts & self._fitting(free[:, slots].max(axis=1, initial=0))

    def _preempts(self) -> Array:
        """Rows of so high a priority that others may have to give way."""
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
        """To the board: nodes may have come, or resources that were never heard of."""
        board, (rows, width) = self._board, self._tried.plain.shape
        if (self._needs.shape[1], rows, width) == (board.row_count, board.row_count, board.size):
            return
        if self._needs.shape[1] != board.row_count:
            width = 0
            self._needs = np.zeros((self._behind.size, board.row_count), np.int64)
            self._needs[:, TASKS_ROW] = UNSATISFIABLE
            for line, row in self._row.items():
                self._needs[row] = self._needs_of(line.shape)
        self._tried = _resized(self._tried, board.row_count, board.size, width)
        self._tried_last = _resized(self._tried_last, board.row_count, board.size, width)
        news = np.full(board.size, -1, np.int64)
        news[:width] = self._acceptance_versions[:width]
        self._acceptance_versions = news

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


def _reserved_slots(promised: BackfillReservation | None) -> Set[int]:
    """Slots of the nodes on which some room is held back."""
    return frozenset() if promised is None else promised.slots.keys()


def needs_gpus(shape: Shape) -> bool:
    return any(resource == GPU and amount for resource, amount in shape.needs)


def _any_nonzero(column: Array | None) -> bool:
    return column is not None and bool(column.any())


def _resized(tried: TriedAmounts, rows: int, size: int, kept: int) -> TriedAmounts:
    """For more nodes, which are untried."""
    found = TriedAmounts(*(np.full((rows, size), _UNTRIED, np.int64) for _ in range(2)))
    for old, new in zip(tried, found, strict=True):
        if kept:
            new[:, :kept] = old
    return found


def _max_amounts(tried: Array, now: Array) -> Array:
    """By node: what was tried before if that was more of everything, else what was tried now."""
    found: Array = np.where(np.logical_and.reduce(tried >= now, axis=0), tried, now)
    return found


def _beside_reservation(free: Array, board: Board, reservation: BackfillReservation) -> Array:
    """Of what is free: what a job behind the promise may have."""
    found = free.copy()
    for slot, left in reservation.slots.items():
        beside = np.array([left.get(resource, 0) for resource in (TASKS, *board.rows)], np.int64)
        found[:, slot] = np.minimum(found[:, slot], beside)
    return found
