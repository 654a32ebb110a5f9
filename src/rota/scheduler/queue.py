"""Which lines a round has to try: those that changed, and those that something else may let start."""

import heapq
from bisect import bisect_left
from collections.abc import Hashable, Iterable
from itertools import count
from typing import NamedTuple

from rota.model.ids import JobId
from rota.model.job import JobSpec, LineChange, Turn
from rota.model.namespace import Namespace
from rota.model.neighbours import Repulsion
from rota.model.plan import Instant
from rota.model.shape import Line
from rota.model.view import View
from rota.scheduler.backfill import Promise
from rota.scheduler.blocked import BlockedLines, Try
from rota.scheduler.board import Board
from rota.scheduler.order import Head

_DOORS = "doors"  # what is watched: nodes open, close, or get other labels
_GROWTH = "growth"  # any room grows anywhere


class _Quota(NamedTuple):
    """What a namespace might hold when lines of it were found to be beyond its quota."""

    namespace: Namespace | None
    released: int  # of its accounts


class Queue:
    """Lines are open, to be tried by the next round, or blocked, until what they wait for changes.

    A line is never left out wrongly: each reason for which it was blocked names what has to change, and a
    line that is opened for nothing costs one try.
    """

    def __init__(self, board: Board) -> None:
        self.blocked = BlockedLines(board)
        self._open: dict[Line, None] = {}
        self._changes_read = -1
        self._moves_read = 0
        self._doors = 0
        self._grown = 0
        self._pushed = count()  # makes entries of heaps comparable
        self._timers: list[tuple[int, int, Line]] = []  # heap
        self._watching: dict[Line, tuple[Hashable, ...]] = {}
        self._watched: dict[Hashable, dict[Line, None]] = {}
        self._quotas: dict[str, _Quota] = {}
        self._heads: list[
            tuple[Turn, int, Line]
        ] = []  # heap: who might be promised room, the first in turn first
        self._head_turn: dict[Line, Turn] = {}  # other entries of the heap are void
        self._heads_later: list[tuple[int, int, Turn, Line]] = []  # heap: when to look at them again
        self.tries = 0  # lines that were tried, ever

    # ---- what has to be tried

    def has_news(self, view: View, head: JobId | None, now: Instant) -> bool:
        """Whether any line has to be looked at."""
        self._read_lines(view)
        self._read_neighbours(view)
        self._read_quotas(view)
        while self._timers and self._timers[0][0] <= now.ms:
            self.open(heapq.heappop(self._timers)[2])
        if self._doors != view.room.doors:
            self._doors = view.room.doors
            self._wake(_DOORS)
        if self._grown != view.room.grown:
            self._grown = view.room.grown
            self._wake(_GROWTH)
        return bool(self._open) or (bool(self.blocked) and self.blocked.has_news(head, now))

    def due(self, view: View, promised: Promise | None, now: Instant) -> list[Head]:
        lines = self._open
        if self.blocked:
            lines = lines | dict.fromkeys(self.blocked.grown(promised, now))
        return [Head(jobs[0], 0, line, jobs) for line in lines if (jobs := view.line(line))]

    @property
    def has_several(self) -> bool:
        """Whether more than one line waits: room is held back from other lines only."""
        return len(self._open) + len(self.blocked) > 1

    def may_try(self, line: Line) -> bool:
        """Its turn has come. Others may have taken meanwhile what it might have fitted into."""
        if line in self.blocked and not self.blocked.fits(line):
            return False
        self.tries += 1
        self._unblock(line)
        self._open.pop(line, None)
        return True

    @property
    def watches(self) -> bool:
        """Whether some line waits for something else than room."""
        return bool(self._watching)

    def next_ms(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    def open(self, line: Line) -> None:
        self._unblock(line)
        self._open[line] = None

    def open_ahead(self) -> None:
        """Open lines whose tasks may wait on a node: fewer nodes are kept for others that make room there."""
        self._wake(_GROWTH)

    def end_round(self) -> None:
        self._open.clear()

    # ---- what was tried in vain

    def block(self, line: Line, how: Try, until_ms: int | None, watch: Iterable[Hashable]) -> None:
        """Until a node has room for it, that time has come, or something changes that it watches."""
        self._unblock(line)
        self.blocked.add(line, how)
        if until_ms is not None:
            heapq.heappush(self._timers, (until_ms, next(self._pushed), line))
        self._watch(line, tuple(watch))
        self._stand(line, how.turn)

    def block_by_quota(self, view: View, line: Line) -> None:
        """Until its namespace holds less, or may hold more."""
        self._unblock(line)
        name = line.owner.namespace
        if name not in self._quotas:
            self._quotas[name] = self._quota(view, name)
        self._watch(line, (("quota", name),))

    def _unblock(self, line: Line) -> None:
        self.blocked.remove(line)
        self._head_turn.pop(line, None)
        for key in self._watching.pop(line, ()):
            lines = self._watched[key]
            del lines[line]
            if not lines:
                del self._watched[key]

    def _watch(self, line: Line, keys: tuple[Hashable, ...]) -> None:
        if keys:
            self._watching[line] = keys = tuple(dict.fromkeys(keys))
        for key in keys:
            self._watched.setdefault(key, {})[line] = None

    def _wake(self, key: Hashable) -> None:
        for line in list(self._watched.get(key, ())):
            self.open(line)

    # ---- what changed

    def _read_lines(self, view: View) -> None:
        log = view.line_changes
        changes = log.since(self._changes_read) if self._changes_read >= 0 else None
        if changes is None:
            for line in [*self.blocked, *self._watching]:
                self._unblock(line)
            changes = [LineChange(line) for line, _ in view.waiting()]
        self._changes_read = log.position
        for change in changes:
            turns = view.line(change.line)
            if not turns:
                self._unblock(change.line)
                self._open.pop(change.line, None)
            elif change.is_better or not self._is_no_better(view, change, turns[0]):
                self.open(change.line)

    def _is_no_better(self, view: View, change: LineChange, turn: Turn) -> bool:
        """It waits already; a job whose turn comes after the one that was tried does no better.

        In a line of its own a job may: one of its tasks is ready now that was in a pause when it was tried.
        So may one that others do not keep away, in a line of jobs that all were.
        """
        line = change.line
        if line.alone:
            return False
        if line not in self.blocked:
            return line in self._watching
        how = self.blocked.how(line)
        if how.kept_away and change.joined is not None:
            job = view.jobs.get(JobId(str(change.joined[2])))
            if job is not None and tuple(view.neighbours.repelled(job.spec)) not in how.kept_away:
                return False
        return turn >= how.turn

    def _read_neighbours(self, view: View) -> None:
        moved = view.neighbours.moved
        keys = moved.since(self._moves_read)
        self._moves_read = moved.position
        if not self._watched:
            return
        for key in list(self._watched) if keys is None else dict.fromkeys(keys):
            self._wake(key)

    def _read_quotas(self, view: View) -> None:
        for name, known in list(self._quotas.items()):
            if self._quota(view, name) != known:
                del self._quotas[name]
                self._wake(("quota", name))
            elif ("quota", name) not in self._watched:
                del self._quotas[name]

    def _quota(self, view: View, name: str) -> _Quota:
        return _Quota(view.namespaces.get(name), view.accounts.released.get(name, 0))

    # ---- who might be the head of the queue

    def first_in_turn(self, view: View, now: Instant) -> Turn | None:
        """Of those without room, of whom room has not just been found to be impossible to promise."""
        while self._heads_later and self._heads_later[0][0] <= now.ms:
            _, _, turn, line = heapq.heappop(self._heads_later)
            if self._head_turn.get(line) == turn:
                self._stand(line, turn)
        while self._heads:
            turn, _, line = self._heads[0]
            turns = view.line(line)
            at = bisect_left(turns, turn)
            if self._head_turn.get(line) == turn and at < len(turns) and turns[at] == turn:
                return turn
            heapq.heappop(self._heads)
            if turns and self._head_turn.get(line) == turn:  # the job that was tried has left
                self._stand(line, turns[0])
        return None

    def pass_over(self, until_ms: int) -> None:
        """The first in turn is not to be looked at before that."""
        turn, _, line = heapq.heappop(self._heads)
        heapq.heappush(self._heads_later, (until_ms, next(self._pushed), turn, line))

    def _stand(self, line: Line, turn: Turn) -> None:
        self._head_turn[line] = turn
        heapq.heappush(self._heads, (turn, next(self._pushed), line))


def watched(spec: JobSpec, repelled: Iterable[Repulsion], *, any_growth: bool) -> list[Hashable]:
    """What may let a job start though no node that it fits has grown."""
    keys: list[Hashable] = [(spec.namespace, term.jobs) for term in (*spec.near, *spec.apart)]
    keys += repelled
    keys += [spec.id, _DOORS] if spec.spread else []
    keys += [_GROWTH] if any_growth else []
    return keys
