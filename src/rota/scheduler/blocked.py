"""Lines that were tried in vain, as columns: which of them might fit now that room has grown somewhere?"""

from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np

from rota.model.amounts import GPU
from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import Turn
from rota.model.limits import PREEMPT_MARGIN
from rota.model.namespace import TASKS
from rota.model.neighbours import Repulsion
from rota.model.plan import Instant
from rota.model.shape import Constraint, Line, Shape
from rota.scheduler.backfill import Promise
from rota.scheduler.board import TASKS_ROW, Board
from rota.scheduler.filters import MORE_THAN_ANY, admitted

_UNTRIED = -1  # of every amount: less than any task needs
_MANY = 64  # grown nodes: from here on a line is tried if it fits into the largest amounts of all of them
_ROWS_MIN = 64
_NO_EXPECT = np.iinfo(np.int64).max
_NO_MASK: tuple[tuple[int, int], Array] = ((-1, -1), np.zeros(0, np.bool_))

Admission = tuple[tuple[Constraint, ...], tuple[str, ...], str]  # what labels and taints are held against


class Try(NamedTuple):
    """How a line was tried in vain."""

    turn: Turn  # of its first job
    behind: bool = False  # some room was held back for the head of the queue
    kept_away: Set[tuple[Repulsion, ...]] = frozenset()  # by whom each of its jobs was, where all were
    anywhere: bool = (
        False  # amounts alone do not tell whether a change of a node helps: GPUs, filters, bound tasks
    )
    ahead: bool = False  # its tasks may also wait on a node, unless some of its room is held back


class Tried(NamedTuple):
    """Amounts with which lines were tried in vain, by resource and slot."""

    plain: Array
    behind: Array  # the same of lines that a promise held room back from

    def untried(self, slots: Array) -> None:
        self.plain[:, slots] = self.behind[:, slots] = _UNTRIED

    def higher(self, now: "Tried") -> "Tried":
        return Tried(_higher(self.plain, now.plain), _higher(self.behind, now.behind))


class BlockedLines:
    """One row per line.

    Invariant: no task of a line of the table can start on any node with the amounts that are `_tried` there,
    and no gang with the amounts of all nodes that were tried last. A node has grown for a line if the line
    needs no more than it may have there now and more than what was tried. So room that is taken and given
    back costs no further try, however many lines wait.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._row: dict[Line, int] = {}
        self._lines: list[Line | None] = []  # by row
        self._tries: list[Try] = []
        self._unused: list[int] = []
        self._needs: Array = np.zeros((0, 0), np.int64)  # by row and resource
        self._turn: Array = np.zeros((0, 3), np.int64)
        self._expect_ms: Array = np.zeros(0, np.int64)
        self._behind: Array = np.zeros(0, np.bool_)  # by row: it was last tried behind a promise
        self._anywhere: Array = np.zeros(0, np.bool_)
        self._gang: Array = np.zeros(0, np.bool_)
        self._ahead: Array = np.zeros(0, np.bool_)
        self._admission: Array = np.zeros(0, np.intp)
        self._admissions: dict[Admission, int] = {}
        self._masks: list[tuple[tuple[int, int], Array]] = []  # by admission: version, nodes that admit it
        self._tried = self._tried_last = Tried(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))
        self._news: Array = np.zeros(0, np.int64)  # of the room, as they were tried
        self._position = -1  # of the board's log
        self._grown = -1  # of the room
        self._held_back: Promise | None = None  # as it was when lines were last looked at
        self.has_another_head = False  # since then: who is behind a promise is not known
        self._tried_less = False  # lines were tried in this round when others had taken some of the room
        self._top_priority = -1  # no line has a higher one

    def __contains__(self, line: Line) -> bool:
        return line in self._row

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[Line]:
        return iter(self._row)

    def how(self, line: Line) -> Try:
        """How it was tried."""
        return self._tries[self._row[line]]

    def add(self, line: Line, how: Try) -> None:
        self._fit()
        row = self._row.get(line)
        if row is None:
            row = self._row[line] = self._unused.pop() if self._unused else self._append()
        self._lines[row], self._tries[row] = line, how
        self._needs[row] = self._needs_of(line.shape)
        self._turn[row] = how.turn
        self._tried_less = True
        self._top_priority = max(self._top_priority, -how.turn[0])
        self._expect_ms[row] = _NO_EXPECT if line.expect_ms is None else line.expect_ms
        self._behind[row], self._anywhere[row] = how.behind, how.anywhere
        self._gang[row], self._ahead[row] = line.gang > 0, how.ahead
        self._admission[row] = self._admission_of(line.shape)

    def remove(self, line: Line) -> None:
        row = self._row.pop(line, None)
        if row is not None:
            self._lines[row] = None
            self._needs[row, TASKS_ROW] = MORE_THAN_ANY
            self._unused.append(row)

    def has_news(self, head: JobId | None, now: Instant) -> bool:
        """Whether anything has changed since all lines were tried: a node, or the head of the queue."""
        board, held_back = self._board, self._held_back
        if self.has_another_head or head != _head(held_back):
            return True
        if held_back is not None and held_back.at_ms <= now.wall_ms:  # it will start later than was thought
            return True
        if self._position != board.position or self._grown != board.room.grown:
            return True
        return self._news.size != board.size or bool((board.room.news[: board.size] != self._news).any())

    def grown(self, promised: Promise | None, now: Instant) -> list[Line]:
        """Lines that might start now."""
        self._fit()
        board, room = self._board, self._board.room
        lets_go = self.has_another_head or bool(_held_on(self._held_back) - _held_on(promised))
        self._held_back, self.has_another_head = promised, False
        fresh = np.nonzero(room.news[: board.size] != self._news)[0]
        self._tried.untried(fresh)
        self._tried_last.untried(fresh)
        behind = self._is_behind(promised, now)
        beside = board.free if promised is None else _beside(board.free, board, promised)
        found = np.zeros(behind.size, np.bool_)
        for tried, kind in ((self._tried, ~self._gang), (self._tried_last, self._gang)):
            for rows, free in ((kind & ~behind, board.free), (kind & behind, beside)):
                found |= self._newly(free, tried.plain, rows & ~self._behind)
                found |= self._newly(free, tried.behind, rows & self._behind)
        # Behind a promise it was not tried to evict others, to start a gang again as a whole, or to let short
        # tasks wait on the nodes that it holds room back on.
        found |= (self._evicts() | self._gang | self._ahead) & self._behind & ~behind
        if lets_go:
            found |= self._ahead & self._behind
        # A line that was tried behind a promise has seen less room than others: that holds until it is tried
        # again, also when the promise is over.
        self._behind = self._behind | behind
        changed = board.since(self._position)
        slots = np.arange(board.size) if changed is None else changed
        if slots.size and self._anywhere.any():
            found |= self._anywhere & self._fits(board.free[:, slots].max(axis=1, initial=0))
        found |= self._might_evict(slots if room.grown == self._grown else np.arange(board.size))
        return [line for row in np.nonzero(found)[0].tolist() if (line := self._lines[row]) is not None]

    def fits(self, line: Line) -> bool:
        """Whether it might start still, after others were placed in this round."""
        row = self._row[line]
        if self._anywhere[row] or self._gang[row] or self._ahead[row] or self._evicts()[row]:
            return True
        fits = bool((self._needs[row][:, None] <= self._board.free).all(axis=0).any())
        self._tried_less |= not fits
        return fits

    def tried(self, before: Array, promised: Promise | None) -> None:
        """All that might have started have had their turn; `before` is what was free when that began."""
        self._fit()
        board, held_back = self._board, self._held_back
        plain = behind = np.minimum(before, board.free)
        for one in (held_back, promised):  # another job may be the head of the queue by now
            if one is not None:
                behind = _beside(behind, board, one)
        self._tried_last = Tried(plain, behind.copy())
        if self._tried_less:
            self._tried = Tried(plain.copy(), behind)
        else:
            behind = before if held_back is None else _beside(before, board, held_back)
            self._tried = self._tried.higher(Tried(before, behind))
        self._tried_less = False
        self.has_another_head = _head(promised) != _head(held_back)
        self._held_back = promised
        self._news = board.room.news[: board.size].copy()
        self._position, self._grown = board.position, board.room.grown

    def _is_behind(self, promised: Promise | None, now: Instant) -> Array:
        """Rows that the promise holds room back from."""
        if promised is None:
            return np.zeros(self._behind.size, np.bool_)
        (first, second, third), (a, b, c) = self._turn.T, promised.turn
        later: Array = (first > a) | ((first == a) & ((second > b) | ((second == b) & (third > c))))
        return later & (self._expect_ms > promised.at_ms - now.wall_ms)

    def _newly(self, free: Array, tried: Array, rows: Array) -> Array:
        """Of these rows: those that fit into a node that has more than was tried."""
        found: Array = np.zeros(rows.size, np.bool_)
        if not rows.any():
            return found
        grew = np.nonzero((free > tried).any(axis=0))[0]
        if grew.size > _MANY:
            return rows & self._fits(free[:, grew].max(axis=1))
        known: Array = ~(self._gang | self._anywhere)
        for slot in grew.tolist():
            able = rows & self._fits(free[:, slot]) & ~found & ~(known & self._fits(tried[:, slot]))
            found = found | self._admitted(able, slot)
        return found

    def _fits(self, amounts: Array) -> Array:
        fits: Array = np.logical_and.reduce(self._needs <= amounts, axis=1)
        return fits

    def _admitted(self, rows: Array, slot: int) -> Array:
        """Of these rows: those whose conditions on labels and taints the node satisfies."""
        if not rows.any():
            return rows
        several = len(self._admissions) > 1
        for admission in np.unique(self._admission[rows]).tolist() if several else (0,):
            if not self._mask(admission, self._shape_of(rows, admission))[slot]:
                rows &= self._admission != admission
        return rows

    def _admission_of(self, shape: Shape) -> int:
        """The number of its conditions. Those of lines that are gone are forgotten when they are most."""
        key = (shape.where, shape.tolerate, shape.cluster)
        number = self._admissions.get(key)
        if number is not None:
            return number
        if len(self._admissions) > 2 * len(self._row) + _ROWS_MIN:
            self._admissions.clear()
            self._masks.clear()
            for line, row in self._row.items():
                self._admission[row] = self._admission_of(line.shape)
            return self._admission_of(shape)
        self._masks.append(_NO_MASK)
        return self._admissions.setdefault(key, len(self._admissions))

    def _shape_of(self, rows: Array, admission: int) -> Shape:
        line = self._lines[int(np.nonzero(rows & (self._admission == admission))[0][0])]
        assert line is not None, "rows of lines that are gone fit nowhere"
        return line.shape

    def _mask(self, admission: int, shape: Shape) -> Array:
        """The nodes that admit tasks with the conditions of this shape."""
        room = self._board.room
        version = (room.labels_version, room.size)
        if self._masks[admission][0] != version:
            conditions = Shape((), shape.where, tolerate=shape.tolerate, cluster=shape.cluster)
            self._masks[admission] = (version, admitted(room, conditions))
        return self._masks[admission][1]

    def _might_evict(self, slots: Array) -> Array:
        """Rows that fit into what is free on these nodes and what others would have to give up there."""
        evicts = self._evicts()
        if not slots.size or not evicts.any():
            return evicts & False
        board, lent = self._board, self._board.room.lent
        free = board.free.copy()
        for resource, row in ((TASKS, TASKS_ROW), *board.rows.items()):
            free[row] += lent.below(MORE_THAN_ANY, resource, board.size)
        return evicts & self._fits(free[:, slots].max(axis=1, initial=0))

    def _evicts(self) -> Array:
        """Rows of so high a priority that others may have to give way."""
        levels = self._board.room.lent.by_priority.items()
        lowest = min((level for level, columns in levels if _any(columns.get(TASKS))), default=None)
        if lowest is None or self._top_priority < lowest + PREEMPT_MARGIN:
            return np.zeros(self._behind.size, np.bool_)
        evicts: Array = -self._turn[:, 0] >= lowest + PREEMPT_MARGIN
        return evicts

    def _needs_of(self, shape: Shape) -> Array:
        needs = self._board.needs(shape)
        if any(amount > 0 and self._board.row(resource) is None for resource, amount in shape.needs):
            needs[TASKS_ROW] = MORE_THAN_ANY
        return needs

    def _fit(self) -> None:
        """To the board: nodes may have come, or resources that were never heard of."""
        board, (rows, width) = self._board, self._tried.plain.shape
        if (self._needs.shape[1], rows, width) == (board.height, board.height, board.size):
            return
        if self._needs.shape[1] != board.height:
            width = 0
            self._needs = np.zeros((self._behind.size, board.height), np.int64)
            self._needs[:, TASKS_ROW] = MORE_THAN_ANY
            for line, row in self._row.items():
                self._needs[row] = self._needs_of(line.shape)
        self._tried = _widened(self._tried, board.height, board.size, width)
        self._tried_last = _widened(self._tried_last, board.height, board.size, width)
        news = np.full(board.size, -1, np.int64)
        news[:width] = self._news[:width]
        self._news = news

    def _append(self) -> int:
        row = len(self._lines)
        self._lines.append(None)
        self._tries.append(Try((0, 0, 0)))
        if row >= self._behind.size:
            self._lengthen(max(_ROWS_MIN, row))
        return row

    def _lengthen(self, more: int) -> None:
        def longer(column: Array) -> Array:
            return np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)])

        size = self._behind.size
        self._needs = longer(self._needs)
        self._needs[size:, TASKS_ROW] = MORE_THAN_ANY
        self._turn, self._expect_ms = longer(self._turn), longer(self._expect_ms)
        self._behind, self._anywhere = longer(self._behind), longer(self._anywhere)
        self._gang, self._ahead = longer(self._gang), longer(self._ahead)
        self._admission = longer(self._admission)


def _head(promised: Promise | None) -> JobId | None:
    return None if promised is None else promised.job


def _held_on(promised: Promise | None) -> Set[int]:
    """Slots of the nodes on which some room is held back."""
    return frozenset() if promised is None else promised.slots.keys()


def asks_for_devices(shape: Shape) -> bool:
    return any(resource == GPU and amount for resource, amount in shape.needs)


def _any(column: Array | None) -> bool:
    return column is not None and bool(column.any())


def _widened(tried: Tried, rows: int, size: int, kept: int) -> Tried:
    """For more nodes, which are untried."""
    found = Tried(*(np.full((rows, size), _UNTRIED, np.int64) for _ in range(2)))
    for old, new in zip(tried, found, strict=True):
        if kept:
            new[:, :kept] = old
    return found


def _higher(tried: Array, now: Array) -> Array:
    """By node: what was tried before if that was more of everything, else what was tried now."""
    found: Array = np.where(np.logical_and.reduce(tried >= now, axis=0), tried, now)
    return found


def _beside(free: Array, board: Board, promised: Promise) -> Array:
    """Of what is free: what a job behind the promise may have."""
    found = free.copy()
    for slot, left in promised.slots.items():
        beside = np.array([left.get(resource, 0) for resource in (TASKS, *board.rows)], np.int64)
        found[:, slot] = np.minimum(found[:, slot], beside)
    return found
