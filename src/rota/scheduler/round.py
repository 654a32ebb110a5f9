"""One round: whoever waits, first in turn first, onto nodes; promised room; or in place of lesser work."""

import math
from collections.abc import Iterable, Set
from typing import NamedTuple

import numpy as np

from rota.model.amounts import GPU
from rota.model.attempt import LOOKAHEAD, Choice
from rota.model.columns import Array, Ranges, ints
from rota.model.ids import JobId
from rota.model.job import JobVerdict, Kind, Turn
from rota.model.lifecycle import JobState
from rota.model.limits import (
    BLOCK_TASKS,
    EVICTIONS_MAX,
    LOOKAHEAD_TASKS_MAX,
    LOOKAHEAD_US,
    NOMINATED_MS,
    PREEMPT_MARGIN,
    PROMISE_LATE_MS,
    PROMISE_LOOK_MS,
    PROMISE_REST_MS,
    PROMISES_TRIED_MAX,
    PROMISES_TRIED_MS,
)
from rota.model.neighbours import Repulsion
from rota.model.plan import NOTHING, Event, Instant, Plan, Record
from rota.model.shape import NO_RULES, Line, Policy, RunMode
from rota.model.view import JobView, View
from rota.scheduler import elsewhere, pins
from rota.scheduler.backfill import NEVER_MS, Promise, promise
from rota.scheduler.blocked import Try, asks_for_devices
from rota.scheduler.blocks import Blocks, Placed
from rota.scheduler.explain import why
from rota.scheduler.moves import hold_targets, moved_events, pending_groups
from rota.scheduler.order import Head, Shares, Turns, is_impatient, may_move, may_start
from rota.scheduler.place import Seated, Seating, barring, refusing
from rota.scheduler.preempt import Eviction, Name, find_victims, live_tasks
from rota.scheduler.queue import Queue, watched
from rota.scheduler.rows import Plugins

# Enum members are slow to look up, and these are asked for at every placement.
_SYSTEM, _PACK = Kind.SYSTEM, Policy.PACK


class Settings(NamedTuple):
    """What an operator decides about placement."""

    plugins: Plugins = Plugins()
    backfill: bool = True  # later jobs may start while the first one waits, where that does not delay it


class Nomination(NamedTuple):
    """Room that others are leaving for one task of a job."""

    slot: int
    until_ms: int


class First(NamedTuple):
    """The head of the queue: the job that room is held for, and until when."""

    job: JobId
    tasks: int  # of it that have to start at once
    until_ms: int


class Memory:
    """What can be computed again, or lapses: rows of points, lines that wait, room others are leaving."""

    def __init__(self, view: View, settings: Settings) -> None:
        self.room = view.room  # whose slots it speaks of
        self.seating = Seating(view, settings.plugins)
        self.queue = Queue(self.seating.board)
        self.nominated: dict[JobId, list[Nomination]] = {}
        self.first: First | None = None
        self._promises_tried = 0  # in vain, since
        self._promises_tried_since_ms = 0
        self.resting: dict[JobId, int] = {}  # job -> until when it is not the head: its promise was not kept
        self.pinned: dict[JobId, pins.Seen] = {}  # by system job: when its nodes were looked at

    def forget_lapsed(self, view: View, now: Instant) -> None:
        """What was promised to those who wait no longer, or for too long; and what others left in vain."""
        first = self.first
        if first is not None:
            job = view.jobs.get(first.job)
            if job is None or not _waits(job):
                self.first = None
            elif first.until_ms <= now.ms:
                self.first = None
                self.resting = {one: until for one, until in self.resting.items() if until > now.ms}
                self.resting[first.job] = now.ms + PROMISE_REST_MS
        for name, nominations in list(self.nominated.items()):
            job = view.jobs.get(name)
            waits = job is not None and _waits(job)
            good = [
                one for one in nominations if waits and one.until_ms > now.ms and view.room.open[one.slot]
            ]
            if len(good) < len(nominations):
                self.queue.open_ahead()
                if job is not None and job.in_line is not None:
                    self.queue.open(job.in_line)
            if good:
                self.nominated[name] = good
            else:
                del self.nominated[name]

    def may_try_a_promise(self, now: Instant) -> bool:
        if now.ms - self._promises_tried_since_ms >= PROMISES_TRIED_MS:
            self._promises_tried, self._promises_tried_since_ms = 0, now.ms
        return self._promises_tried < PROMISES_TRIED_MAX

    def note_no_promise(self) -> None:
        self._promises_tried += 1

    def rests_until_ms(self, job: JobId) -> int:
        return self.resting.get(job, 0)


class Round:
    """One pass over the lines that might start something; what it decides is in its plan."""

    def __init__(self, view: View, memory: Memory, settings: Settings, now: Instant) -> None:
        self._view = view
        self._memory = memory
        self._queue = memory.queue
        self._seating = memory.seating
        self._settings = settings
        self._now = now
        self._shares = Shares(view)
        self._placed: list[Placed] = []
        self._verdicts: list[JobVerdict] = []
        self._evicted: list[tuple[JobView, Eviction]] = []
        self._broken_up: list[JobView] = []
        self._promise: Promise | None = None
        self._kept_away: dict[Line, dict[Repulsion, None]] = {}  # by whom jobs of a line are
        self._kept_away_by: set[tuple[Line, tuple[Repulsion, ...]]] = set()  # those that found no room
        self._open_again: list[Line] = []
        self._used_nominated = False  # room that was left for some is taken now
        self._evicts_more = False  # in the next round, on nodes where others have just been told to leave
        self._refused_until_ms: list[int] = []  # when refusals lapse that bar moved tasks from nodes
        self._some_pause = False  # some tasks are in a pause while others of their job may start now

    def run(self) -> Plan:
        first = self._memory.first
        has_news = self._queue.has_news(self._view, None if first is None else first.job, self._now)
        if not has_news and self._settings.backfill and not self._view.moving:
            return self._plan()
        self._hold_nominated(1)
        hold_targets(self._view, self._seating.board, self._now, 1)
        before = self._seating.board.free.copy()
        self._renew_promise()
        self._place_moved()
        turns = Turns(self._shares, self._due())
        while (head := turns.pop()) is not None:
            goes_on = self._queue.may_try(head.line) and self._serve(self._view.jobs[head.job], head.line)
            if goes_on and head.next is None:
                self._end_line(head)
            if self._memory.first is not None and not self._settings.backfill:
                break
            turns.done(head, goes_on)
        self._queue.blocked.tried(before, self._promise)
        hold_targets(self._view, self._seating.board, self._now, -1)
        self._hold_nominated(-1)
        self._queue.end_round()
        if self._used_nominated:
            self._queue.open_ahead()
        for line in self._open_again:
            self._queue.open(line)
        return self._plan()

    def _due(self) -> list[Head]:
        """Lines to try. Where no job may pass the head of the queue, all are tried to find that one."""
        heads = self._queue.due(self._view, self._promise, self._now)
        if self._settings.backfill:
            return heads
        self._memory.first = None
        for line, _ in self._view.waiting():
            self._queue.open(line)
        return [Head(jobs[0], 0, line, jobs) for line, jobs in self._view.waiting()]

    def _renew_promise(self) -> None:
        """As work ends or takes longer than expected the promise changes, and may turn out to be void."""
        if not self._settings.backfill or not self._queue.has_several:
            return
        first = self._memory.first
        if first is not None:
            job = self._view.jobs[first.job]
            self._promise = promise(self._view, self._seating, job, first.tasks, self._now)
            if self._promise is None:
                self._memory.first = None
        if self._memory.first is None:
            self._find_first(up_to=None)

    def _place_moved(self) -> None:
        """Moved tasks go first: they held room already, and are in no line."""
        for name in self._view.moving:
            job = self._view.jobs[name]
            placed = 0
            for indices, barred in pending_groups(self._view, job, self._now):
                wanted = may_move(job, self._shares, len(indices), placed)
                if wanted <= 0:
                    break
                held_back = self._held_back(job)
                self._hold_nominated(-1, job)  # which its placement uses up
                self._shift(held_back, -1)
                seated = self._seating.seat(job, wanted, barred)
                self._shift(held_back, 1)
                self._enter(job, indices, seated)
                placed += len(seated.seats)
                self._hold_nominated(1, job)
                if len(seated.seats) < len(indices):  # in no line, whose timer would try them again
                    self._refused_until_ms += self._refusals_end_ms(job)

    def _serve(self, job: JobView, line: Line) -> bool:
        """A job has its turn; says whether the next in its line may do better."""
        if job.verdict is not None or self._is_kept_away(job, line):
            return True
        wanted = may_start(job, self._shares, self._now)
        if wanted <= 0:
            self._queue.block_by_quota(self._view, line)
            return False
        held_back = self._held_back(job)
        refused = refusing(self._view, job, self._now)
        most = self._most(job)
        ready = job.ready(self._now.ms, min(wanted, most))
        self._some_pause |= len(ready) < min(wanted, most)
        self._hold_nominated(-1, job)
        self._shift(held_back, -1)
        pinned = self._seat(job, ready, refused)
        ready, seated = pinned.indices, pinned.seated
        self._shift(held_back, 1)
        if len(seated.seats) < wanted and is_impatient(job):
            self._reject(job, line, seated)
            return True
        self._enter(job, ready, seated)
        self._hold_nominated(1, job)
        if len(seated.seats) == len(ready):
            return self._place_rest(job, line, truncated=len(ready) == most < wanted)
        # Who waits on a node might take what is promised to others, or what others are leaving for them.
        made = [one.slot for nominations in self._memory.nominated.values() for one in nominations]
        kept_off = barring(self._view, [*refused, *held_back, *made])
        left = self._look_ahead(job, ready[len(seated.seats) :], kept_off)
        return not left or self._wait(job, line, left, behind=bool(held_back))

    def _place_rest(self, job: JobView, line: Line, *, truncated: bool) -> bool:
        """All that were looked at have a place: are there others, and may they start?"""
        if truncated:
            self._open_again.append(line)
        elif self._shares.left(job.spec) == 0:
            self._queue.block_by_quota(self._view, line)
            return False
        return True

    def _shift(self, held_back: dict[int, Array], times: int) -> None:
        for slot, amounts in held_back.items():
            self._seating.board.shift(slot, amounts * times)

    def _is_kept_away(self, job: JobView, line: Line) -> bool:
        """By the same jobs as another one of its line, which found no room."""
        if line not in self._kept_away:
            return False
        return (line, tuple(self._seating.company.repelled(job.spec))) in self._kept_away_by

    def _end_line(self, head: Head) -> None:
        """Its last job has had its turn: of those kept away by others, none goes on before these move."""
        if head.line in self._kept_away:
            first = JobId(str(head.jobs[0][2]))
            by = frozenset(repelled for line, repelled in self._kept_away_by if line == head.line)
            self._block(self._view.jobs[first], head.line, behind=False, kept_away=by)

    def _seat(self, job: JobView, ready: list[int], refused: list[int]) -> pins.Pinned:
        barred = barring(self._view, refused) if refused else None
        if job.spec.kind is _SYSTEM:
            return pins.seat(self._view, self._seating, job, ready, barred)
        return pins.Pinned(ready, elsewhere.seat(self._view, self._seating, job, ready, refused))

    def _held_back(self, job: JobView) -> dict[int, Array]:
        """What of each node is promised to the head of the queue, and not to be had for this one."""
        if self._promise is None:
            return {}
        return self._promise.kept_from(job.spec, self._seating.board, self._now)

    def _most(self, job: JobView) -> int:
        """One more than can be placed now, to see that it is full."""
        pending = job.tally.pending
        if pending <= LOOKAHEAD_TASKS_MAX or job.spec.gang or job.spec.kind is _SYSTEM:
            return pending
        board = self._seating.board
        copies = board.copies(job.spec.shape, np.arange(board.size))
        return int(copies.sum()) + LOOKAHEAD_TASKS_MAX * board.size + 1

    def _enter(self, job: JobView, ready: list[int], seated: Seated) -> None:
        if not seated.seats:
            return
        ids = self._view.room.ids
        nodes = [ids[seat.slot] for seat in seated.seats]
        devices = [seat.devices for seat in seated.seats]
        self._placed.append(Placed(job, ready[: len(nodes)], nodes, devices, 0, seated))
        if self._memory.first is not None and self._memory.first.job == job.spec.id:
            self._memory.first = self._promise = None
        self._shares.charge(job.spec, len(nodes))
        if self._memory.nominated:
            self._use_nominated(job, seated)
        if self._promise is not None:
            for seat in seated.seats:
                self._promise.lend(job.spec, seat.slot)

    def _use_nominated(self, job: JobView, seated: Seated) -> None:
        """Of a system job only the rooms that were taken: each is for one of its tasks."""
        made = self._memory.nominated.pop(job.spec.id, [])
        self._used_nominated |= bool(made)
        taken = {seat.slot for seat in seated.seats}
        left = [one for one in made if one.slot not in taken]
        if left and job.spec.kind is Kind.SYSTEM:
            self._memory.nominated[job.spec.id] = left

    def _look_ahead(self, job: JobView, ready: list[int], barred: Array) -> list[int]:
        """Short tasks may wait on the node, so that a freed slot needs no round trip; returns who is left."""
        if not self._may_look_ahead(job):
            return ready
        spec = job.spec
        board = self._seating.board
        allowed = self._seating.rows.eligible(spec.shape)
        slots = np.where(allowed & ~barred, board.slots(spec.shape), 0)
        per_slot = math.ceil(LOOKAHEAD_US / max(1.0, job.run_us or 1.0))
        depth = np.minimum(slots * per_slot, LOOKAHEAD_TASKS_MAX) - board.queued
        copies = np.where(slots > 0, np.maximum(0, np.minimum(depth, board.free[0])), 0)
        chosen = np.repeat(np.arange(copies.size), copies)[: len(ready)].tolist()
        if chosen:
            board.queued += np.bincount(chosen, minlength=board.size)
            nodes = [self._view.room.ids[slot] for slot in chosen]
            first = Seated([], fitting=int(np.count_nonzero(copies)))
            self._placed.append(Placed(job, ready[: len(chosen)], nodes, [0] * len(nodes), LOOKAHEAD, first))
        return ready[len(chosen) :]

    def _may_look_ahead(self, job: JobView) -> bool:
        """Who waits on a node starts unasked: so no rule, no quota and no device may depend on it."""
        spec = job.spec
        plain = spec.run is RunMode.AT_LEAST_ONCE and spec.rules == NO_RULES and GPU not in spec.needs
        plain = plain and spec.kind is Kind.BATCH  # what stays would hold for ever what the next waits for
        free = self._shares.left(spec) is None and not self._seating.company.repelled(spec)
        return plain and job.is_short and free

    def _wait(self, job: JobView, line: Line, left: list[int], *, behind: bool) -> bool:
        """Some of its tasks find no room: others give way, or it is promised some; may the next do better?"""
        spec = job.spec
        if spec.gang and job.tally.live and spec.run is RunMode.AT_LEAST_ONCE and not behind:
            self._broken_up.append(job)
            return True
        left = left[0 if spec.kind is _SYSTEM else len(self._memory.nominated.get(spec.id, [])) :]
        if left and not spec.gang and not behind:
            left = self._preempt(job, left)
            if left and self._may_evict_more(job):
                self._open_again.append(line)
                self._evicts_more = True
        repelled = self._seating.company.repelled(spec)
        if repelled:
            self._kept_away.setdefault(line, {}).update(dict.fromkeys(repelled))
            self._kept_away_by.add((line, tuple(repelled)))
        else:
            self._block(job, line, behind=behind)
        if left and spec.kind is not _SYSTEM and spec.id not in self._memory.nominated:
            if not self._settings.backfill:
                self._stop_at(job)
            elif self._queue.has_several:
                self._find_first(up_to=spec.order)
        return bool(repelled)

    def _may_evict_more(self, job: JobView) -> bool:
        """Nodes on which this round has made room were out of question from then on: not in the next one."""
        for preemptor, eviction in self._evicted:
            going = (self._view.jobs[name[0]].spec.priority for name in eviction.victims)
            if preemptor is job or any(one <= job.spec.priority - PREEMPT_MARGIN for one in going):
                return True
        return False

    def _stop_at(self, job: JobView) -> None:
        """Where no job may pass the head of the queue, it is the first that waits for room."""
        refused = barring(self._view, refusing(self._view, job, self._now))
        if self._memory.first is None and self._seating.fits_somewhere(job, refused):
            self._memory.first = First(job.spec.id, 1, NEVER_MS)

    def _find_first(self, up_to: Turn | None) -> None:
        """Room is promised to the first in turn that waits for work with a known end.

        `up_to`: later jobs have not had their turn in this round.
        """
        memory, now = self._memory, self._now
        while memory.first is None and memory.may_try_a_promise(now):
            turn = self._queue.first_in_turn(self._view, now)
            if turn is None or (up_to is not None and turn > up_to):
                return
            name = JobId(str(turn[2]))
            waiting = self._view.jobs[name]
            tasks = waiting.tally.pending if waiting.spec.gang else 1
            rests_until_ms = memory.rests_until_ms(name)
            made = None
            if rests_until_ms <= now.ms and name not in memory.nominated:
                made = promise(self._view, self._seating, waiting, tasks, now)
            if made is None:
                memory.note_no_promise()
                self._queue.pass_over(max(rests_until_ms, now.ms + PROMISE_LOOK_MS))
                continue
            ahead_ms = made.at_ms - now.wall_ms
            until_ms = now.ms + ahead_ms + max(ahead_ms // 2, PROMISE_LATE_MS)
            memory.first, self._promise = First(name, tasks, until_ms), made

    def _block(
        self,
        job: JobView,
        line: Line,
        *,
        behind: bool,
        kept_away: Set[tuple[Repulsion, ...]] = frozenset(),
    ) -> bool:
        """Nobody of its line can do better until something changes."""
        spec = job.spec
        refused = self._refusals_end_ms(job)
        # The end of any task may leave it the room it was nominated for, or a place to wait on the node.
        ahead = self._may_look_ahead(job)
        any_growth = spec.id in self._memory.nominated or ahead
        keys = watched(spec, self._kept_away.get(line, ()), any_growth=any_growth)
        # Of a system job the task that was tried in vain is bound to another node than the next one.
        anywhere = (
            asks_for_devices(spec.shape) or bool(self._settings.plugins.filters) or spec.kind is _SYSTEM
        )
        how = Try(spec.order, behind, kept_away, anywhere, ahead)
        self._queue.block(line, how, min(refused, default=None), keys)
        return False

    def _refusals_end_ms(self, job: JobView) -> list[int]:
        refused = self._view.refused_by(job.spec.errand).values()
        return [until_ms for until_ms, _ in refused if until_ms > self._now.ms]

    def _preempt(self, job: JobView, left: list[int]) -> list[int]:
        """For each task the smallest set that has to give way, one node at a time; returns who is left."""
        at_once = len(left)
        if job.spec.rules != NO_RULES:  # rules do not know of room to come
            at_once = 0 if job.spec.id in self._memory.nominated else 1
        barred = barring(self._view, refusing(self._view, job, self._now))
        if job.spec.kind is Kind.SYSTEM:
            made = [one.slot for one in self._memory.nominated.get(job.spec.id, [])]
            barred |= pins.elsewhere(self._view, job, left) | barring(self._view, made)
        for _ in range(min(at_once, EVICTIONS_MAX - len(self._evicted))):
            going = {name for _, eviction in self._evicted for name in eviction.victims}
            barred[self._slots_of(going)] = True
            eviction = find_victims(self._view, self._seating, job, barred, going)
            if eviction is None:
                break
            barred[eviction.slot] = True
            self._evicted.append((job, eviction))
            nomination = Nomination(eviction.slot, self._now.ms + NOMINATED_MS)
            self._memory.nominated.setdefault(job.spec.id, []).append(nomination)
            self._seating.board.take(job.spec.shape, eviction.slot)
            left = left[1:]
        return left

    def _slots_of(self, names: Iterable[Name]) -> list[int]:
        """Where these tasks are: what they leave there is seen in the next round."""
        found = []
        for job_id, index in names:
            block, position = divmod(index, BLOCK_TASKS)
            attempt = self._view.jobs[job_id].attempts[block]
            found.append(self._view.room.slot[attempt.nodes[ints(attempt, "node")[position]]])
        return found

    def _hold_nominated(self, times: int, job: JobView | None = None) -> None:
        """Take room that others are leaving for somebody off the board, or give it back."""
        nominated = self._memory.nominated
        if not nominated:
            return
        for name in list(nominated) if job is None else [job.spec.id]:
            for nomination in nominated.get(name, []):
                self._seating.board.take(self._view.jobs[name].spec.shape, nomination.slot, times)

    def _reject(self, job: JobView, line: Line, seated: Seated) -> None:
        """End the job, unless others of its tasks are offered: if a node accepts one, the job has begun."""
        self._seating.give_back(job, seated.seats)
        if job.tally.live:
            self._open_again.append(line)
            return
        if seated.seats:
            reason = f"only {len(seated.seats)} of its {job.tally.pending} tasks could start now"
        else:
            reasons = why(self._view, job.spec.id, self._now, self._settings.plugins).reasons
            reason = "; ".join(one.text for one in reasons)
        self._verdicts.append(JobVerdict(job.spec.id, reason))

    def _plan(self) -> Plan:
        blocks = Blocks()
        events = []
        for one in self._placed:
            choice = self._choice(one)
            blocks.add(one, choice, self._now.wall_ms)
            node = one.nodes[0] if len(set(one.nodes)) == 1 else None
            indices = tuple(Ranges(one.indices).pairs)
            events.append(Event("task.placed", choice.why, job=one.job.spec.id, node=node, indices=indices))
            events += moved_events(self._view, one)
        for preemptor, eviction in self._evicted:
            events += self._evict(blocks, preemptor, eviction.victims)
        for gang in self._broken_up:  # one of its tasks was lost, and finds no other room
            events += self._evict(blocks, gang, live_tasks(gang))
        reasons = "; ".join(event.why for event in events)
        events += [Event("placement.impossible", one.reason, job=one.id) for one in self._verdicts]
        wake_at = self._wake_at_ms()
        puts: tuple[Record, ...] = (*blocks.done(), *self._verdicts)
        if wake_at is None and not puts:
            return NOTHING
        return Plan(puts, events=tuple(events), why=reasons, wake_at_ms=wake_at)

    def _wake_at_ms(self) -> int | None:
        """When a pause, a refusal, a nomination or a promise ends."""
        first = self._memory.first
        times = [one.until_ms for nominations in self._memory.nominated.values() for one in nominations]
        times += [] if first is None or not self._settings.backfill else [first.until_ms]
        times += self._refused_until_ms
        # When those are placed the job is out of its line; only the next round knows how long it pauses.
        # So with those that wait for neighbours, which this round may have placed.
        again = self._some_pause or self._queue.watches
        times += [self._now.ms + 1] if again and self._placed else []
        # Lines that were tried behind the last head may evict others now.
        other_head = bool(self._queue.blocked) and self._queue.blocked.has_another_head
        times += [self._now.ms + 1] if other_head or self._evicts_more else []
        times += [at for at in (self._queue.next_ms(), self._view.next_resume_ms()) if at is not None]
        return min(times, default=None)

    def _evict(self, blocks: Blocks, preemptor: JobView, victims: Iterable[Name]) -> Iterable[Event]:
        by_job: dict[JobId, list[int]] = {}
        for job_id, index in victims:
            by_job.setdefault(job_id, []).append(index)
            blocks.evict(self._view.jobs[job_id], index)
        for job_id, indices in by_job.items():
            ranges = Ranges(indices)
            s, es = ("s", "") if len(indices) > 1 else ("", "s")
            tasks = f"task{s} {ranges} of job {job_id}"
            if job_id == preemptor.spec.id:
                reason = f"{tasks} stop{es}: the gang starts again as a whole"
            else:
                high, low = preemptor.spec.priority, self._view.jobs[job_id].spec.priority
                reason = f"{tasks} give{es} way to job {preemptor.spec.id}: priority {high} over {low}"
            yield Event("task.evicted", reason, job=job_id, indices=tuple(ranges.pairs))

    def _choice(self, placed: Placed) -> Choice:
        first = placed.first
        runner_up = None if first.runner_up is None else self._view.room.ids[first.runner_up]
        points, others = round(first.points, 2), round(first.runner_up_points, 2)
        return Choice(_why(placed), placed.nodes[0], first.fitting, runner_up, points, others)


def _waits(job: JobView) -> bool:
    return job.tally.pending > 0 and job.status is not None and job.status.state is JobState.ACTIVE


def _why(placed: Placed) -> str:
    spec = placed.job.spec
    tasks = f"{len(placed.indices)} task{'s' if len(placed.indices) > 1 else ''} of job {spec.id}"
    if placed.flags & LOOKAHEAD:
        return f"{tasks} wait on their nodes for the next free slot"
    if spec.kind is _SYSTEM:
        return f"{tasks} on {'their nodes' if len(placed.indices) > 1 else 'its node'}"
    if placed.first.fitting == 1:
        return f"{tasks} on the only fitting node"
    best = "fullest" if spec.policy is _PACK else "idlest"
    best = "best" if spec.rules != NO_RULES or spec.prefer or spec.noise or GPU in spec.needs else best
    return f"{tasks} on the {best} of {placed.first.fitting} fitting nodes"
