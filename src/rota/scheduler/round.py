"""One scheduling round: pending tasks onto nodes, by rank; with backfill reservations and preemption.

Theory of operation
-------------------
A *round* is one decision of the scheduler. It starts from the mirror, tries pending jobs
in order of rank, and returns one plan: attempt blocks for the tasks it placed, evictions, and verdicts on
jobs that cannot start. It runs whenever a record changed that a pending task may wait for
(`rota.scheduler.plan`). Trying every pending job on every node would make a round too long, so almost
everything is incremental:

* **Queues.** Pending jobs with the same shape, owner and rules form one queue (`QueueKey`): if the first of
  them does not fit, no later one does. A round looks at heads of queues, never at all jobs.
* **Trials.** A queue whose head found no node is *blocked* (`rota.scheduler.blocked_queues`). The entry
  records the free amounts with which it was tried. The queue is tried again when some node offers more than
  that, when a watched fact changes (labels, affinity counts, a quota), or when a timer ends
  (`rota.scheduler.trial_queue`). Opening a queue for nothing costs one trial; leaving one blocked wrongly
  would be a lost wakeup. Every reason to block therefore names what has to change.
* **Rank.** Priority first, then fair share among owners, then age (`rota.scheduler.order`).
* **Rows.** For each shape a `ScoreRow` holds the points of every node, EXCLUDED where it does not fit
  (`rota.scheduler.placement.rows`). The board logs each slot that changes; a row rescores only the slots
  logged since it was last used. Placing one task therefore rescores one node, not all of them.
* **Runs.** Many equal tasks are placed by one sort over the best nodes and a few tasks ahead on each
  (`PlacementRun`), with the same result as placing them one by one.

One round, step by step
-----------------------
1. `Board.sync` copies what changed in the mirror's node table. The board is a working copy: placements of
   this round are subtracted from it, while the mirror changes only when the plan is applied.
2. Free resources that victims of earlier rounds are leaving (*nominations*), and targets of task moves, are
   allocated on the board, so that no other job takes them. They are released again for the job they are for,
   and at the end of the round.
3. The backfill *reservation* of the head of line is computed again: when and where it will fit as running
   work ends. Later jobs may use only what is left beside it, unless they end before it starts.
4. Moved tasks are placed: they held resources before and are in no queue.
5. Queues are tried by rank. A job that fits is placed. One that does not may send short tasks to nodes as
   lookahead, evict tasks of lower priority (the freed slot is nominated to it), or become the head of line.
   Then its queue is blocked and the next one is tried.
6. `BlockedQueues.end_round` records the amounts that all blocked queues have now been tried with.

Invariants
----------
* The result equals that of a full rescan without caches; property tests compare the two (tests/properties).
* Ties go to the lower slot, and sums are added in a fixed order: equal input gives an equal plan.
* The board is balanced: what a round holds back it gives back, also for jobs it skips.
* `SchedulerCache` may be lost at any time. It is dropped when a round raises, and when the mirror was read
  again: reservations and nominations lapse, and rows are scored again from the node table.
"""

import math
from collections.abc import Iterable, Set
from typing import NamedTuple

import numpy as np

from rota.model.affinity import Repulsion
from rota.model.amounts import GPU
from rota.model.attempt import LOOKAHEAD, Choice
from rota.model.columns import Array, Ranges, ints
from rota.model.ids import JobId
from rota.model.job import JobKind, QueueRank, SchedulerVerdict
from rota.model.lifecycle import JobState
from rota.model.limits import (
    BLOCK_TASKS,
    EVICTIONS_MAX,
    LOOKAHEAD_TASKS_MAX,
    LOOKAHEAD_US,
    NOMINATED_MS,
    PREEMPT_MARGIN,
    RESERVATION_BACKOFF_MS,
    RESERVATION_LATE_MS,
    RESERVATION_RETRY_MS,
    RESERVATIONS_TRIED_MAX,
    RESERVATIONS_TRIED_MS,
)
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, Record
from rota.model.shape import NO_AFFINITY_RULES, Policy, QueueKey, RunMode
from rota.model.view import JobView, View
from rota.scheduler.blocked_queues import FailedTrial, needs_gpus
from rota.scheduler.explain.why import explain_job
from rota.scheduler.order import (
    FairShares,
    QueueHead,
    RankedQueue,
    count_movable,
    count_startable,
    must_start_now,
)
from rota.scheduler.placement.attempt_blocks import AttemptBlockWriter, PlacedTasks
from rota.scheduler.placement.place import Assignments, Placer, refusing_slots, slot_mask
from rota.scheduler.placement.rows import Plugins
from rota.scheduler.policy import avoid_failed, system_jobs
from rota.scheduler.policy.backfill import NEVER_MS, BackfillReservation, find_reservation
from rota.scheduler.policy.moves import due_groups, moved_events, reserve_targets
from rota.scheduler.policy.preempt import Eviction, TaskKey, find_victims, live_tasks
from rota.scheduler.trial_queue import TrialQueue, watch_keys

# Enum members are slow to look up, and these are asked for at every placement.
_SYSTEM, _PACK = JobKind.SYSTEM, Policy.PACK


class SchedulerSettings(NamedTuple):
    """The operator's configuration of placement."""

    plugins: Plugins = Plugins()
    backfill: bool = True  # later jobs may start before the head of line if that does not delay it


class Nomination(NamedTuple):
    """A slot that evicted tasks are leaving, kept for one task of the preempting job."""

    slot: int
    until_ms: int


class HeadOfLine(NamedTuple):
    """The job that resources are reserved for, and until when."""

    job: JobId
    tasks: int  # how many of its tasks have to start together
    until_ms: int


class SchedulerCache:
    """State between rounds that can be computed again or lapse: rows, blocked queues, nominations."""

    def __init__(self, view: View, settings: SchedulerSettings) -> None:
        self.node_table = view.node_table  # the table its slots refer to
        self.placer = Placer(view, settings.plugins)
        self.queue = TrialQueue(self.placer.board)
        self.nominated: dict[JobId, list[Nomination]] = {}
        self.head_of_line: HeadOfLine | None = None
        self._reservations_tried = 0  # failed searches since the time below
        self._reservations_tried_since_ms = 0
        # A job whose reservation expired before it could start is not the head of line until then.
        self.backoffs: dict[JobId, int] = {}
        self.system_job_inputs: dict[JobId, system_jobs.SystemJobInput] = {}

    def drop_expired(self, view: View, now: Instant) -> None:
        """Drop reservations and nominations that expired, or whose job is no longer pending."""
        first = self.head_of_line
        if first is not None:
            job = view.jobs.get(first.job)
            if job is None or not _is_pending(job):
                self.head_of_line = None
            elif first.until_ms <= now.ms:
                self.head_of_line = None
                self.backoffs = {name: until for name, until in self.backoffs.items() if until > now.ms}
                self.backoffs[first.job] = now.ms + RESERVATION_BACKOFF_MS
        for name, nominations in list(self.nominated.items()):
            job = view.jobs.get(name)
            pending = job is not None and _is_pending(job)
            valid = [
                nomination
                for nomination in nominations
                if pending and nomination.until_ms > now.ms and view.node_table.open[nomination.slot]
            ]
            # The slot is free for others now, and the job itself may evict again: both
            # kinds of queues are tried.
            if len(valid) < len(nominations):
                self.queue.open_lookahead()
                if job is not None and job.queue is not None:
                    self.queue.open(job.queue)
            if valid:
                self.nominated[name] = valid
            else:
                del self.nominated[name]

    def may_try_reservation(self, now: Instant) -> bool:
        # Each failed search examines every node. The bound per interval keeps a queue of many infeasible
        # heads from taking the whole round.
        if now.ms - self._reservations_tried_since_ms >= RESERVATIONS_TRIED_MS:
            self._reservations_tried, self._reservations_tried_since_ms = 0, now.ms
        return self._reservations_tried < RESERVATIONS_TRIED_MAX

    def count_failed_reservation(self) -> None:
        self._reservations_tried += 1

    def backoff_until_ms(self, job: JobId) -> int:
        return self.backoffs.get(job, 0)


class Round:
    """One pass over the queues that might start something; the module header describes its steps."""

    def __init__(self, view: View, cache: SchedulerCache, settings: SchedulerSettings, now: Instant) -> None:
        self._view = view
        self._cache = cache
        self._queue = cache.queue
        self._placer = cache.placer
        self._settings = settings
        self._now = now
        self._shares = FairShares(view)
        self._placed: list[PlacedTasks] = []
        self._verdicts: list[SchedulerVerdict] = []
        self._evicted: list[tuple[JobView, Eviction]] = []
        self._broken_gangs: list[JobView] = []
        self._reservation: BackfillReservation | None = None
        self._repelled: dict[QueueKey, dict[Repulsion, None]] = {}  # anti-affinity against jobs of a queue
        # Sets of repulsions with which a job of the queue found no node: another job with the same set fails
        # too.
        self._repelled_in_vain: set[tuple[QueueKey, tuple[Repulsion, ...]]] = set()
        self._reopened: list[QueueKey] = []
        self._used_nominations = False  # a nominated slot was used in this round
        self._evicts_more = False  # the next round may evict more, on nodes that this round barred
        self._refused_until_ms: list[int] = []  # ends of refusals that bar moved tasks from nodes
        self._some_back_off = False  # some tasks back off while others of their job may start

    def run(self) -> Plan:
        first = self._cache.head_of_line
        has_news = self._queue.has_due_queues(self._view, None if first is None else first.job, self._now)
        if not has_news and self._settings.backfill and not self._view.moving:
            return self._plan()
        self._reserve_nominated(1)
        reserve_targets(self._view, self._placer.board, self._now, 1)
        self._renew_reservation()
        self._place_moved()
        # Ordering: what is recorded as tried must be what the queues were tried with. So it is copied after
        # nominations, move targets and moved tasks are allocated, and `end_round` runs before those are
        # released. If it included them, the queues would not be tried again when they are free.
        before = self._placer.board.free.copy()
        ranked = RankedQueue(self._shares, self._due_heads())
        while (head := ranked.pop()) is not None:
            goes_on = self._queue.start_trial(head.queue) and self._try_job(
                self._view.jobs[head.job], head.queue
            )
            if goes_on and head.next is None:
                self._end_queue(head)
            # Strict order: no job of lower rank may start before the head of line.
            if self._cache.head_of_line is not None and not self._settings.backfill:
                break
            ranked.advance(head, goes_on)
        self._queue.blocked.end_round(before, self._reservation)
        reserve_targets(self._view, self._placer.board, self._now, -1)
        self._reserve_nominated(-1)
        self._queue.end_round()
        # These open queues for the next round: after `end_round`, which forgets all opened ones.
        if self._used_nominations:
            self._queue.open_lookahead()
        for queue in self._reopened:
            self._queue.open(queue)
        return self._plan()

    def _due_heads(self) -> list[QueueHead]:
        """Heads of the queues to try. Without backfill all are tried: any of them may be the head of line."""
        heads = self._queue.due_heads(self._view, self._reservation, self._now)
        if self._settings.backfill:
            return heads
        self._cache.head_of_line = None
        for queue, _ in self._view.pending_queues():
            self._queue.open(queue)
        return [QueueHead(ranks[0], 0, queue, ranks) for queue, ranks in self._view.pending_queues()]

    def _renew_reservation(self) -> None:
        """Compute the reservation again: work has ended, or takes longer than expected."""
        if not self._settings.backfill or not self._queue.has_several_queues:
            return
        first = self._cache.head_of_line
        if first is not None:
            job = self._view.jobs[first.job]
            self._reservation = find_reservation(self._view, self._placer, job, first.tasks, self._now)
            if self._reservation is None:
                self._cache.head_of_line = None
        if self._cache.head_of_line is None:
            self._find_head_of_line(up_to=None)

    def _place_moved(self) -> None:
        """Place moved tasks before all queues: they held resources already, and are in no queue."""
        for name in self._view.moving:
            job = self._view.jobs[name]
            placed = 0
            for indices, barred in due_groups(self._view, job, self._now):
                movable = count_movable(job, self._shares, len(indices), placed)
                if movable <= 0:
                    break
                held_back = self._reserved_amounts(job)
                self._reserve_nominated(-1, job)  # its placement uses its own nominations
                self._adjust_free(held_back, -1)
                found = self._placer.place(job, movable, barred)
                self._adjust_free(held_back, 1)
                self._record_placement(job, indices, found)
                placed += len(found.assigned)
                self._reserve_nominated(1, job)
                if len(found.assigned) < len(indices):  # no queue has a timer that would retry them
                    self._refused_until_ms += self._refusals_end_ms(job)

    def _try_job(self, job: JobView, queue: QueueKey) -> bool:
        """Try to place one job. Returns whether the next job of its queue may succeed."""
        if job.verdict is not None or self._is_known_repelled(job, queue):
            return True
        startable = count_startable(job, self._shares, self._now)
        if startable <= 0:
            self._queue.block_by_quota(self._view, queue)
            return False
        held_back = self._reserved_amounts(job)
        refused = refusing_slots(self._view, job, self._now)
        most = self._tasks_to_try(job)
        ready = job.ready(self._now.ms, min(startable, most))
        self._some_back_off |= len(ready) < min(startable, most)
        self._reserve_nominated(-1, job)
        self._adjust_free(held_back, -1)
        # The job sees its own nominations as free, and the reservation of the head of line as used. Both are
        # undone right after it is placed: the board must be balanced for the next job.
        pinned = self._place_tasks(job, ready, refused)
        ready, found = pinned.indices, pinned.assignments
        self._adjust_free(held_back, 1)
        if len(found.assigned) < startable and must_start_now(job):
            self._reject(job, queue, found)
            return True
        self._record_placement(job, ready, found)
        self._reserve_nominated(1, job)
        if len(found.assigned) == len(ready):
            return self._may_continue_queue(job, queue, truncated=len(ready) == most < startable)
        # Lookahead tasks start unasked: they might take what is reserved or nominated for other jobs.
        nominated = [
            nomination.slot for nominations in self._cache.nominated.values() for nomination in nominations
        ]
        kept_off = slot_mask(self._view, [*refused, *held_back, *nominated])
        left = self._place_lookahead(job, ready[len(found.assigned) :], kept_off)
        return not left or self._on_unplaced(job, queue, left, behind=bool(held_back))

    def _may_continue_queue(self, job: JobView, queue: QueueKey, *, truncated: bool) -> bool:
        """All tasks that were tried are placed. Returns whether others of the queue may start."""
        if truncated:
            self._reopened.append(queue)
        elif self._shares.quota_left(job.spec) == 0:
            self._queue.block_by_quota(self._view, queue)
            return False
        return True

    def _adjust_free(self, held_back: dict[int, Array], times: int) -> None:
        for slot, amounts in held_back.items():
            self._placer.board.adjust_free(slot, amounts * times)

    def _is_known_repelled(self, job: JobView, queue: QueueKey) -> bool:
        """Whether a job of its queue with the same repulsions found no node in this round."""
        # Computing the repulsions of every job of a long queue is what this memo avoids.
        if queue not in self._repelled:
            return False
        return (queue, tuple(self._placer.affinity.repelled(job.spec))) in self._repelled_in_vain

    def _end_queue(self, head: QueueHead) -> None:
        """Block a queue whose last job was tried, if anti-affinity of other jobs kept its jobs off."""
        if head.queue in self._repelled:
            first = JobId(str(head.ranks[0][2]))
            by = frozenset(repelled for queue, repelled in self._repelled_in_vain if queue == head.queue)
            self._block_queue(self._view.jobs[first], head.queue, behind=False, repelled_by=by)

    def _place_tasks(
        self, job: JobView, ready: list[int], refused: list[int]
    ) -> system_jobs.PinnedAssignments:
        barred = slot_mask(self._view, refused) if refused else None
        if job.spec.kind is _SYSTEM:
            return system_jobs.place_pinned(self._view, self._placer, job, ready, barred)
        return system_jobs.PinnedAssignments(
            ready, avoid_failed.place_avoiding_failed(self._view, self._placer, job, ready, refused)
        )

    def _reserved_amounts(self, job: JobView) -> dict[int, Array]:
        """By slot, the free amounts that are reserved for the head of line against this job."""
        if self._reservation is None:
            return {}
        return self._reservation.reserved_from(job.spec, self._placer.board, self._now)

    def _tasks_to_try(self, job: JobView) -> int:
        """How many of its tasks to try: one more than can be placed now, to learn that nodes are full."""
        pending = job.task_counts.pending
        if pending <= LOOKAHEAD_TASKS_MAX or job.spec.gang or job.spec.kind is _SYSTEM:
            return pending
        board = self._placer.board
        copies = board.fitting_tasks(job.spec.shape, np.arange(board.size))
        return int(copies.sum()) + LOOKAHEAD_TASKS_MAX * board.size + 1

    def _record_placement(self, job: JobView, ready: list[int], assignments: Assignments) -> None:
        if not assignments.assigned:
            return
        ids = self._view.node_table.ids
        nodes = [ids[assignment.slot] for assignment in assignments.assigned]
        devices = [assignment.devices for assignment in assignments.assigned]
        self._placed.append(PlacedTasks(job, ready[: len(nodes)], nodes, devices, 0, assignments))
        # The reservation has served its purpose; the rest of the round may use what it kept free.
        if self._cache.head_of_line is not None and self._cache.head_of_line.job == job.spec.id:
            self._cache.head_of_line = self._reservation = None
        self._shares.charge(job.spec, len(nodes))
        if self._cache.nominated:
            self._use_nominations(job, assignments)
        if self._reservation is not None:
            for assignment in assignments.assigned:
                self._reservation.use_beside(job.spec, assignment.slot)

    def _use_nominations(self, job: JobView, assignments: Assignments) -> None:
        """Drop the nominations of a placed job; of a system job only the used ones, each is for one task."""
        nominations = self._cache.nominated.pop(job.spec.id, [])
        self._used_nominations |= bool(nominations)
        used = {assignment.slot for assignment in assignments.assigned}
        left = [nomination for nomination in nominations if nomination.slot not in used]
        if left and job.spec.kind is JobKind.SYSTEM:
            self._cache.nominated[job.spec.id] = left

    def _place_lookahead(self, job: JobView, ready: list[int], barred: Array) -> list[int]:
        """Queue short tasks on nodes, to save a round trip per freed slot. Returns the tasks left over."""
        if not self._may_use_lookahead(job):
            return ready
        spec = job.spec
        board = self._placer.board
        allowed = self._placer.rows.eligible(spec.shape)
        slots = np.where(allowed & ~barred, board.tasks_when_empty(spec.shape), 0)
        per_slot = math.ceil(LOOKAHEAD_US / max(1.0, job.run_us or 1.0))
        # Minus those queued there already, also by other jobs of this round.
        depth = np.minimum(slots * per_slot, LOOKAHEAD_TASKS_MAX) - board.queued
        copies = np.where(slots > 0, np.maximum(0, np.minimum(depth, board.free[0])), 0)
        chosen = np.repeat(np.arange(copies.size), copies)[: len(ready)].tolist()
        if chosen:
            board.queued += np.bincount(chosen, minlength=board.size)
            nodes = [self._view.node_table.ids[slot] for slot in chosen]
            first = Assignments([], fitting=int(np.count_nonzero(copies)))
            self._placed.append(
                PlacedTasks(job, ready[: len(chosen)], nodes, [0] * len(nodes), LOOKAHEAD, first)
            )
        return ready[len(chosen) :]

    def _may_use_lookahead(self, job: JobView) -> bool:
        """Lookahead tasks start without asking the server: no rule, quota or device may depend on when."""
        spec = job.spec
        plain = (
            spec.run is RunMode.AT_LEAST_ONCE and spec.rules == NO_AFFINITY_RULES and GPU not in spec.needs
        )
        # A service never frees the slot that the next one waits for.
        plain = plain and spec.kind is JobKind.BATCH
        free = self._shares.quota_left(spec) is None and not self._placer.affinity.repelled(spec)
        return plain and job.runs_briefly and free

    def _on_unplaced(self, job: JobView, queue: QueueKey, left: list[int], *, behind: bool) -> bool:
        """Some tasks fit nowhere: evict others, or reserve. Returns whether the next job may succeed."""
        spec = job.spec
        if spec.gang and job.task_counts.live and spec.run is RunMode.AT_LEAST_ONCE and not behind:
            self._broken_gangs.append(job)
            return True
        # Victims for these tasks are stopping already: evicting others for them would stop twice as many.
        left = left[0 if spec.kind is _SYSTEM else len(self._cache.nominated.get(spec.id, [])) :]
        if left and not spec.gang and not behind:
            left = self._preempt(job, left)
            if left and self._may_evict_more(job):
                self._reopened.append(queue)
                self._evicts_more = True
        repelled = self._placer.affinity.repelled(spec)
        if repelled:
            self._repelled.setdefault(queue, {}).update(dict.fromkeys(repelled))
            self._repelled_in_vain.add((queue, tuple(repelled)))
        else:
            self._block_queue(job, queue, behind=behind)
        if left and spec.kind is not _SYSTEM and spec.id not in self._cache.nominated:
            if not self._settings.backfill:
                self._set_head_without_backfill(job)
            elif self._queue.has_several_queues:
                self._find_head_of_line(up_to=spec.queue_rank)
        return bool(repelled)

    def _may_evict_more(self, job: JobView) -> bool:
        """Whether the next round may evict more for this job, on nodes barred by evictions of this round."""
        for preemptor, eviction in self._evicted:
            priorities = (self._view.jobs[name[0]].spec.priority for name in eviction.victims)
            if preemptor is job or any(low <= job.spec.priority - PREEMPT_MARGIN for low in priorities):
                return True
        return False

    def _set_head_without_backfill(self, job: JobView) -> None:
        """Without backfill the head of line is the first job that an empty node could run."""
        refused = slot_mask(self._view, refusing_slots(self._view, job, self._now))
        if self._cache.head_of_line is None and self._placer.fits_an_empty_node(job, refused):
            self._cache.head_of_line = HeadOfLine(job.spec.id, 1, NEVER_MS)

    def _find_head_of_line(self, up_to: QueueRank | None) -> None:
        """Reserve resources for the highest-ranked job that waits for work with a known end.

        `up_to`: jobs of lower rank have not been tried in this round.
        """
        cache, now = self._cache, self._now
        while cache.head_of_line is None and cache.may_try_reservation(now):
            rank = self._queue.highest_ranked(self._view, now)
            if rank is None or (up_to is not None and rank > up_to):
                return
            name = JobId(str(rank[2]))
            waiting = self._view.jobs[name]
            tasks = waiting.task_counts.pending if waiting.spec.gang else 1
            backoff_until_ms = cache.backoff_until_ms(name)
            reservation = None
            if backoff_until_ms <= now.ms and name not in cache.nominated:
                reservation = find_reservation(self._view, self._placer, waiting, tasks, now)
            if reservation is None:
                cache.count_failed_reservation()
                self._queue.defer_highest_ranked(max(backoff_until_ms, now.ms + RESERVATION_RETRY_MS))
                continue
            # Bounded from the first estimate: work that overruns its expected end would
            # otherwise keep nodes empty without end.
            ahead_ms = reservation.at_ms - now.wall_ms
            until_ms = now.ms + ahead_ms + max(ahead_ms // 2, RESERVATION_LATE_MS)
            cache.head_of_line, self._reservation = HeadOfLine(name, tasks, until_ms), reservation

    def _block_queue(
        self,
        job: JobView,
        queue: QueueKey,
        *,
        behind: bool,
        repelled_by: Set[tuple[Repulsion, ...]] = frozenset(),
    ) -> bool:
        """No job of the queue can start until something changes that the entry names."""
        spec = job.spec
        refused = self._refusals_end_ms(job)
        # The end of any task may free the nominated slot, or a place to queue on the node.
        lookahead = self._may_use_lookahead(job)
        any_growth = spec.id in self._cache.nominated or lookahead
        keys = watch_keys(spec, self._repelled.get(queue, ()), any_growth=any_growth)
        # Each task of a system job is bound to its own node: that one failed says nothing about the next.
        anywhere = needs_gpus(spec.shape) or bool(self._settings.plugins.filters) or spec.kind is _SYSTEM
        trial = FailedTrial(spec.queue_rank, behind, repelled_by, anywhere, lookahead)
        self._queue.block(queue, trial, min(refused, default=None), keys)
        return False

    def _refusals_end_ms(self, job: JobView) -> list[int]:
        refused = self._view.refused_by(job.spec.refusal_key).values()
        return [until_ms for until_ms, _ in refused if until_ms > self._now.ms]

    def _preempt(self, job: JobView, left: list[int]) -> list[int]:
        """Evict the smallest set of tasks for each task, one node at a time. Returns the tasks left over."""
        at_once = len(left)
        if job.spec.rules != NO_AFFINITY_RULES:  # affinity rules do not see resources that are still in use
            at_once = 0 if job.spec.id in self._cache.nominated else 1
        barred = slot_mask(self._view, refusing_slots(self._view, job, self._now))
        if job.spec.kind is JobKind.SYSTEM:
            nominated = [nomination.slot for nomination in self._cache.nominated.get(job.spec.id, [])]
            barred |= system_jobs.other_nodes_mask(self._view, job, left) | slot_mask(self._view, nominated)
        for _ in range(min(at_once, EVICTIONS_MAX - len(self._evicted))):
            evicting = {name for _, eviction in self._evicted for name in eviction.victims}
            # What these leave is counted in the next round: here it would be counted twice.
            barred[self._slots_of(evicting)] = True
            eviction = find_victims(self._view, self._placer, job, barred, evicting)
            if eviction is None:
                break
            barred[eviction.slot] = True
            self._evicted.append((job, eviction))
            nomination = Nomination(eviction.slot, self._now.ms + NOMINATED_MS)
            # Kept in the cache only. After a restart the next search counts what victims are still leaving,
            # and evicts no others for it.
            self._cache.nominated.setdefault(job.spec.id, []).append(nomination)
            self._placer.board.allocate(job.spec.shape, eviction.slot)
            left = left[1:]
        return left

    def _slots_of(self, names: Iterable[TaskKey]) -> list[int]:
        """Slots of the nodes of these tasks."""
        found = []
        for job_id, index in names:
            block, position = divmod(index, BLOCK_TASKS)
            attempt = self._view.jobs[job_id].attempts[block]
            found.append(self._view.node_table.slot[attempt.nodes[ints(attempt, "node")[position]]])
        return found

    def _reserve_nominated(self, times: int, job: JobView | None = None) -> None:
        """Allocate nominated slots on the board (1) or release them (-1): all, or those of one job."""
        nominated = self._cache.nominated
        if not nominated:
            return
        for name in list(nominated) if job is None else [job.spec.id]:
            for nomination in nominated.get(name, []):
                self._placer.board.allocate(self._view.jobs[name].spec.shape, nomination.slot, times)

    def _reject(self, job: JobView, queue: QueueKey, assignments: Assignments) -> None:
        """Reject the job, unless some tasks are offered: if a node accepts one, the job has started."""
        # The trial has allocated on the board; the job does not start, so it must leave no trace there.
        self._placer.release(job, assignments.assigned)
        if job.task_counts.live:
            self._reopened.append(queue)
            return
        if assignments.assigned:
            reason = (
                f"only {len(assignments.assigned)} of its {job.task_counts.pending} tasks could start now"
            )
        else:
            reasons = explain_job(self._view, job.spec.id, self._now, self._settings.plugins).reasons
            reason = "; ".join(reason.text for reason in reasons)
        self._verdicts.append(SchedulerVerdict(job.spec.id, reason))

    def _plan(self) -> Plan:
        blocks = AttemptBlockWriter()
        events = []
        for placed in self._placed:
            choice = self._choice(placed)
            blocks.add(placed, choice, self._now.wall_ms)
            node = placed.nodes[0] if len(set(placed.nodes)) == 1 else None
            indices = tuple(Ranges(placed.indices).pairs)
            events.append(
                EventRecord("task.placed", choice.why, job=placed.job.spec.id, node=node, indices=indices)
            )
            events += moved_events(self._view, placed)
        for preemptor, eviction in self._evicted:
            events += self._evict_victims(blocks, preemptor, eviction.victims)
        for gang in self._broken_gangs:  # one of its tasks was lost and fits nowhere else
            events += self._evict_victims(blocks, gang, live_tasks(gang))
        reasons = "; ".join(event.why for event in events)
        events += [
            EventRecord("placement.impossible", verdict.reason, job=verdict.id) for verdict in self._verdicts
        ]
        wake_at = self._wake_at_ms()
        puts: tuple[Record, ...] = (*blocks.records(), *self._verdicts)
        if wake_at is None and not puts:
            return NO_CHANGE
        return Plan(puts, events=tuple(events), why=reasons, wake_at_ms=wake_at)

    def _wake_at_ms(self) -> int | None:
        """When the next backoff, refusal, nomination or reservation ends."""
        first = self._cache.head_of_line
        times = [
            nomination.until_ms
            for nominations in self._cache.nominated.values()
            for nomination in nominations
        ]
        times += [] if first is None or not self._settings.backfill else [first.until_ms]
        times += self._refused_until_ms
        # A job whose ready tasks are placed leaves its queue; only the next round knows how long the others
        # back off. The same holds for jobs that wait for neighbours, which this round may have placed.
        again = self._some_back_off or self._queue.has_watches
        times += [self._now.ms + 1] if again and self._placed else []
        # Queues that were tried behind the previous head of line may evict others now.
        other_head = bool(self._queue.blocked) and self._queue.blocked.head_changed
        times += [self._now.ms + 1] if other_head or self._evicts_more else []
        times += [at for at in (self._queue.next_timer_ms(), self._view.next_resume_ms()) if at is not None]
        return min(times, default=None)

    def _evict_victims(
        self, writer: AttemptBlockWriter, preemptor: JobView, victims: Iterable[TaskKey]
    ) -> Iterable[EventRecord]:
        by_job: dict[JobId, list[int]] = {}
        for job_id, index in victims:
            by_job.setdefault(job_id, []).append(index)
            writer.evict(self._view.jobs[job_id], index)
        for job_id, indices in by_job.items():
            ranges = Ranges(indices)
            s, es = ("s", "") if len(indices) > 1 else ("", "s")
            tasks = f"task{s} {ranges} of job {job_id}"
            if job_id == preemptor.spec.id:
                reason = f"{tasks} stop{es}: the gang starts again as a whole"
            else:
                high, low = preemptor.spec.priority, self._view.jobs[job_id].spec.priority
                reason = f"{tasks} give{es} way to job {preemptor.spec.id}: priority {high} over {low}"
            yield EventRecord("task.evicted", reason, job=job_id, indices=tuple(ranges.pairs))

    def _choice(self, placed: PlacedTasks) -> Choice:
        first = placed.first
        runner_up = None if first.runner_up is None else self._view.node_table.ids[first.runner_up]
        points, others = round(first.points, 2), round(first.runner_up_points, 2)
        return Choice(_describe_placement(placed), placed.nodes[0], first.fitting, runner_up, points, others)


def _is_pending(job: JobView) -> bool:
    return job.task_counts.pending > 0 and job.status is not None and job.status.state is JobState.ACTIVE


def _describe_placement(placed: PlacedTasks) -> str:
    spec = placed.job.spec
    tasks = f"{len(placed.indices)} task{'s' if len(placed.indices) > 1 else ''} of job {spec.id}"
    if placed.flags & LOOKAHEAD:
        return f"{tasks} wait on their nodes for the next free slot"
    if spec.kind is _SYSTEM:
        return f"{tasks} on {'their nodes' if len(placed.indices) > 1 else 'its node'}"
    if placed.first.fitting == 1:
        return f"{tasks} on the only fitting node"
    best = "fullest" if spec.policy is _PACK else "idlest"
    best = (
        "best" if spec.rules != NO_AFFINITY_RULES or spec.prefer or spec.noise or GPU in spec.needs else best
    )
    return f"{tasks} on the {best} of {placed.first.fitting} fitting nodes"
