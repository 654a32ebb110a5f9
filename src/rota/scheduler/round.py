"""One round: whoever waits, first in turn first, onto nodes; promised room; or in place of lesser work."""

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
    """What an operator decides about placement."""

    plugins: Plugins = Plugins()
    backfill: bool = True  # later jobs may start while the first one waits, where that does not delay it


class Nomination(NamedTuple):
    """Room that others are leaving for one task of a job."""

    slot: int
    until_ms: int


class HeadOfLine(NamedTuple):
    """The head of the queue: the job that room is held for, and until when."""

    job: JobId
    tasks: int  # of it that have to start at once
    until_ms: int


class SchedulerCache:
    """What can be computed again, or lapses: rows of points, lines that wait, room others are leaving."""

    def __init__(self, view: View, settings: SchedulerSettings) -> None:
        self.node_table = view.node_table  # whose slots it speaks of
        self.placer = Placer(view, settings.plugins)
        self.queue = TrialQueue(self.placer.board)
        self.nominated: dict[JobId, list[Nomination]] = {}
        self.head_of_line: HeadOfLine | None = None
        self._reservations_tried = 0  # in vain, since
        self._reservations_tried_since_ms = 0
        self.backoffs: dict[JobId, int] = {}  # job -> until when it is not the head: its promise was not kept
        self.system_job_inputs: dict[
            JobId, system_jobs.SystemJobInput
        ] = {}  # by system job: when its nodes were looked at

    def drop_expired(self, view: View, now: Instant) -> None:
        """What was promised to those who wait no longer, or for too long; and what others left in vain."""
        first = self.head_of_line
        if first is not None:
            job = view.jobs.get(first.job)
            if job is None or not _is_pending(job):
                self.head_of_line = None
            elif first.until_ms <= now.ms:
                self.head_of_line = None
                self.backoffs = {one: until for one, until in self.backoffs.items() if until > now.ms}
                self.backoffs[first.job] = now.ms + RESERVATION_BACKOFF_MS
        for name, nominations in list(self.nominated.items()):
            job = view.jobs.get(name)
            waits = job is not None and _is_pending(job)
            good = [
                one
                for one in nominations
                if waits and one.until_ms > now.ms and view.node_table.open[one.slot]
            ]
            if len(good) < len(nominations):
                self.queue.open_lookahead()
                if job is not None and job.queue is not None:
                    self.queue.open(job.queue)
            if good:
                self.nominated[name] = good
            else:
                del self.nominated[name]

    def may_try_reservation(self, now: Instant) -> bool:
        if now.ms - self._reservations_tried_since_ms >= RESERVATIONS_TRIED_MS:
            self._reservations_tried, self._reservations_tried_since_ms = 0, now.ms
        return self._reservations_tried < RESERVATIONS_TRIED_MAX

    def count_failed_reservation(self) -> None:
        self._reservations_tried += 1

    def backoff_until_ms(self, job: JobId) -> int:
        return self.backoffs.get(job, 0)


class Round:
    """One pass over the lines that might start something; what it decides is in its plan."""

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
        self._repelled: dict[QueueKey, dict[Repulsion, None]] = {}  # by whom jobs of a line are
        self._repelled_in_vain: set[tuple[QueueKey, tuple[Repulsion, ...]]] = (
            set()
        )  # those that found no room
        self._reopened: list[QueueKey] = []
        self._used_nominations = False  # room that was left for some is taken now
        self._evicts_more = False  # in the next round, on nodes where others have just been told to leave
        self._refused_until_ms: list[int] = []  # when refusals lapse that bar moved tasks from nodes
        self._some_back_off = False  # some tasks are in a pause while others of their job may start now

    def run(self) -> Plan:
        first = self._cache.head_of_line
        has_news = self._queue.has_due_queues(self._view, None if first is None else first.job, self._now)
        if not has_news and self._settings.backfill and not self._view.moving:
            return self._plan()
        self._reserve_nominated(1)
        reserve_targets(self._view, self._placer.board, self._now, 1)
        self._renew_reservation()
        self._place_moved()
        # After the moved tasks: no queue is tried with what these took. If it counted as tried in vain, the
        # queues would not be tried again when the moved tasks give it back.
        before = self._placer.board.free.copy()
        turns = RankedQueue(self._shares, self._due_heads())
        while (head := turns.pop()) is not None:
            goes_on = self._queue.start_trial(head.queue) and self._try_job(
                self._view.jobs[head.job], head.queue
            )
            if goes_on and head.next is None:
                self._end_queue(head)
            if self._cache.head_of_line is not None and not self._settings.backfill:
                break
            turns.advance(head, goes_on)
        self._queue.blocked.end_round(before, self._reservation)
        reserve_targets(self._view, self._placer.board, self._now, -1)
        self._reserve_nominated(-1)
        self._queue.end_round()
        if self._used_nominations:
            self._queue.open_lookahead()
        for line in self._reopened:
            self._queue.open(line)
        return self._plan()

    def _due_heads(self) -> list[QueueHead]:
        """Lines to try. Where no job may pass the head of the queue, all are tried to find that one."""
        heads = self._queue.due_heads(self._view, self._reservation, self._now)
        if self._settings.backfill:
            return heads
        self._cache.head_of_line = None
        for line, _ in self._view.pending_queues():
            self._queue.open(line)
        return [QueueHead(jobs[0], 0, line, jobs) for line, jobs in self._view.pending_queues()]

    def _renew_reservation(self) -> None:
        """As work ends or takes longer than expected the promise changes, and may turn out to be void."""
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
        """Moved tasks go first: they held room already, and are in no line."""
        for name in self._view.moving:
            job = self._view.jobs[name]
            placed = 0
            for indices, barred in due_groups(self._view, job, self._now):
                wanted = count_movable(job, self._shares, len(indices), placed)
                if wanted <= 0:
                    break
                held_back = self._reserved_amounts(job)
                self._reserve_nominated(-1, job)  # which its placement uses up
                self._adjust_free(held_back, -1)
                seated = self._placer.place(job, wanted, barred)
                self._adjust_free(held_back, 1)
                self._record_placement(job, indices, seated)
                placed += len(seated.assigned)
                self._reserve_nominated(1, job)
                if len(seated.assigned) < len(indices):  # in no line, whose timer would try them again
                    self._refused_until_ms += self._refusals_end_ms(job)

    def _try_job(self, job: JobView, queue: QueueKey) -> bool:
        """A job has its turn; says whether the next in its line may do better."""
        if job.verdict is not None or self._is_known_repelled(job, queue):
            return True
        wanted = count_startable(job, self._shares, self._now)
        if wanted <= 0:
            self._queue.block_by_quota(self._view, queue)
            return False
        held_back = self._reserved_amounts(job)
        refused = refusing_slots(self._view, job, self._now)
        most = self._tasks_to_try(job)
        ready = job.ready(self._now.ms, min(wanted, most))
        self._some_back_off |= len(ready) < min(wanted, most)
        self._reserve_nominated(-1, job)
        self._adjust_free(held_back, -1)
        pinned = self._place_tasks(job, ready, refused)
        ready, seated = pinned.indices, pinned.assignments
        self._adjust_free(held_back, 1)
        if len(seated.assigned) < wanted and must_start_now(job):
            self._reject(job, queue, seated)
            return True
        self._record_placement(job, ready, seated)
        self._reserve_nominated(1, job)
        if len(seated.assigned) == len(ready):
            return self._may_continue_queue(job, queue, truncated=len(ready) == most < wanted)
        # Who waits on a node might take what is promised to others, or what others are leaving for them.
        made = [one.slot for nominations in self._cache.nominated.values() for one in nominations]
        kept_off = slot_mask(self._view, [*refused, *held_back, *made])
        left = self._place_lookahead(job, ready[len(seated.assigned) :], kept_off)
        return not left or self._on_unplaced(job, queue, left, behind=bool(held_back))

    def _may_continue_queue(self, job: JobView, queue: QueueKey, *, truncated: bool) -> bool:
        """All that were looked at have a place: are there others, and may they start?"""
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
        """By the same jobs as another one of its line, which found no room."""
        if queue not in self._repelled:
            return False
        return (queue, tuple(self._placer.affinity.repelled(job.spec))) in self._repelled_in_vain

    def _end_queue(self, head: QueueHead) -> None:
        """Its last job has had its turn: of those kept away by others, none goes on before these move."""
        if head.queue in self._repelled:
            first = JobId(str(head.ranks[0][2]))
            by = frozenset(repelled for line, repelled in self._repelled_in_vain if line == head.queue)
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
        """What of each node is promised to the head of the queue, and not to be had for this one."""
        if self._reservation is None:
            return {}
        return self._reservation.reserved_from(job.spec, self._placer.board, self._now)

    def _tasks_to_try(self, job: JobView) -> int:
        """One more than can be placed now, to see that it is full."""
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
        nodes = [ids[seat.slot] for seat in assignments.assigned]
        devices = [seat.devices for seat in assignments.assigned]
        self._placed.append(PlacedTasks(job, ready[: len(nodes)], nodes, devices, 0, assignments))
        if self._cache.head_of_line is not None and self._cache.head_of_line.job == job.spec.id:
            self._cache.head_of_line = self._reservation = None
        self._shares.charge(job.spec, len(nodes))
        if self._cache.nominated:
            self._use_nominations(job, assignments)
        if self._reservation is not None:
            for seat in assignments.assigned:
                self._reservation.use_beside(job.spec, seat.slot)

    def _use_nominations(self, job: JobView, assignments: Assignments) -> None:
        """Of a system job only the rooms that were taken: each is for one of its tasks."""
        made = self._cache.nominated.pop(job.spec.id, [])
        self._used_nominations |= bool(made)
        taken = {seat.slot for seat in assignments.assigned}
        left = [one for one in made if one.slot not in taken]
        if left and job.spec.kind is JobKind.SYSTEM:
            self._cache.nominated[job.spec.id] = left

    def _place_lookahead(self, job: JobView, ready: list[int], barred: Array) -> list[int]:
        """Short tasks may wait on the node, so that a freed slot needs no round trip; returns who is left."""
        if not self._may_use_lookahead(job):
            return ready
        spec = job.spec
        board = self._placer.board
        allowed = self._placer.rows.eligible(spec.shape)
        slots = np.where(allowed & ~barred, board.tasks_when_empty(spec.shape), 0)
        per_slot = math.ceil(LOOKAHEAD_US / max(1.0, job.run_us or 1.0))
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
        """Who waits on a node starts unasked: so no rule, no quota and no device may depend on it."""
        spec = job.spec
        plain = (
            spec.run is RunMode.AT_LEAST_ONCE and spec.rules == NO_AFFINITY_RULES and GPU not in spec.needs
        )
        plain = plain and spec.kind is JobKind.BATCH  # what stays would hold for ever what the next waits for
        free = self._shares.quota_left(spec) is None and not self._placer.affinity.repelled(spec)
        return plain and job.runs_briefly and free

    def _on_unplaced(self, job: JobView, queue: QueueKey, left: list[int], *, behind: bool) -> bool:
        """Some of its tasks find no room: others give way, or it is promised some; may the next do better?"""
        spec = job.spec
        if spec.gang and job.task_counts.live and spec.run is RunMode.AT_LEAST_ONCE and not behind:
            self._broken_gangs.append(job)
            return True
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
        """Nodes on which this round has made room were out of question from then on: not in the next one."""
        for preemptor, eviction in self._evicted:
            going = (self._view.jobs[name[0]].spec.priority for name in eviction.victims)
            if preemptor is job or any(one <= job.spec.priority - PREEMPT_MARGIN for one in going):
                return True
        return False

    def _set_head_without_backfill(self, job: JobView) -> None:
        """Where no job may pass the head of the queue, it is the first that waits for room."""
        refused = slot_mask(self._view, refusing_slots(self._view, job, self._now))
        if self._cache.head_of_line is None and self._placer.fits_an_empty_node(job, refused):
            self._cache.head_of_line = HeadOfLine(job.spec.id, 1, NEVER_MS)

    def _find_head_of_line(self, up_to: QueueRank | None) -> None:
        """Room is promised to the first in turn that waits for work with a known end.

        `up_to`: later jobs have not had their turn in this round.
        """
        memory, now = self._cache, self._now
        while memory.head_of_line is None and memory.may_try_reservation(now):
            turn = self._queue.highest_ranked(self._view, now)
            if turn is None or (up_to is not None and turn > up_to):
                return
            name = JobId(str(turn[2]))
            waiting = self._view.jobs[name]
            tasks = waiting.task_counts.pending if waiting.spec.gang else 1
            rests_until_ms = memory.backoff_until_ms(name)
            made = None
            if rests_until_ms <= now.ms and name not in memory.nominated:
                made = find_reservation(self._view, self._placer, waiting, tasks, now)
            if made is None:
                memory.count_failed_reservation()
                self._queue.defer_highest_ranked(max(rests_until_ms, now.ms + RESERVATION_RETRY_MS))
                continue
            ahead_ms = made.at_ms - now.wall_ms
            until_ms = now.ms + ahead_ms + max(ahead_ms // 2, RESERVATION_LATE_MS)
            memory.head_of_line, self._reservation = HeadOfLine(name, tasks, until_ms), made

    def _block_queue(
        self,
        job: JobView,
        queue: QueueKey,
        *,
        behind: bool,
        repelled_by: Set[tuple[Repulsion, ...]] = frozenset(),
    ) -> bool:
        """Nobody of its line can do better until something changes."""
        spec = job.spec
        refused = self._refusals_end_ms(job)
        # The end of any task may leave it the room it was nominated for, or a place to wait on the node.
        ahead = self._may_use_lookahead(job)
        any_growth = spec.id in self._cache.nominated or ahead
        keys = watch_keys(spec, self._repelled.get(queue, ()), any_growth=any_growth)
        # Of a system job the task that was tried in vain is bound to another node than the next one.
        anywhere = needs_gpus(spec.shape) or bool(self._settings.plugins.filters) or spec.kind is _SYSTEM
        how = FailedTrial(spec.queue_rank, behind, repelled_by, anywhere, ahead)
        self._queue.block(queue, how, min(refused, default=None), keys)
        return False

    def _refusals_end_ms(self, job: JobView) -> list[int]:
        refused = self._view.refused_by(job.spec.refusal_key).values()
        return [until_ms for until_ms, _ in refused if until_ms > self._now.ms]

    def _preempt(self, job: JobView, left: list[int]) -> list[int]:
        """For each task the smallest set that has to give way, one node at a time; returns who is left."""
        at_once = len(left)
        if job.spec.rules != NO_AFFINITY_RULES:  # rules do not know of room to come
            at_once = 0 if job.spec.id in self._cache.nominated else 1
        barred = slot_mask(self._view, refusing_slots(self._view, job, self._now))
        if job.spec.kind is JobKind.SYSTEM:
            made = [one.slot for one in self._cache.nominated.get(job.spec.id, [])]
            barred |= system_jobs.other_nodes_mask(self._view, job, left) | slot_mask(self._view, made)
        for _ in range(min(at_once, EVICTIONS_MAX - len(self._evicted))):
            going = {name for _, eviction in self._evicted for name in eviction.victims}
            barred[self._slots_of(going)] = True
            eviction = find_victims(self._view, self._placer, job, barred, going)
            if eviction is None:
                break
            barred[eviction.slot] = True
            self._evicted.append((job, eviction))
            nomination = Nomination(eviction.slot, self._now.ms + NOMINATED_MS)
            self._cache.nominated.setdefault(job.spec.id, []).append(nomination)
            self._placer.board.allocate(job.spec.shape, eviction.slot)
            left = left[1:]
        return left

    def _slots_of(self, names: Iterable[TaskKey]) -> list[int]:
        """Where these tasks are: what they leave there is seen in the next round."""
        found = []
        for job_id, index in names:
            block, position = divmod(index, BLOCK_TASKS)
            attempt = self._view.jobs[job_id].attempts[block]
            found.append(self._view.node_table.slot[attempt.nodes[ints(attempt, "node")[position]]])
        return found

    def _reserve_nominated(self, times: int, job: JobView | None = None) -> None:
        """Take room that others are leaving for somebody off the board, or give it back."""
        nominated = self._cache.nominated
        if not nominated:
            return
        for name in list(nominated) if job is None else [job.spec.id]:
            for nomination in nominated.get(name, []):
                self._placer.board.allocate(self._view.jobs[name].spec.shape, nomination.slot, times)

    def _reject(self, job: JobView, queue: QueueKey, assignments: Assignments) -> None:
        """End the job, unless others of its tasks are offered: if a node accepts one, the job has begun."""
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
            reason = "; ".join(one.text for one in reasons)
        self._verdicts.append(SchedulerVerdict(job.spec.id, reason))

    def _plan(self) -> Plan:
        blocks = AttemptBlockWriter()
        events = []
        for one in self._placed:
            choice = self._choice(one)
            blocks.add(one, choice, self._now.wall_ms)
            node = one.nodes[0] if len(set(one.nodes)) == 1 else None
            indices = tuple(Ranges(one.indices).pairs)
            events.append(
                EventRecord("task.placed", choice.why, job=one.job.spec.id, node=node, indices=indices)
            )
            events += moved_events(self._view, one)
        for preemptor, eviction in self._evicted:
            events += self._evict_victims(blocks, preemptor, eviction.victims)
        for gang in self._broken_gangs:  # one of its tasks was lost, and finds no other room
            events += self._evict_victims(blocks, gang, live_tasks(gang))
        reasons = "; ".join(event.why for event in events)
        events += [EventRecord("placement.impossible", one.reason, job=one.id) for one in self._verdicts]
        wake_at = self._wake_at_ms()
        puts: tuple[Record, ...] = (*blocks.records(), *self._verdicts)
        if wake_at is None and not puts:
            return NO_CHANGE
        return Plan(puts, events=tuple(events), why=reasons, wake_at_ms=wake_at)

    def _wake_at_ms(self) -> int | None:
        """When a pause, a refusal, a nomination or a promise ends."""
        first = self._cache.head_of_line
        times = [one.until_ms for nominations in self._cache.nominated.values() for one in nominations]
        times += [] if first is None or not self._settings.backfill else [first.until_ms]
        times += self._refused_until_ms
        # When those are placed the job is out of its line; only the next round knows how long it pauses.
        # So with those that wait for neighbours, which this round may have placed.
        again = self._some_back_off or self._queue.has_watches
        times += [self._now.ms + 1] if again and self._placed else []
        # Lines that were tried behind the last head may evict others now.
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
