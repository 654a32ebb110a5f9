"""One round: pending tasks, shape by shape and first in turn first, onto nodes."""

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rota.engine.reconciler import Reconciler
from rota.model.attempt import LOOKAHEAD, StatusBlock
from rota.model.columns import Array, Ranges
from rota.model.ids import JobId, NodeId
from rota.model.job import JobStatus, JobVerdict, RunMode, Shape, Unschedulable
from rota.model.limits import LOOKAHEAD_TASKS_MAX, LOOKAHEAD_US, SHORT_RUN_US
from rota.model.node import NodeSpec, NodeStatus, NodeWish
from rota.model.plan import NOTHING, Event, Instant, Plan, Record
from rota.model.room import Room
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.scheduler.blocks import Blocks
from rota.scheduler.explain import why
from rota.scheduler.filters import Masks
from rota.scheduler.place import Space, place

ROUND = "round"


def reconciler() -> Reconciler:
    return Reconciler("place", "scheduler", _wakes, Round().decide, _start)


def _wakes(record: Record) -> Iterable[str]:
    match record:
        case JobStatus() | TaskBlock() | StatusBlock() | NodeStatus() | NodeWish() | NodeSpec():
            return (ROUND,)
        case _:
            return ()


def _start(view: View) -> Iterable[str]:
    del view
    return (ROUND,)


class Placed(NamedTuple):
    """Tasks of one job and the node each goes to."""

    job: JobView
    indices: list[int]
    nodes: list[NodeId]
    flags: int
    fitting: int  # nodes it could have gone to


class Offer(NamedTuple):
    """What of one job goes where, and whether its shape fits nowhere any more."""

    placed: list[Placed]
    full: bool
    verdict: JobVerdict | None = None  # it did not want to wait: all of it starts now, or nothing


class Head(NamedTuple):
    """The job whose turn it is in one line. Orders are unique, so heads sort by them alone."""

    order: tuple[int, int]
    at: int
    shape: Shape
    line: Sequence[tuple[int, int]]


class Round:
    """Remembers what can be computed again: label masks, and which shapes fit nowhere until room grows."""

    def __init__(self) -> None:
        self._room: Room | None = None
        self._forget_all()

    def _forget_all(self) -> None:
        self._masks = Masks()
        self._blocked: dict[Shape, int] = {}  # -> Room.grown when it was tried

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        del key
        room = view.room
        if room is not self._room:  # everything was read again: what is remembered is of other columns
            self._room = room
            self._forget_all()
        heads = self._heads(view)
        if not heads:
            return NOTHING
        space = Space(room)
        placed: list[Placed] = []
        verdicts: list[JobVerdict] = []
        pauses: list[int] = []
        while heads:
            head = heapq.heappop(heads)
            job = view.jobs[JobId(str(head.order[1]))]
            offer = self._place_job(view, space, job, now)
            placed += offer.placed
            if offer.verdict is not None and job.verdict is None:
                verdicts.append(offer.verdict)
            pause = job.next_ready_ms(now.ms)
            if pause is not None:
                pauses.append(pause)
            if offer.full:
                self._blocked[head.shape] = room.grown
            elif head.at + 1 < len(head.line):
                heapq.heappush(heads, head._replace(order=head.line[head.at + 1], at=head.at + 1))
        self._forget_refusals(view, now, pauses)
        return self._plan(placed, verdicts, pauses, now)

    def _heads(self, view: View) -> list[Head]:
        grown = view.room.grown
        lines = view.waiting()
        heads = [Head(line[0], 0, shape, line) for shape, line in lines if self._blocked.get(shape) != grown]
        heapq.heapify(heads)
        return heads

    def _place_job(self, view: View, space: Space, job: JobView, now: Instant) -> Offer:
        shape = job.spec.shape
        allowed = self._allowed(view, shape, now)
        copies = space.fits(shape, allowed)
        total = int(copies.sum())
        quota = job.tally.pending
        if job.spec.parallel is not None:
            quota = min(quota, job.spec.parallel - job.tally.live)
        most = (
            total + LOOKAHEAD_TASKS_MAX * space.room.size + 1
        )  # one more than has room, to see that it is full
        ready = job.ready(now.ms, min(quota, most)) if quota > 0 else []
        impatient = job.spec.when_unschedulable is Unschedulable.REJECT and not job.attempts
        if impatient and quota > total:  # once it has begun, its retries wait like anybody's
            return Offer([], full=False, verdict=_reject(view, job, total, now))
        found: list[Placed] = []
        if ready and total:
            slots = place(space, shape, min(len(ready), total), copies)
            found.append(self._take(space, job, ready[: len(slots)], slots, copies))
            ready = ready[len(slots) :]
        if ready:
            found += self._look_ahead(space, job, ready, allowed)
        return Offer(found, full=bool(ready))

    def _take(
        self, space: Space, job: JobView, indices: list[int], slots: list[int], copies: Array
    ) -> Placed:
        for slot in slots:
            space.take(job.spec.shape, slot, 1)
        ids = space.room.ids
        return Placed(job, indices, [ids[slot] for slot in slots], 0, int(np.count_nonzero(copies)))

    def _look_ahead(self, space: Space, job: JobView, ready: list[int], allowed: Array) -> list[Placed]:
        """Short tasks may wait on the node, so that a freed slot needs no round trip."""
        if job.spec.run is not RunMode.AT_LEAST_ONCE or job.run_us is None or job.run_us > SHORT_RUN_US:
            return []
        slots = space.slots(job.spec.shape, allowed)
        per_slot = math.ceil(LOOKAHEAD_US / max(1.0, job.run_us))
        depth = np.minimum(slots * per_slot, LOOKAHEAD_TASKS_MAX) - space.queued
        copies = np.where(slots > 0, np.maximum(0, depth), 0)
        chosen = np.repeat(np.arange(copies.size), copies)[: len(ready)].tolist()
        if not chosen:
            return []
        ids = space.room.ids
        space.queued += np.bincount(chosen, minlength=space.queued.size)
        nodes = [ids[slot] for slot in chosen]
        return [Placed(job, ready[: len(chosen)], nodes, LOOKAHEAD, int(np.count_nonzero(copies)))]

    def _allowed(self, view: View, shape: Shape, now: Instant) -> Array:
        room = view.room
        allowed = room.open[: room.size] & self._masks.of(room, shape.where)
        for node, (until_ms, _) in view.refused_by(shape).items():
            if until_ms > now.ms:
                allowed[room.slot[node]] = False
        return allowed

    def _forget_refusals(self, view: View, now: Instant, pauses: list[int]) -> None:
        """A refusal lapses with time: look again then, as if room had grown."""
        for shape, _ in view.waiting():
            until = [until_ms for until_ms, _ in view.refused_by(shape).values() if until_ms > now.ms]
            if until:
                pauses.append(min(until))
                self._blocked.pop(shape, None)

    def _plan(
        self, placed: list[Placed], verdicts: list[JobVerdict], pauses: list[int], now: Instant
    ) -> Plan:
        blocks = Blocks()
        events = []
        for one in placed:
            blocks.add(one.job, one.indices, one.nodes, one.flags, now.wall_ms)
            ranges = Ranges(one.indices)
            reason = _why(one)
            node = one.nodes[0] if len(set(one.nodes)) == 1 else None
            events.append(
                Event("task.placed", reason, job=one.job.spec.id, node=node, indices=tuple(ranges.pairs))
            )
        wake_at = min(pauses, default=None)
        reasons = "; ".join(event.why for event in events)
        events += [Event("placement.impossible", one.reason, job=one.id) for one in verdicts]
        return Plan((*blocks.done(), *verdicts), events=tuple(events), why=reasons, wake_at_ms=wake_at)


def _reject(view: View, job: JobView, fits: int, now: Instant) -> JobVerdict:
    if fits:
        return JobVerdict(job.spec.id, f"only {fits} of its {job.tally.pending} tasks could start now")
    reasons = why(view, job.spec.id, now).reasons
    return JobVerdict(job.spec.id, "; ".join(reason.text for reason in reasons))


def _why(placed: Placed) -> str:
    tasks = f"{len(placed.indices)} task{'s' if len(placed.indices) > 1 else ''}"
    if placed.flags & LOOKAHEAD:
        return f"{tasks} of job {placed.job.spec.id} wait on their nodes for the next free slot"
    return f"{tasks} of job {placed.job.spec.id} on the idlest of {placed.fitting} fitting nodes"
