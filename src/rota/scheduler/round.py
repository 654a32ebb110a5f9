"""One round: whoever waits, first in turn first, onto nodes; promised room; or in place of lesser work."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rota.model.amounts import GPU
from rota.model.attempt import LOOKAHEAD, Choice
from rota.model.columns import Array, Ranges, ints
from rota.model.ids import JobId
from rota.model.job import JobVerdict, Kind, Turn, Unschedulable
from rota.model.lifecycle import JobState
from rota.model.limits import (
    BACKFILL_JOBS_MAX,
    BLOCK_TASKS,
    EVICTIONS_MAX,
    LOOKAHEAD_TASKS_MAX,
    LOOKAHEAD_US,
    NOMINATED_MS,
    SHORT_RUN_US,
)
from rota.model.plan import Event, Instant, Plan, Record
from rota.model.shape import NO_RULES, Line, Policy, RunMode
from rota.model.view import JobView, View
from rota.scheduler import elsewhere, pins
from rota.scheduler.backfill import Promise, promise
from rota.scheduler.blocks import Blocks, Placed
from rota.scheduler.explain import why
from rota.scheduler.order import Head, Shares, Turns, may_start
from rota.scheduler.place import Seated, Seating, barring, refusing
from rota.scheduler.preempt import Eviction, Name, find_victims, live_tasks
from rota.scheduler.rows import Plugins

# Enum members are slow to look up, and these are asked for at every placement.
_SYSTEM, _REJECT, _PACK = Kind.SYSTEM, Unschedulable.REJECT, Policy.PACK


class Settings(NamedTuple):
    """What an operator decides about placement."""

    plugins: Plugins = Plugins()
    backfill: bool = True  # later jobs may start while the first one waits, where that does not delay it


class Nomination(NamedTuple):
    """Room that others are leaving for one task of a job."""

    slot: int
    until_ms: int


class First(NamedTuple):
    """The first in turn that found no room, and for how many of its tasks at once it needs some."""

    job: JobId
    tasks: int


class Blocked(NamedTuple):
    """A line tried in vain: nobody of it does better until room grows or a higher priority comes."""

    grown: int  # Room.grown
    turn: Turn  # of the job that was tried


class Memory:
    """What can be computed again, or lapses: rows of points, blocked lines, room others are leaving."""

    def __init__(self, view: View, settings: Settings) -> None:
        self.seating = Seating(view, settings.plugins)
        self.blocked: dict[Line, Blocked] = {}
        self.nominated: dict[JobId, list[Nomination]] = {}
        self.first: First | None = None  # of those without room
        self.pinned: dict[JobId, int] = {}  # system job -> Room.doors when its nodes were looked at

    def waits(self, line: Line, turn: Turn, grown: int) -> bool:
        """Whether there is nothing to try for the first of a line."""
        blocked = self.blocked.get(line)
        return blocked is not None and blocked.grown == grown and turn[0] >= blocked.turn[0]

    def forget_lapsed(self, view: View, now: Instant) -> None:
        """What was promised to those who wait no longer, and nominations whose time is over."""
        if self.first is not None:
            job = view.jobs.get(self.first.job)
            blocked = self.blocked.get(job.spec.line) if job is not None and _waits(job) else None
            if blocked is None or blocked.grown != view.room.grown:
                self.first = None
        for name, nominations in list(self.nominated.items()):
            job = view.jobs.get(name)
            waits = job is not None and _waits(job)
            good = [
                one for one in nominations if waits and one.until_ms > now.ms and view.room.open[one.slot]
            ]
            if job is not None and len(good) < len(nominations):
                self.blocked.pop(job.spec.line, None)
            if good:
                self.nominated[name] = good
            else:
                del self.nominated[name]


class Round:
    """One pass over everybody who waits; what it decides is in its plan, nothing else is changed."""

    def __init__(self, view: View, memory: Memory, settings: Settings, now: Instant) -> None:
        self._view = view
        self._memory = memory
        self._seating = memory.seating
        self._settings = settings
        self._now = now
        self._shares = Shares(view)
        self._placed: list[Placed] = []
        self._verdicts: list[JobVerdict] = []
        self._evicted: list[tuple[JobView, Eviction]] = []
        self._broken_up: list[JobView] = []
        self._promise: Promise | None = None  # made when somebody comes later
        self._pauses = [one.until_ms for nominations in memory.nominated.values() for one in nominations]
        self._behind = 0  # jobs looked at behind the one that was promised room

    def run(self, heads: list[Head]) -> Plan:
        turns = Turns(self._shares, heads)
        self._hold_nominated(1)
        while (head := turns.pop()) is not None:
            goes_on = self._serve(self._view.jobs[head.job])
            if self._memory.first is not None and not self._settings.backfill:
                break
            self._behind += self._memory.first is not None
            turns.done(head, goes_on and self._behind < BACKFILL_JOBS_MAX)
        self._hold_nominated(-1)
        self._forget_refusals()
        return self._plan()

    def _serve(self, job: JobView) -> bool:
        """A job has its turn; says whether the next in its line may do better."""
        pause = job.next_ready_ms(self._now.ms)
        if pause is not None:
            self._pauses.append(pause)
        if job.verdict is not None:
            return True
        wanted = may_start(job, self._shares)
        if wanted <= 0:
            return self._shares.left(job.spec) != 0 or self._block(job)
        held_back = self._held_back(job) if self._memory.first is not None else {}
        refused = refusing(self._view, job, self._now)
        ready = job.ready(self._now.ms, min(wanted, self._most(job)))
        self._hold_nominated(-1, job)
        for slot, amounts in held_back.items():
            self._seating.board.shift(slot, -amounts)
        pinned = self._seat(job, ready, refused)
        ready, seated = pinned.indices, pinned.seated
        for slot, amounts in held_back.items():
            self._seating.board.shift(slot, amounts)
        impatient = job.spec.when_unschedulable is _REJECT and not job.attempts
        if impatient and len(seated.seats) < wanted:  # once it has begun, its retries wait like anybody's
            self._reject(job, seated)
            return True
        self._enter(job, ready, seated)
        self._hold_nominated(1, job)
        if len(seated.seats) == len(ready):
            return True
        kept_off = barring(self._view, [*refused, *held_back])  # who waits there might take what is promised
        left = self._look_ahead(job, ready[len(seated.seats) :], kept_off)
        return not left or bool(held_back) or self._wait(job, left)

    def _seat(self, job: JobView, ready: list[int], refused: list[int]) -> pins.Pinned:
        barred = barring(self._view, refused) if refused else None
        if job.spec.kind is _SYSTEM:
            return pins.seat(self._view, self._seating, job, ready, barred)
        return pins.Pinned(ready, elsewhere.seat(self._view, self._seating, job, ready, refused))

    def _held_back(self, job: JobView) -> dict[int, Array]:
        """What of each node is promised to the head of the queue, and not to be had for this one."""
        promised = self._promised(job)
        board = self._seating.board
        return {} if promised is None else promised.kept_from(job.spec, board, self._now)

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
        self._shares.charge(job.spec, len(nodes))
        if self._memory.nominated:
            self._use_nominated(job, seated)
        if self._promise is not None:
            for seat in seated.seats:
                self._promise.lend(job.spec, seat.slot)

    def _use_nominated(self, job: JobView, seated: Seated) -> None:
        """Of a system job only the rooms that were taken: each is for one of its tasks."""
        made = self._memory.nominated.pop(job.spec.id, [])
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
        short = job.run_us is not None and job.run_us <= SHORT_RUN_US
        free = self._shares.left(spec) is None and not self._seating.company.repelled(spec)
        return plain and short and free

    def _wait(self, job: JobView, left: list[int]) -> bool:
        """Some of its tasks find no room: others give way, or it is promised some; may the next do better?"""
        spec = job.spec
        if spec.gang and job.tally.live and spec.run is RunMode.AT_LEAST_ONCE:
            self._broken_up.append(job)
            return True
        if spec.kind is Kind.SYSTEM:
            self._preempt(job, left)
            return self._block(job)
        left = left[len(self._memory.nominated.get(spec.id, [])) :]
        if left and not spec.gang:
            left = self._preempt(job, left)
        nominated = spec.id in self._memory.nominated
        if left and not nominated and self._memory.first is None and self._seating.fits_somewhere(job):
            self._memory.first = First(spec.id, len(left) if spec.gang else 1)
        if spec.gang or self._seating.company.repelled(spec):
            return True  # the next one may be smaller, or nobody keeps it away
        return self._block(job)

    def _promised(self, job: JobView) -> Promise | None:
        """What the first without room was promised, as far as it concerns this one."""
        first = self._memory.first
        if first is None:
            return None
        waiting = self._view.jobs[first.job]
        if job.spec.order <= waiting.spec.order:
            return None
        if self._promise is None:
            self._promise = promise(self._view, self._seating, waiting, first.tasks, self._now)
        return self._promise

    def _block(self, job: JobView) -> bool:
        """Nobody of its line can do better until something changes."""
        self._memory.blocked[job.spec.line] = Blocked(self._view.room.grown, job.spec.order)
        return False

    def _preempt(self, job: JobView, left: list[int]) -> list[int]:
        """For each task the smallest set that has to give way, one node at a time; returns who is left."""
        at_once = 1 if job.spec.rules != NO_RULES else len(left)  # rules do not know of room to come
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
            self._pauses.append(nomination.until_ms)
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

    def _forget_refusals(self) -> None:
        """A refusal lapses with time: look again then, as if room had grown."""
        for line, _ in self._view.waiting():
            refusals = self._view.refused_by(line.shape).values()
            until = [until_ms for until_ms, _ in refusals if until_ms > self._now.ms]
            if until:
                self._pauses.append(min(until))
                self._memory.blocked.pop(line, None)

    def _reject(self, job: JobView, seated: Seated) -> None:
        self._seating.give_back(job, seated.seats)
        if job.verdict is not None:
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
        for preemptor, eviction in self._evicted:
            events += self._evict(blocks, preemptor, eviction.victims)
        for gang in self._broken_up:  # one of its tasks was lost, and finds no other room
            events += self._evict(blocks, gang, live_tasks(gang))
        reasons = "; ".join(event.why for event in events)
        events += [Event("placement.impossible", one.reason, job=one.id) for one in self._verdicts]
        wake_at = min(self._pauses, default=None)
        puts: tuple[Record, ...] = (*blocks.done(), *self._verdicts)
        return Plan(puts, events=tuple(events), why=reasons, wake_at_ms=wake_at)

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
