"""Which lines a round has to try: those that changed, and those that something else may let start."""

import heapq
from bisect import bisect_left
from collections.abc import Hashable, Iterable
from itertools import count
from typing import NamedTuple

from rota.model.affinity import Repulsion
from rota.model.ids import JobId
from rota.model.job import JobSpec, QueueChange, QueueRank
from rota.model.namespace import NamespaceRecord
from rota.model.plan import Instant
from rota.model.shape import QueueKey
from rota.model.view import View
from rota.scheduler.blocked_queues import BlockedQueues, FailedTrial
from rota.scheduler.order import QueueHead
from rota.scheduler.placement.board import Board
from rota.scheduler.policy.backfill import BackfillReservation

_ELIGIBILITY = "doors"  # what is watched: nodes open, close, or get other labels
_CAPACITY = "growth"  # any room grows anywhere


class _QuotaState(NamedTuple):
    """What a namespace might hold when lines of it were found to be beyond its quota."""

    namespace: NamespaceRecord | None
    released: int  # of its accounts


class TrialQueue:
    """Lines are open, to be tried by the next round, or blocked, until what they wait for changes.

    A line is never left out wrongly: each reason for which it was blocked names what has to change, and a
    line that is opened for nothing costs one try.
    """

    def __init__(self, board: Board) -> None:
        self.blocked = BlockedQueues(board)
        self._opened: dict[QueueKey, None] = {}
        self._changes_read = -1
        self._affinity_changes_read = 0
        self._eligibility_version = 0
        self._capacity_version = 0
        self._sequence = count()  # makes entries of heaps comparable
        self._timers: list[tuple[int, int, QueueKey]] = []  # heap
        self._watching: dict[QueueKey, tuple[Hashable, ...]] = {}
        self._watched: dict[Hashable, dict[QueueKey, None]] = {}
        self._quotas: dict[str, _QuotaState] = {}
        self._heads: list[
            tuple[QueueRank, int, QueueKey]
        ] = []  # heap: who might be promised room, the first in turn first
        self._head_rank: dict[QueueKey, QueueRank] = {}  # other entries of the heap are void
        self._deferred_heads: list[
            tuple[int, int, QueueRank, QueueKey]
        ] = []  # heap: when to look at them again
        self.trials = 0  # lines that were tried, ever

    # ---- what has to be tried

    def has_due_queues(self, view: View, head: JobId | None, now: Instant) -> bool:
        """Whether any line has to be looked at."""
        self._read_queue_changes(view)
        self._read_affinity_changes(view)
        self._read_quotas(view)
        while self._timers and self._timers[0][0] <= now.ms:
            self.open(heapq.heappop(self._timers)[2])
        if self._eligibility_version != view.node_table.eligibility_version:
            self._eligibility_version = view.node_table.eligibility_version
            self._open_watching(_ELIGIBILITY)
        if self._capacity_version != view.node_table.capacity_version:
            self._capacity_version = view.node_table.capacity_version
            self._open_watching(_CAPACITY)
        return bool(self._opened) or (bool(self.blocked) and self.blocked.has_changed(head, now))

    def due_heads(self, view: View, reservation: BackfillReservation | None, now: Instant) -> list[QueueHead]:
        lines = self._opened
        if self.blocked:
            lines = lines | dict.fromkeys(self.blocked.find_startable(reservation, now))
        return [QueueHead(jobs[0], 0, line, jobs) for line in lines if (jobs := view.pending_queue(line))]

    @property
    def has_several_queues(self) -> bool:
        """Whether more than one line waits: room is held back from other lines only."""
        return len(self._opened) + len(self.blocked) > 1

    def start_trial(self, queue: QueueKey) -> bool:
        """Its turn has come. Others may have taken meanwhile what it might have fitted into."""
        if queue in self.blocked and not self.blocked.may_still_fit(queue):
            return False
        self.trials += 1
        self._unblock(queue)
        self._opened.pop(queue, None)
        return True

    @property
    def has_watches(self) -> bool:
        """Whether some line waits for something else than room."""
        return bool(self._watching)

    def next_timer_ms(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    def open(self, queue: QueueKey) -> None:
        self._unblock(queue)
        self._opened[queue] = None

    def open_lookahead(self) -> None:
        """Open lines whose tasks may wait on a node: fewer nodes are kept for others that make room there."""
        self._open_watching(_CAPACITY)

    def end_round(self) -> None:
        self._opened.clear()

    # ---- what was tried in vain

    def block(
        self, queue: QueueKey, trial: FailedTrial, until_ms: int | None, watch: Iterable[Hashable]
    ) -> None:
        """Until a node has room for it, that time has come, or something changes that it watches."""
        self._unblock(queue)
        self.blocked.add(queue, trial)
        if until_ms is not None:
            heapq.heappush(self._timers, (until_ms, next(self._sequence), queue))
        self._watch(queue, tuple(watch))
        self._push_head(queue, trial.rank)

    def block_by_quota(self, view: View, queue: QueueKey) -> None:
        """Until its namespace holds less, or may hold more."""
        self._unblock(queue)
        name = queue.owner.namespace
        if name not in self._quotas:
            self._quotas[name] = self._quota_state(view, name)
        self._watch(queue, (("quota", name),))

    def _unblock(self, queue: QueueKey) -> None:
        self.blocked.remove(queue)
        self._head_rank.pop(queue, None)
        for key in self._watching.pop(queue, ()):
            lines = self._watched[key]
            del lines[queue]
            if not lines:
                del self._watched[key]

    def _watch(self, queue: QueueKey, keys: tuple[Hashable, ...]) -> None:
        if keys:
            self._watching[queue] = keys = tuple(dict.fromkeys(keys))
        for key in keys:
            self._watched.setdefault(key, {})[queue] = None

    def _open_watching(self, key: Hashable) -> None:
        for line in list(self._watched.get(key, ())):
            self.open(line)

    # ---- what changed

    def _read_queue_changes(self, view: View) -> None:
        log = view.queue_changes
        changes = log.since(self._changes_read) if self._changes_read >= 0 else None
        if changes is None:
            for line in [*self.blocked, *self._watching]:
                self._unblock(line)
            changes = [QueueChange(line) for line, _ in view.pending_queues()]
        self._changes_read = log.position
        for change in changes:
            turns = view.pending_queue(change.queue)
            if not turns:
                self._unblock(change.queue)
                self._opened.pop(change.queue, None)
            elif change.is_better or not self._cannot_do_better(view, change, turns[0]):
                self.open(change.queue)

    def _cannot_do_better(self, view: View, change: QueueChange, rank: QueueRank) -> bool:
        """It waits already; a job whose turn comes after the one that was tried does no better.

        In a line of its own a job may: one of its tasks is ready now that was in a pause when it was tried.
        So may one that others do not keep away, in a line of jobs that all were.
        """
        line = change.queue
        if line.alone:
            return False
        if line not in self.blocked:
            return line in self._watching
        how = self.blocked.failed_trial(line)
        if how.repelled_by and change.joined is not None:
            job = view.jobs.get(JobId(str(change.joined[2])))
            if job is not None and tuple(view.affinity.repelled(job.spec)) not in how.repelled_by:
                return False
        return rank >= how.rank

    def _read_affinity_changes(self, view: View) -> None:
        moved = view.affinity.changes
        keys = moved.since(self._affinity_changes_read)
        self._affinity_changes_read = moved.position
        if not self._watched:
            return
        for key in list(self._watched) if keys is None else dict.fromkeys(keys):
            self._open_watching(key)

    def _read_quotas(self, view: View) -> None:
        for name, known in list(self._quotas.items()):
            if self._quota_state(view, name) != known:
                del self._quotas[name]
                self._open_watching(("quota", name))
            elif ("quota", name) not in self._watched:
                del self._quotas[name]

    def _quota_state(self, view: View, name: str) -> _QuotaState:
        return _QuotaState(view.namespaces.get(name), view.usage.released.get(name, 0))

    # ---- who might be the head of the queue

    def highest_ranked(self, view: View, now: Instant) -> QueueRank | None:
        """Of those without room, of whom room has not just been found to be impossible to promise."""
        while self._deferred_heads and self._deferred_heads[0][0] <= now.ms:
            _, _, turn, line = heapq.heappop(self._deferred_heads)
            if self._head_rank.get(line) == turn:
                self._push_head(line, turn)
        while self._heads:
            turn, _, line = self._heads[0]
            turns = view.pending_queue(line)
            at = bisect_left(turns, turn)
            if self._head_rank.get(line) == turn and at < len(turns) and turns[at] == turn:
                return turn
            heapq.heappop(self._heads)
            if turns and self._head_rank.get(line) == turn:  # the job that was tried has left
                self._push_head(line, turns[0])
        return None

    def defer_highest_ranked(self, until_ms: int) -> None:
        """The first in turn is not to be looked at before that."""
        turn, _, line = heapq.heappop(self._heads)
        heapq.heappush(self._deferred_heads, (until_ms, next(self._sequence), turn, line))

    def _push_head(self, queue: QueueKey, rank: QueueRank) -> None:
        self._head_rank[queue] = rank
        heapq.heappush(self._heads, (rank, next(self._sequence), queue))


def watch_keys(spec: JobSpec, repelled: Iterable[Repulsion], *, any_growth: bool) -> list[Hashable]:
    """What may let a job start though no node that it fits has grown."""
    keys: list[Hashable] = [(spec.namespace, term.jobs) for term in (*spec.near, *spec.apart)]
    keys += repelled
    keys += [spec.id, _ELIGIBILITY] if spec.spread else []
    keys += [_CAPACITY] if any_growth else []
    return keys
