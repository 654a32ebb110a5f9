"""Backfill: resources are reserved for the head of line; later jobs may start if they do not delay it."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rota.model.amounts import TASKS
from rota.model.columns import Array, ints
from rota.model.ids import JobId
from rota.model.job import JobSpec, QueueRank
from rota.model.limits import BLOCK_TASKS, RESERVATION_AHEAD_MS
from rota.model.plan import Instant
from rota.model.view import JobView, NodeView, View
from rota.rules.phases import Phase
from rota.scheduler.placement.board import TASKS_ROW, Board
from rota.scheduler.placement.place import Placer, refusing_slots, slot_mask
from rota.scheduler.placement.scores import EXCLUDED

_CANDIDATES = 32  # nodes whose running tasks are considered, the emptiest first
_OVERDUE_SHARE = 0.1  # of the expected time: how much longer an overdue task is assumed to take
NEVER_MS = 2**62


class Release(NamedTuple):
    """A task that is expected to end, and the amounts it will release."""

    at_ms: int  # wall clock
    needs: tuple[tuple[str, int], ...]


class BackfillReservation(NamedTuple):
    """Resources reserved for the head of line: where, from when on, and what will be left beside it then."""

    job: JobId
    slots: dict[int, dict[str, int]]  # slot -> resource -> amount left beside the head of line
    at_ms: int  # wall clock
    rank: QueueRank  # of the head of line: higher-ranked jobs are not held back

    def reserved_from(self, spec: JobSpec, board: Board, now: Instant) -> dict[int, Array]:
        """By slot, the free amounts that a later job may not use.

        Nothing if it ends before the head starts.
        """
        expect_ms = spec.expect_ms
        # The reservation protects the head of line from later jobs only; an earlier one may take its place.
        if spec.queue_rank <= self.rank:
            return {}
        if expect_ms is not None and now.wall_ms + expect_ms <= self.at_ms:
            return {}
        found: dict[int, Array] = {}
        for slot, left in self.slots.items():
            beside = np.array([left.get(resource, 0) for resource in (TASKS, *board.rows)], np.int64)
            # Computed from what is free now: tasks placed beside the head of line since
            # then have used a part of it.
            found[slot] = np.maximum(0, board.free[:, slot] - beside)
        return found

    def barred_slots(self, spec: JobSpec, board: Board, now: Instant) -> list[int]:
        """Slots where no task of a later job fits beside the head of line."""
        needs = board.needs(spec.shape)
        return [
            slot
            for slot, reserved in self.reserved_from(spec, board, now).items()
            if not _fitting_tasks(board.free[:, slot] - reserved, needs)
        ]

    def use_beside(self, spec: JobSpec, slot: int) -> None:
        """Account for a later job that was placed in what is left beside the head of line."""
        left = self.slots.get(slot)
        if left is not None:
            for resource, amount in ((TASKS, 1), *spec.shape.needs):
                # Later jobs share what is left. Without this each of them could use all of it,
                # and the head would start late.
                left[resource] = left.get(resource, 0) - amount


def find_reservation(
    view: View, placer: Placer, job: JobView, needed: int, now: Instant
) -> BackfillReservation | None:
    """The earliest time and place at which this many of its tasks fit together.

    None: what has to end first has no known end, or no end of tasks helps: the job is too large, nodes refuse
    it, or something other than resources is missing. Nothing is held back for such a job.
    """
    board, shape = placer.board, job.spec.shape
    rules = placer.placement_rules(job)
    eligible = placer.rows.eligible(shape) & ~slot_mask(view, refusing_slots(view, job, now))
    slots = np.nonzero(eligible & (rules.points() != EXCLUDED) if rules else eligible)[0]
    if any(amount > 0 and board.row(resource) is None for resource, amount in shape.needs):
        return None
    slots = slots[_fitting_tasks(board.capacity[:, slots], board.needs(shape)) > 0]
    # A bound on the work: on nearly empty nodes the fewest tasks have to end. A gang
    # may need as many nodes as tasks.
    chosen = _emptiest(board, slots, max(_CANDIDATES, needed))
    ids = view.node_table.ids
    releases = {slot: [*expected_releases(view, view.nodes[ids[slot]], now)] for slot in chosen}
    # Tasks placed earlier in this round are not in the mirror yet, but hold resources on the board.
    for job_id, slots_ in placer.affinity.placed.items():
        other = view.jobs[job_id]
        end_ms = NEVER_MS if other.spec.expect_ms is None else now.wall_ms + other.spec.expect_ms
        for slot, tasks in slots_.items():
            if slot in releases:
                releases[slot] += [Release(end_ms, other.spec.shape.needs)] * tasks
    return _earliest(board, job.spec, releases, needed, now)


def _emptiest(board: Board, slots: Array, count: int) -> list[int]:
    """The `count` nodes with the largest free share of their scarcest resource."""
    idle = (board.free[:, slots] * board.per_capacity[:, slots])[1:].min(axis=0, initial=1.0)
    found: list[int] = slots[np.lexsort((slots, -idle))[:count]].tolist()
    return found


def _earliest(
    board: Board, spec: JobSpec, releases: dict[int, list[Release]], needed: int, now: Instant
) -> BackfillReservation | None:
    """Let tasks end in order until all wanted tasks fit."""
    needs = board.needs(spec.shape)
    free = {slot: board.free[:, slot].copy() for slot in releases}
    copies = {slot: int(_fitting_tasks(left, needs)) for slot, left in free.items()}
    ends = [(release.at_ms, slot, release.needs) for slot, all_ in releases.items() for release in all_]
    at_ms = 0
    for end_ms, slot, released in sorted(ends):
        if sum(copies.values()) >= needed:
            break
        # A task that is overdue cannot have ended in the past: the start is never before now.
        at_ms = max(at_ms, end_ms, now.wall_ms)
        free[slot] += _row_amounts(board, released)
        copies[slot] = int(_fitting_tasks(free[slot], needs))
    # Zero: no end is needed, so resources are not what the job waits for. Too far ahead: nodes would stay
    # empty for a day because of an estimate.
    if sum(copies.values()) < needed or not 0 < at_ms <= now.wall_ms + RESERVATION_AHEAD_MS:
        return None
    return BackfillReservation(
        spec.id, _left_beside(board, spec, free, copies, needed), at_ms, spec.queue_rank
    )


def _left_beside(
    board: Board, spec: JobSpec, free: dict[int, Array], copies: dict[int, int], needed: int
) -> dict[int, dict[str, int]]:
    """Amounts left on each node that the head of line will use."""
    needs = board.needs(spec.shape)
    found: dict[int, dict[str, int]] = {}
    for slot in sorted(copies, key=lambda slot: (-copies[slot], slot)):
        used = min(needed, copies[slot])
        if used > 0:
            left = (free[slot] - needs * used).tolist()
            found[slot] = {resource: left[row] for resource, row in board.rows.items()}
            found[slot][TASKS] = left[TASKS_ROW]
            needed -= used
    return found


def _fitting_tasks(free: Array, needs: Array) -> Array:
    """Number of tasks that fit into these amounts, one column per node."""
    asked = needs > 0
    found: Array = (np.maximum(0, free[asked].T) // needs[asked]).min(axis=-1)
    return found


def _row_amounts(board: Board, needs: Iterable[tuple[str, int]]) -> Array:
    found = np.zeros(board.free.shape[0], np.int64)
    found[0] = 1
    for resource, amount in needs:
        row = board.row(resource)
        if row is not None:
            found[row] = amount
    return found


def expected_releases(view: View, node: NodeView, now: Instant) -> Iterable[Release]:
    """Expected ends of the tasks on a node; those queued there hold nothing yet."""
    for job_id, index in node.assigned:
        job = view.jobs[job_id]
        block, position = divmod(index, BLOCK_TASKS)
        # Lookahead tasks hold nothing yet, and start only when another task has ended.
        if job.phases[block][position] != Phase.QUEUED:
            yield Release(_end_ms(job, index, now), job.spec.shape.needs)


def _end_ms(job: JobView, index: int, now: Instant) -> int:
    expect_ms = job.spec.expect_ms
    # What the user states is preferred; observed run times are the fallback, and
    # without both no end is assumed.
    if expect_ms is None and job.run_us is not None:
        expect_ms = round(job.run_us / 1000)
    if expect_ms is None:
        return NEVER_MS
    block, position = divmod(index, BLOCK_TASKS)
    status, attempt = job.statuses.get(block), job.attempts[block]
    started_ms = 0
    if status is not None and ints(status, "number")[position] == ints(attempt, "number")[position]:
        started_ms = ints(status, "started_at_ms")[position]
    end_ms = (started_ms or now.wall_ms) + expect_ms
    return end_ms if end_ms > now.wall_ms else now.wall_ms + max(1000, round(expect_ms * _OVERDUE_SHARE))
