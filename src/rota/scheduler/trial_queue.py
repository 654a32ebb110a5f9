"""Which queues a round has to try: those that changed, and those that another change may let start."""

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

_ELIGIBILITY = "eligibility"  # watched: nodes open, close, or change labels
_CAPACITY = "capacity"  # watched: free resources grow on any node


class _QuotaState(NamedTuple):
    """Quota and usage of a namespace at the time its queues were blocked by quota."""

    namespace: NamespaceRecord | None
    released: int  # counter of releases in its usage account


class TrialQueue:
    """Queues are open, to be tried by the next round, or blocked until what they wait for changes.

    Invariant: each reason to block a queue names what has to change, so no queue is left out wrongly (a lost
    wakeup). A queue that is opened for nothing costs one trial.
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
        # Heap of candidates for the head of line, highest-ranked first. An entry whose rank differs from
        # `_head_rank` is void: it is skipped when it is popped.
        self._heads: list[tuple[QueueRank, int, QueueKey]] = []
        self._head_rank: dict[QueueKey, QueueRank] = {}
        self._deferred_heads: list[tuple[int, int, QueueRank, QueueKey]] = []  # heap, by when to retry
        self.trials = 0  # number of trials ever, for tests and benchmarks

    # ---- queues to try

    def has_due_queues(self, view: View, head: JobId | None, now: Instant) -> bool:
        """Read all changes since the last round; returns whether any queue may have to be tried."""
        self._read_queue_changes(view)
        # All logs are read even if the first has news: each has a position of its own, and one that is not
        # advanced would fall behind its log.
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
        queues = self._opened
        if self.blocked:
            queues = queues | dict.fromkeys(self.blocked.find_startable(reservation, now))
        return [
            QueueHead(ranks[0], 0, queue, ranks) for queue in queues if (ranks := view.pending_queue(queue))
        ]

    @property
    def has_several_queues(self) -> bool:
        """Whether more than one queue is pending: a reservation affects other queues only."""
        return len(self._opened) + len(self.blocked) > 1

    def start_trial(self, queue: QueueKey) -> bool:
        """Unblock a queue to try it; False if others have allocated what it might have fitted into."""
        # Queues of higher rank were tried before in this round, and may have allocated what had become free.
        if queue in self.blocked and not self.blocked.may_still_fit(queue):
            return False
        self.trials += 1
        self._unblock(queue)
        self._opened.pop(queue, None)
        return True

    @property
    def has_watches(self) -> bool:
        """Whether some queue waits for something other than free resources."""
        return bool(self._watching)

    def next_timer_ms(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    def open(self, queue: QueueKey) -> None:
        self._unblock(queue)
        self._opened[queue] = None

    def open_lookahead(self) -> None:
        """Open queues that may use lookahead: fewer slots are nominated to other jobs than before."""
        self._open_watching(_CAPACITY)

    def end_round(self) -> None:
        self._opened.clear()

    # ---- failed trials

    def block(
        self, queue: QueueKey, trial: FailedTrial, until_ms: int | None, watch: Iterable[Hashable]
    ) -> None:
        """Block a queue until a node offers more, until `until_ms`, or until something it watches changes."""
        self._unblock(queue)
        self.blocked.add(queue, trial)
        if until_ms is not None:
            heapq.heappush(self._timers, (until_ms, next(self._sequence), queue))
        self._watch(queue, tuple(watch))
        self._push_head(queue, trial.rank)

    def block_by_quota(self, view: View, queue: QueueKey) -> None:
        """Block a queue until its namespace uses less, or its quota changes."""
        self._unblock(queue)
        name = queue.owner.namespace
        # Only the first time: the state must be that of the oldest block, or a release
        # in between would be missed.
        if name not in self._quotas:
            self._quotas[name] = self._quota_state(view, name)
        self._watch(queue, (("quota", name),))

    def _unblock(self, queue: QueueKey) -> None:
        self.blocked.remove(queue)
        self._head_rank.pop(queue, None)
        for key in self._watching.pop(queue, ()):
            queues = self._watched[key]
            del queues[queue]
            if not queues:
                del self._watched[key]

    def _watch(self, queue: QueueKey, keys: tuple[Hashable, ...]) -> None:
        if keys:
            self._watching[queue] = keys = tuple(dict.fromkeys(keys))
        for key in keys:
            self._watched.setdefault(key, {})[queue] = None

    def _open_watching(self, key: Hashable) -> None:
        for queue in list(self._watched.get(key, ())):
            self.open(queue)

    # ---- changes

    def _read_queue_changes(self, view: View) -> None:
        log = view.queue_changes
        changes = log.since(self._changes_read) if self._changes_read >= 0 else None
        # The log no longer reaches back to the last position, or nothing was read
        # yet: every queue is tried once.
        if changes is None:
            for queue in [*self.blocked, *self._watching]:
                self._unblock(queue)
            changes = [QueueChange(queue) for queue, _ in view.pending_queues()]
        self._changes_read = log.position
        for change in changes:
            ranks = view.pending_queue(change.queue)
            if not ranks:
                self._unblock(change.queue)
                self._opened.pop(change.queue, None)
            elif change.is_better or not self._cannot_do_better(view, change, ranks[0]):
                self.open(change.queue)

    def _cannot_do_better(self, view: View, change: QueueChange, rank: QueueRank) -> bool:
        """Whether the queue stays blocked: a job ranked after the one that was tried cannot start either.

        A job alone in its queue may: one of its tasks may be ready now that was in backoff when it was tried.
        So may a job that no anti-affinity excludes, in a queue whose other jobs were all excluded.
        """
        queue = change.queue
        if queue.alone:
            return False
        if queue not in self.blocked:
            return queue in self._watching
        trial = self.blocked.failed_trial(queue)
        if trial.repelled_by and change.joined is not None:
            job = view.jobs.get(JobId(str(change.joined[2])))
            if job is not None and tuple(view.affinity.repelled(job.spec)) not in trial.repelled_by:
                return False
        return rank >= trial.rank

    def _read_affinity_changes(self, view: View) -> None:
        changes = view.affinity.changes
        keys = changes.since(self._affinity_changes_read)
        self._affinity_changes_read = changes.position
        # The position is advanced anyway: old changes must not open queues that block later.
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

    # ---- candidates for the head of line

    def highest_ranked(self, view: View, now: Instant) -> QueueRank | None:
        """Rank of the first blocked job, without those for which no reservation was found lately."""
        while self._deferred_heads and self._deferred_heads[0][0] <= now.ms:
            _, _, rank, queue = heapq.heappop(self._deferred_heads)
            # Void if the queue was unblocked or blocked again by another job since it was deferred.
            if self._head_rank.get(queue) == rank:
                self._push_head(queue, rank)
        while self._heads:
            rank, _, queue = self._heads[0]
            ranks = view.pending_queue(queue)
            at = bisect_left(ranks, rank)
            if self._head_rank.get(queue) == rank and at < len(ranks) and ranks[at] == rank:
                return rank
            heapq.heappop(self._heads)
            if ranks and self._head_rank.get(queue) == rank:  # the job that was tried has left its queue
                self._push_head(queue, ranks[0])
        return None

    def defer_highest_ranked(self, until_ms: int) -> None:
        """Skip the highest-ranked candidate until this time."""
        rank, _, queue = heapq.heappop(self._heads)
        heapq.heappush(self._deferred_heads, (until_ms, next(self._sequence), rank, queue))

    def _push_head(self, queue: QueueKey, rank: QueueRank) -> None:
        self._head_rank[queue] = rank
        heapq.heappush(self._heads, (rank, next(self._sequence), queue))


def watch_keys(spec: JobSpec, repelled: Iterable[Repulsion], *, any_growth: bool) -> list[Hashable]:
    """What may let a job start although no node that it fits has grown."""
    keys: list[Hashable] = [(spec.namespace, term.jobs) for term in (*spec.near, *spec.apart)]
    keys += repelled
    keys += [spec.id, _ELIGIBILITY] if spec.spread else []
    keys += [_CAPACITY] if any_growth else []
    return keys
