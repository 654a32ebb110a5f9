"""Jobs that rank before a given one: how many, what they would allocate, what is reserved for them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import JobSpec, QueueRank
from rota.model.limits import RESERVATIONS_TRIED_MAX
from rota.model.plan import Instant
from rota.model.shape import RunMode
from rota.model.view import JobView, View
from rota.scheduler.order import FairShares, QueueHead, RankedQueue, Standing, count_startable, must_start_now
from rota.scheduler.placement.place import Placer, refusing_slots, slot_mask
from rota.scheduler.policy.backfill import BackfillReservation, find_reservation
from rota.scheduler.policy.preempt import TaskKey, find_victims

EARLIER_JOBS_MAX = 100  # higher-ranked jobs simulated: bounds the time of an answer, however long the queue
_VICTIMS_MAX = 8  # tasks per job for which evictions are searched


def ranks_before(view: View, spec: JobSpec) -> list[QueueRank]:
    """Ranks of all jobs before it, highest-ranked first, with shares as they are now."""
    shares = FairShares(view)
    mine = shares.share_of(spec.queue_key.owner)
    found = []
    for queue, ranks in view.pending_queues():
        share = shares.share_of(queue.owner)
        found += [
            (rank[0], share, rank)
            for rank in ranks[: _count_ranked_before(ranks, spec.queue_rank, share, mine)]
        ]
    return [rank for _, _, rank in sorted(found)]


def count_before(view: View, spec: JobSpec) -> int:
    shares = FairShares(view)
    mine = shares.share_of(spec.queue_key.owner)
    return sum(
        _count_ranked_before(ranks, spec.queue_rank, shares.share_of(queue.owner), mine)
        for queue, ranks in view.pending_queues()
    )


def _count_ranked_before(ranks: Sequence[QueueRank], own: QueueRank, share: Standing, mine: Standing) -> int:
    """Number of jobs of one queue that rank before `own`, given the standings of both owners."""
    if share == mine:
        return bisect_left(ranks, own)
    return bisect_left(ranks, (own[0] + (share < mine),))


class QueueSnapshot(NamedTuple):
    """What the scheduler remembers of the queue: its head of line."""

    head: JobId | None


class EarlierJobs:
    """Simulates a round for the jobs before a given one: places them, and reserves for the head of line.

    Which job is the head of line depends on the past: it stays for a while, and backs off when its
    reservation expires. Without a snapshot of the scheduler it is searched for.
    """

    def __init__(
        self,
        view: View,
        placer: Placer,
        now: Instant,
        *,
        backfill: bool = True,
        known: QueueSnapshot | None = None,
    ) -> None:
        self._view = view
        self._placer = placer
        self._now = now
        self._backfill = backfill
        self._snapshot = known if backfill else None
        self._evicting: set[TaskKey] = set()  # tasks that would be evicted for these jobs
        self._head_of_line: JobView | None = None  # the first job that fits nowhere
        self._reservations_tried = 0
        self.shares = FairShares(view)
        self.reservation: BackfillReservation | None = None

    def place_before(self, job: JobView) -> None:
        ranked = RankedQueue(
            self.shares,
            [QueueHead(ranks[0], 0, queue, ranks) for queue, ranks in self._view.pending_queues()],
        )
        was_reached = False
        for _ in range(EARLIER_JOBS_MAX):
            head = ranked.pop()
            if head is None or self._head_of_line is not None:
                break
            if head.job == job.spec.id:
                was_reached = True
                ranked.advance(head, goes_on=True)
            elif was_reached and head.rank > job.spec.queue_rank:
                ranked.advance(head, goes_on=False)
            else:
                ranked.advance(head, self._try_job(self._view.jobs[head.job], takes=not was_reached))
        if self._snapshot is not None:
            self._head_of_line = (
                self._view.jobs.get(self._snapshot.head) if self._snapshot.head is not None else None
            )
        first = self._head_of_line
        if first is not None and first.spec.queue_rank < job.spec.queue_rank:
            self.reservation = self._reserve_for(first)

    def _reserve_for(self, first: JobView) -> BackfillReservation | None:
        if not self._backfill:  # no job may pass the head of line, on any node
            slots: dict[int, dict[str, int]] = {slot: {} for slot in range(self._view.node_table.size)}
            return BackfillReservation(first.spec.id, slots, self._now.wall_ms, first.spec.queue_rank)
        tasks = first.task_counts.pending if first.spec.gang else 1
        return find_reservation(self._view, self._placer, first, tasks, self._now)

    def _try_job(self, job: JobView, *, takes: bool) -> bool:
        """Try one job as a round does. Returns whether the next job of its queue may succeed."""
        if is_too_late(job, self._now) or job.verdict is not None or job.task_by_node:
            return True
        startable = count_startable(job, self.shares, self._now)
        if startable <= 0:
            return self.shares.quota_left(job.spec) != 0
        ready = self.ready_tasks(job, startable)
        found = self._placer.place(job, len(ready), self._refused_mask(job))
        starts_now_or_never = must_start_now(job)
        if not takes or (starts_now_or_never and len(found.assigned) < startable):
            self._placer.release(job, found.assigned)
        else:
            self.shares.charge(job.spec, len(found.assigned))
        left = len(ready) - len(found.assigned)
        return starts_now_or_never or not left or self._on_unplaced(job, left)

    def _refused_mask(self, job: JobView) -> Array:
        return slot_mask(self._view, refusing_slots(self._view, job, self._now))

    def ready_tasks(self, job: JobView, startable: int) -> list[int]:
        """Its tasks that may start; if there are many, one more than fit."""
        if job.spec.gang:
            return job.ready(self._now.ms, startable)
        return job.ready(self._now.ms, min(startable, self._placer.count_fitting_tasks(job) + 1))

    def _on_unplaced(self, job: JobView, left: int) -> bool:
        spec = job.spec
        if spec.gang and job.task_counts.live and spec.run is RunMode.AT_LEAST_ONCE:
            return True
        if spec.gang or not self._preempt_for(job, left):
            self._find_head_of_line(job)
        return bool(self._placer.affinity.repelled(spec))

    def _find_head_of_line(self, job: JobView) -> None:
        if (
            self._snapshot is not None
            or self._head_of_line is not None
            or self._reservations_tried >= RESERVATIONS_TRIED_MAX
        ):
            return
        if not self._backfill:
            self._head_of_line = (
                job if self._placer.fits_an_empty_node(job, self._refused_mask(job)) else None
            )
            return
        self._reservations_tried += 1
        self._head_of_line = job if self._reserve_for(job) is not None else None

    def _preempt_for(self, job: JobView, left: int) -> bool:
        """Allocate what tasks of lower priority would have to release for it.

        Returns whether there is any.
        """
        used = self._refused_mask(job)
        found = 0
        while found < min(left, _VICTIMS_MAX):
            eviction = find_victims(self._view, self._placer, job, used, self._evicting)
            if eviction is None:
                break
            used[eviction.slot] = True
            self._evicting |= set(eviction.victims)
            self._placer.board.allocate(job.spec.shape, eviction.slot)
            found += 1
        return found > 0


def is_too_late(job: JobView, now: Instant) -> bool:
    deadline = job.spec.deadline_at_ms
    return deadline is not None and not job.attempts and now.wall_ms > deadline - (job.spec.expect_ms or 0)
