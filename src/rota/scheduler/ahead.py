"""Who is before a job in the queue: how many, what they take of the room, what is promised to them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import JobSpec, Turn
from rota.model.limits import PROMISES_TRIED_MAX
from rota.model.plan import Instant
from rota.model.shape import RunMode
from rota.model.view import JobView, View
from rota.scheduler.backfill import Promise, promise
from rota.scheduler.order import Head, Shares, Standing, Turns, is_impatient, may_start
from rota.scheduler.place import Seating, barring, refusing
from rota.scheduler.preempt import Name, find_victims

AHEAD_MAX = 100  # jobs before it that are looked at: an answer takes milliseconds, however long the queue
_VICTIMS_MAX = 8  # of their tasks, for which others would have to give way


def turns_before(view: View, spec: JobSpec) -> list[Turn]:
    """All jobs that have their turn before it, first in turn first, as shares are now."""
    shares = Shares(view)
    mine = shares.of(spec.line.owner)
    found = []
    for line, turns in view.waiting():
        share = shares.of(line.owner)
        found += [(turn[0], share, turn) for turn in turns[: _before(turns, spec.order, share, mine)]]
    return [turn for _, _, turn in sorted(found)]


def count_before(view: View, spec: JobSpec) -> int:
    shares = Shares(view)
    mine = shares.of(spec.line.owner)
    return sum(_before(turns, spec.order, shares.of(line.owner), mine) for line, turns in view.waiting())


def _before(turns: Sequence[Turn], own: Turn, share: Standing, mine: Standing) -> int:
    """Of a line: all of higher priority; of the same, all of owners before ours, or earlier ones of ours."""
    if share == mine:
        return bisect_left(turns, own)
    return bisect_left(turns, (own[0] + (share < mine),))


class Known(NamedTuple):
    """What the scheduler remembers of the queue, where there is one that can be asked."""

    head: JobId | None


class Ahead:
    """A round for those before a job: what they get is taken off the board, the first without gets a promise.

    Which job is the head of the queue depends on the past: who was first without room stays so for a while,
    and steps back when its promise was not kept. Without a scheduler that knows, it is searched for.
    """

    def __init__(
        self, view: View, seating: Seating, now: Instant, *, backfill: bool = True, known: Known | None = None
    ) -> None:
        self._view = view
        self._seating = seating
        self._now = now
        self._backfill = backfill
        self._known = known if backfill else None
        self._going: set[Name] = set()  # tasks that have to give way to them
        self._first: JobView | None = None  # without room
        self._promises_tried = 0
        self.shares = Shares(view)
        self.promise: Promise | None = None

    def serve(self, job: JobView) -> None:
        turns = Turns(self.shares, [Head(jobs[0], 0, line, jobs) for line, jobs in self._view.waiting()])
        its_turn_came = False
        for _ in range(AHEAD_MAX):
            head = turns.pop()
            if head is None or self._first is not None:
                break
            if head.job == job.spec.id:
                its_turn_came = True
                turns.done(head, goes_on=True)
            elif its_turn_came and head.turn > job.spec.order:
                turns.done(head, goes_on=False)
            else:
                turns.done(head, self._serve(self._view.jobs[head.job], takes=not its_turn_came))
        if self._known is not None:
            self._first = self._view.jobs.get(self._known.head) if self._known.head is not None else None
        first = self._first
        if first is not None and first.spec.order < job.spec.order:
            self.promise = self._promise_to(first)

    def _promise_to(self, first: JobView) -> Promise | None:
        if not self._backfill:  # no job passes the head of the queue, on any node
            slots: dict[int, dict[str, int]] = {slot: {} for slot in range(self._view.room.size)}
            return Promise(first.spec.id, slots, self._now.wall_ms, first.spec.order)
        tasks = first.tally.pending if first.spec.gang else 1
        return promise(self._view, self._seating, first, tasks, self._now)

    def _serve(self, job: JobView, *, takes: bool) -> bool:
        """Says whether the next in its line may do better, as the round does."""
        if is_too_late(job, self._now) or job.verdict is not None or job.pinned:
            return True
        wanted = may_start(job, self.shares, self._now)
        if wanted <= 0:
            return self.shares.left(job.spec) != 0
        ready = self.ready(job, wanted)
        seated = self._seating.seat(job, len(ready), self._barred(job))
        impatient = is_impatient(job)
        if not takes or (impatient and len(seated.seats) < wanted):
            self._seating.give_back(job, seated.seats)
        else:
            self.shares.charge(job.spec, len(seated.seats))
        left = len(ready) - len(seated.seats)
        return impatient or not left or self._wait(job, left)

    def _barred(self, job: JobView) -> Array:
        return barring(self._view, refusing(self._view, job, self._now))

    def ready(self, job: JobView, wanted: int) -> list[int]:
        """Its tasks that may start, and of many one more than there is room for."""
        if job.spec.gang:
            return job.ready(self._now.ms, wanted)
        return job.ready(self._now.ms, min(wanted, self._seating.copies(job) + 1))

    def _wait(self, job: JobView, left: int) -> bool:
        spec = job.spec
        if spec.gang and job.tally.live and spec.run is RunMode.AT_LEAST_ONCE:
            return True
        if spec.gang or not self._others_give_way(job, left):
            self._find_first(job)
        return bool(self._seating.company.repelled(spec))

    def _find_first(self, job: JobView) -> None:
        if self._known is not None or self._first is not None or self._promises_tried >= PROMISES_TRIED_MAX:
            return
        if not self._backfill:
            self._first = job if self._seating.fits_somewhere(job, self._barred(job)) else None
            return
        self._promises_tried += 1
        self._first = job if self._promise_to(job) is not None else None

    def _others_give_way(self, job: JobView, left: int) -> bool:
        """Room that others leave, or would have to leave, is as good as taken."""
        used = self._barred(job)
        found = 0
        while found < min(left, _VICTIMS_MAX):
            eviction = find_victims(self._view, self._seating, job, used, self._going)
            if eviction is None:
                break
            used[eviction.slot] = True
            self._going |= set(eviction.victims)
            self._seating.board.take(job.spec.shape, eviction.slot)
            found += 1
        return found > 0


def is_too_late(job: JobView, now: Instant) -> bool:
    deadline = job.spec.deadline_at_ms
    return deadline is not None and not job.attempts and now.wall_ms > deadline - (job.spec.expect_ms or 0)
