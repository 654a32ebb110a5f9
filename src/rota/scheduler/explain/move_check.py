"""Tasks that are to move + the nodes as they are now -> None if they have room, or why they have none."""

from collections import Counter
from collections.abc import Mapping

from rota.model.columns import Array, ints
from rota.model.ids import NodeId
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import Instant
from rota.model.view import JobView, View
from rota.scheduler.explain.obstacles import check_feasibility
from rota.scheduler.explain.phrases import count_of_tasks
from rota.scheduler.placement.place import Assignment, Placer, refusing_slots, slot_mask
from rota.scheduler.placement.rows import Plugins
from rota.scheduler.policy.moves import reserve_targets
from rota.scheduler.policy.preempt import live_tasks

_REASONS_MAX = 3  # told of the other nodes, those that hold on most nodes first


def why_not_moved(
    view: View,
    job: JobView,
    leaving: Mapping[int, NodeId],
    target: NodeId | None,
    now: Instant,
    *,
    plugins: Plugins | None = None,
) -> str | None:
    """`leaving` is the node that each task leaves; without a target each may go to any other node."""
    trial = _MoveTrial(view, job, now, plugins)
    if target is not None:
        return trial.on_target(target, len(leaving))
    if job.spec.gang:
        return trial.as_gang(dict.fromkeys(leaving.values()))
    return trial.on_other_nodes(Counter(leaving.values()))


class _MoveTrial:
    """The tasks are placed on a board of our own, by the scheduler's own rules.

    Room that is promised to the head of the queue is not kept from them, for they hold as much already.
    """

    def __init__(self, view: View, job: JobView, now: Instant, plugins: Plugins | None) -> None:
        self._view, self._job, self._now = view, job, now
        self._placer = Placer(view, plugins)
        self._refused = refusing_slots(view, job, now)
        reserve_targets(view, self._placer.board, now, 1)

    def on_target(self, target: NodeId, wanted: int) -> str | None:
        node, job = self._view.nodes[target], self._job
        if node.spec.cluster != job.spec.home:
            return f"it is in cluster {node.spec.cluster}, and job {job.spec.id} in cluster {job.spec.home}"
        sight = check_feasibility(self._view, self._placer, job, None, self._now)
        at = sight.names.index(node.spec.name)
        room = int(sight.fits[at])
        if room >= wanted:
            return None
        lacks = [one.lacks(at) for one in sight.obstacles if one.nodes[at]]
        return "; ".join(lacks) or f"it has room for {count_of_tasks(room)} of it, and not for {wanted}"

    def on_other_nodes(self, sources: Mapping[NodeId, int]) -> str | None:
        for source, wanted in sources.items():
            found = len(self._placer.place(self._job, wanted, self._mask_without([source])).assigned)
            if found < wanted:
                return self._why_nowhere(wanted - found)
        return None

    def as_gang(self, sources: Mapping[NodeId, None]) -> str | None:
        """All of it stops before any of it starts again, so what it holds now counts as free."""
        seats = [self._assignment_of(index) for _, index in live_tasks(self._job)]
        self._placer.release(self._job, seats)
        found = self._placer.place(self._job, len(seats), self._mask_without(list(sources))).assigned
        return None if len(found) == len(seats) else self._why_nowhere(len(seats))

    def _mask_without(self, nodes: list[NodeId]) -> Array:
        slots = self._view.node_table.slot
        return slot_mask(self._view, [*self._refused, *(slots[node] for node in nodes if node in slots)])

    def _assignment_of(self, index: int) -> Assignment:
        block, position = divmod(index, BLOCK_TASKS)
        attempt = self._job.attempts[block]
        node = attempt.nodes[ints(attempt, "node")[position]]
        return Assignment(self._view.node_table.slot[node], attempt.gpus.get(position, 0))

    def _why_nowhere(self, missing: int) -> str:
        sight = check_feasibility(self._view, self._placer, self._job, None, self._now)
        reasons = sorted((one.reason for one in sight.obstacles), key=lambda reason: -reason.count)
        told = "; ".join(reason.text for reason in reasons[:_REASONS_MAX])
        return f"no other node has room for {count_of_tasks(missing)} of it now" + (
            f": {told}" if told else ""
        )
