"""Attempt blocks written in one round: a new attempt number per placement; the old one goes into a list."""

from typing import NamedTuple

import msgspec
import numpy as np

from rota.model.attempt import EVICTED, AttemptBlock, Choice, OldAttempt
from rota.model.columns import Draft, indexer
from rota.model.ids import JobId, NodeId
from rota.model.limits import BLOCK_TASKS, SUPERSEDED_KEPT
from rota.model.view import JobView
from rota.scheduler.placement.place import Assignments


class PlacedTasks(msgspec.Struct, frozen=True):
    """Placed tasks of one job: the node of each, and its GPUs there, one bit each."""

    job: JobView
    indices: list[int]
    nodes: list[NodeId]
    devices: list[int]
    flags: int
    first: Assignments  # explains the first choice


class BlockGroup(NamedTuple):
    """The part of a placement that falls into one block."""

    positions: list[int]
    nodes: list[NodeId]
    devices: list[int]


class AttemptBlockWriter:
    """Collects the attempt blocks of one round."""

    def __init__(self) -> None:
        self._drafts: dict[tuple[JobId, int], _BlockDraft] = {}
        self._new: dict[JobId, AttemptBlock] = {}  # jobs of one task that were never placed before

    def add(self, placed: PlacedTasks, choice: Choice, wall_ms: int) -> None:
        """Add placed tasks. Most jobs have one task and need no draft."""
        job = placed.job
        if job.spec.block_size(0) == 1 and not job.attempts and not job.tasks:
            gpus = {0: devices} if (devices := placed.devices[0]) else {}
            self._new[job.spec.id] = AttemptBlock.of_one(
                job.spec.id,
                placed.nodes[0],
                flags=placed.flags,
                placed_at_ms=wall_ms,
                gpus=gpus,
                choice=choice,
            )
            return
        self._add_to_drafts(placed, choice, wall_ms)

    def _add_to_drafts(self, placed: PlacedTasks, choice: Choice, wall_ms: int) -> None:
        groups: dict[int, BlockGroup] = {}
        for index, node, devices in zip(placed.indices, placed.nodes, placed.devices, strict=True):
            block, position = divmod(index, BLOCK_TASKS)
            group = groups.get(block)
            if group is None:
                group = groups[block] = BlockGroup([], [], [])
            group.positions.append(position)
            group.nodes.append(node)
            group.devices.append(devices)
        for block, group in groups.items():
            self._draft(placed.job, block).place(group, placed.flags, choice, wall_ms)

    def evict(self, job: JobView, index: int, flags: int = EVICTED) -> None:
        block, position = divmod(index, BLOCK_TASKS)
        self._draft(job, block).evict(position, flags)

    def _draft(self, job: JobView, block: int) -> "_BlockDraft":
        draft = self._drafts.get((job.spec.id, block))
        if draft is None:
            draft = self._drafts[job.spec.id, block] = _BlockDraft(job, block)
        return draft

    def records(self) -> tuple[AttemptBlock, ...]:
        return (*self._new.values(), *(draft.record() for draft in self._drafts.values()))


class _BlockDraft:
    def __init__(self, job: JobView, block: int) -> None:
        spec = job.spec
        self._record = job.attempts.get(block) or AttemptBlock.new(spec.id, block, spec.block_size(block))
        self._draft = Draft(self._record)
        # Fencing: attempts that an earlier server started have lower numbers, even those unknown here.
        self._numbers_before = 0 if job.adoption is None else job.adoption.attempts_before
        self._task = job.tasks.get(block)
        self._wanted = None if self._task is None else np.frombuffer(self._task.wanted, "u2")
        self._nodes = {node: place for place, node in enumerate(self._record.nodes)}
        self._older: list[OldAttempt] = []
        self._gpus = dict(self._record.gpus)
        self._choice = self._record.choice

    def place(self, group: BlockGroup, flags: int, choice: Choice, wall_ms: int) -> None:
        draft, at = self._draft, indexer(group.positions)
        before = draft["number"][at].tolist()
        if any(before):
            for position, number in zip(group.positions, before, strict=True):
                if number:
                    self._supersede(position, number)
        # Invariant: attempt numbers of a task only grow, so that reports of older attempts can be told apart.
        draft["number"][at] = np.maximum(draft["number"][at], self._numbers_before) + 1
        draft["tries"][at] = 0 if self._wanted is None else self._wanted[at]
        draft["node"][at] = [self._nodes.setdefault(node, len(self._nodes)) for node in group.nodes]
        draft["flags"][at] = flags
        draft["placed_at_ms"][at] = wall_ms
        if self._gpus or any(group.devices):
            self._set_devices(group)
        self._choice = choice

    def _set_devices(self, group: BlockGroup) -> None:
        """Replace the devices of previous attempts: an attempt placed without devices has none."""
        for position, devices in zip(group.positions, group.devices, strict=True):
            if devices:
                self._gpus[position] = devices
            else:
                self._gpus.pop(position, None)

    def evict(self, position: int, flags: int) -> None:
        self._draft["flags"][position] |= flags

    def record(self) -> AttemptBlock:
        older = self._record.older + tuple(self._older)
        # Bounded: a task that is retried for months must not grow its record without end. The number of
        # dropped ones is kept, so that history shows the gap.
        dropped = max(0, len(older) - SUPERSEDED_KEPT)
        return self._draft.done(
            nodes=tuple(self._nodes),
            older=older[dropped:],
            older_dropped=self._record.older_dropped + dropped,
            gpus=self._gpus,
            choice=self._choice,
        )

    def _supersede(self, position: int, number: int) -> None:
        nodes = tuple(self._nodes)
        node = nodes[int(self._draft["node"][position])]
        placed_at_ms, flags = (int(self._draft[name][position]) for name in ("placed_at_ms", "flags"))
        self._older.append(OldAttempt(position, number, node, placed_at_ms, flags))
