"""Attempt blocks written in one round: a new number for each placement, the old one kept in a list."""

import numpy as np

from rota.model.attempt import AttemptBlock, OldAttempt
from rota.model.columns import Draft
from rota.model.ids import JobId, NodeId
from rota.model.limits import BLOCK_TASKS, SUPERSEDED_KEPT
from rota.model.view import JobView


class Blocks:
    """Attempt blocks being written in one round."""

    def __init__(self) -> None:
        self._drafts: dict[tuple[JobId, int], _BlockDraft] = {}

    def add(self, job: JobView, indices: list[int], nodes: list[NodeId], flags: int, wall_ms: int) -> None:
        groups: dict[int, tuple[list[int], list[NodeId]]] = {}
        for index, node in zip(indices, nodes, strict=True):
            block, position = divmod(index, BLOCK_TASKS)
            group = groups.get(block)
            if group is None:
                group = groups[block] = ([], [])
            group[0].append(position)
            group[1].append(node)
        for block, (positions, chosen) in groups.items():
            draft = self._drafts.get((job.spec.id, block))
            if draft is None:
                draft = self._drafts[job.spec.id, block] = _BlockDraft(job, block)
            draft.place(positions, chosen, flags, wall_ms)

    def done(self) -> tuple[AttemptBlock, ...]:
        return tuple(draft.done() for draft in self._drafts.values())


class _BlockDraft:
    def __init__(self, job: JobView, block: int) -> None:
        spec = job.spec
        self._record = job.attempts.get(block) or AttemptBlock.new(spec.id, block, spec.block_size(block))
        self._draft = Draft(self._record)
        self._task = job.tasks.get(block)
        self._wanted = None if self._task is None else np.frombuffer(self._task.wanted, "u2")
        self._nodes = {node: place for place, node in enumerate(self._record.nodes)}
        self._older: list[OldAttempt] = []

    def place(self, positions: list[int], nodes: list[NodeId], flags: int, wall_ms: int) -> None:
        draft = self._draft
        before = draft["number"][positions]
        for position, number in zip(positions, before.tolist(), strict=True):
            if number:
                self._supersede(position, number)
        draft["number"][positions] = before + 1
        draft["tries"][positions] = 0 if self._wanted is None else self._wanted[positions]
        draft["node"][positions] = [self._nodes.setdefault(node, len(self._nodes)) for node in nodes]
        draft["flags"][positions] = flags
        draft["placed_at_ms"][positions] = wall_ms

    def done(self) -> AttemptBlock:
        older = self._record.older + tuple(self._older)
        dropped = max(0, len(older) - SUPERSEDED_KEPT)
        return self._draft.done(
            nodes=tuple(self._nodes),
            older=older[dropped:],
            older_dropped=self._record.older_dropped + dropped,
        )

    def _supersede(self, position: int, number: int) -> None:
        nodes = tuple(self._nodes)
        node = nodes[int(self._draft["node"][position])]
        self._older.append(OldAttempt(position, number, node, int(self._draft["placed_at_ms"][position])))
