"""Tasks that a user moves to another node: where each may be placed, what is reserved for it, its events.

A move is an order in the job's JobIntent. The task is stopped as by a restart. From then on it is pending and
in no queue, and a round places it before all queues: on the target of its move, or on any node but the one it
leaves. This holds for MOVE_WAIT_MS; then the task joins its queue like any other. A target that can no longer
run the task (lost, closed, or it has refused) does not delay it: the task goes to another node immediately.
A target that is only disconnected can: after a restart of the server nodes reconnect one by one, and the
source may be back before the target.

While the task is still stopping, a round reserves what it needs on its target. The reservation is derived
from the records in each round, so it needs no cache and survives a change of leaders.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rota.model.columns import Array, Ranges
from rota.model.ids import NodeId
from rota.model.job import MoveOrder
from rota.model.lifecycle import JobState
from rota.model.limits import BLOCK_TASKS, MOVE_WAIT_MS
from rota.model.outlook import WaitReason
from rota.model.plan import EventRecord, Instant
from rota.model.view import JobView, View
from rota.rules.move_window import move_window
from rota.rules.phases import Phase
from rota.scheduler.placement.attempt_blocks import PlacedTasks
from rota.scheduler.placement.board import Board
from rota.scheduler.placement.place import refusing_slots, slot_mask

_PENDING = int(Phase.PENDING)


class MoveGroup(NamedTuple):
    """Pending tasks of one job that may go to the same nodes."""

    indices: list[int]
    barred: Array  # by slot: nodes on which they are not placed


def due_groups(view: View, job: JobView, now: Instant) -> Iterator[MoveGroup]:
    """Moved tasks of a job that are to be placed now.

    A gang is one group, placed as a whole or not at all.
    """
    if not _may_start(job):
        return
    due = {index: move for index, move in sorted(job.moving.items()) if _is_due(job, index, move, now)}
    refused = refusing_slots(view, job, now)
    if job.spec.gang:
        # As long as some of its tasks are live or in backoff, the gang cannot start as a whole.
        if due and len(due) == job.task_counts.pending and not job.task_counts.live:
            left = [view.node_table.slot[move.source] for move in due.values() if _leaves(view, move)]
            yield MoveGroup(list(due), slot_mask(view, [*refused, *left]))
        return
    by_route: dict[tuple[NodeId, NodeId | None], list[int]] = {}
    for index, move in due.items():
        # A target that cannot run the task any more does not delay it: it goes to any node but its own.
        target = move.target if _is_usable(view, move.target, refused) else None
        by_route.setdefault((move.source, target), []).append(index)
    for (source, target), indices in by_route.items():
        yield MoveGroup(indices, _barred(view, refused, source, target))


def _may_start(job: JobView) -> bool:
    paused = job.intent is not None and job.intent.paused
    active = job.status is not None and job.status.state is JobState.ACTIVE
    return active and not paused and job.verdict is None


def _is_due(job: JobView, index: int, move: MoveOrder, now: Instant) -> bool:
    block, position = divmod(index, BLOCK_TASKS)
    if job.phases[block][position] != _PENDING:
        return False
    wait = move_window(move, job.tasks.get(block), position)
    return wait is not None and wait.from_ms <= now.ms < wait.until_ms


def _leaves(view: View, move: MoveOrder) -> bool:
    return move.leaves and move.source in view.node_table.slot


def _is_usable(view: View, target: NodeId | None, refused: list[int]) -> bool:
    slot = None if target is None else view.node_table.slot.get(target)
    # `expected`, not `open`: a target that is only disconnected may reconnect, as
    # all nodes do after a restart.
    return slot is not None and bool(view.node_table.expected[slot]) and slot not in refused


def _barred(view: View, refused: list[int], source: NodeId, target: NodeId | None) -> Array:
    if target is None:
        return slot_mask(
            view, [*refused, *([view.node_table.slot[source]] if source in view.node_table.slot else [])]
        )
    barred = np.ones(view.node_table.size, np.bool_)
    barred[view.node_table.slot[target]] = False
    return barred


def reserve_targets(view: View, board: Board, now: Instant, times: int) -> None:
    """Allocate on the board what moved tasks will need on their targets (1), or release it (-1).

    The reservation is bounded in time: a task may never stop.
    """
    for name in view.moving:
        job = view.jobs[name]
        for index, move in job.moving.items():
            slot = None if move.target is None else view.node_table.slot.get(move.target)
            until_ms = move.at_ms + round(job.spec.grace_seconds * 1000) + MOVE_WAIT_MS
            if slot is None or not view.node_table.expected[slot] or now.ms >= until_ms:
                continue
            # Once the attempt has ended, the task is pending and placed itself: reserving for it would count
            # it twice.
            if _is_stopping(view, job, index, move):
                board.allocate(job.spec.shape, slot, times)


def _is_stopping(view: View, job: JobView, index: int, move: MoveOrder) -> bool:
    """Whether the attempt that the move stops is still alive."""
    source = view.nodes.get(move.source)
    return source is not None and source.assigned.get((job.spec.id, index)) == move.attempt


def moved_events(view: View, placed: PlacedTasks) -> Iterator[EventRecord]:
    """Events about moved tasks that were placed: one for each source, target and node.

    Of a gang only the tasks that had to leave their nodes count as moved.
    """
    moving = placed.job.moving
    found: dict[tuple[NodeId, NodeId | None, NodeId], list[int]] = {}
    for index, node in zip(placed.indices, placed.nodes, strict=True):
        if index in moving and moving[index].leaves:
            found.setdefault((moving[index].source, moving[index].target, node), []).append(index)
    for (source, target, node), indices in found.items():
        ranges = Ranges(indices)
        tasks = f"task{'s' if len(indices) > 1 else ''} {ranges} of job {placed.job.spec.id}"
        kind, what = _outcome(view, source, target, node)
        yield EventRecord(
            kind, f"{tasks}: {what}", job=placed.job.spec.id, node=node, indices=tuple(ranges.pairs)
        )


def _outcome(view: View, source: NodeId, target: NodeId | None, node: NodeId) -> tuple[str, str]:
    """The kind of the event, and the outcome of the move."""
    old, new = _node_name(view, source), _node_name(view, node)
    if node == source:
        return "task.not_moved", f"starts on {old} again: no other node took it in {MOVE_WAIT_MS // 1000} s"
    if target is None or node == target:
        return "task.moved", f"moved from {old} to {new}"
    return "task.moved", f"moved from {old} to {new}, because {_node_name(view, target)} could not take it"


def move_wait_reasons(view: View, job: JobView, now: Instant) -> list[WaitReason]:
    """Why moved tasks are still pending, for `rota why`."""
    due = {index: move for index, move in sorted(job.moving.items()) if _is_due(job, index, move, now)}
    if not due:
        return []
    index, move = next(iter(due.items()))
    block, position = divmod(index, BLOCK_TASKS)
    wait = move_window(move, job.tasks.get(block), position)
    left_s = 0 if wait is None else -((now.ms - wait.until_ms) // 1000)
    where = "another node" if move.target is None else _node_name(view, move.target)
    text = (
        f"task {index} leaves {_node_name(view, move.source)}, and waits up to {left_s} s for room on {where}"
    )
    return [WaitReason("move", len(due), job.task_counts.pending, text)]


def _node_name(view: View, node: NodeId) -> str:
    return view.nodes[node].spec.name if node in view.nodes else str(node)
