"""Tasks to move + the nodes as they are now -> None if they fit elsewhere, else the reason why not."""

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

_REASONS_MAX = 3  # reasons in the text, those that apply to most nodes first


def why_not_moved(
    view: View,
    job: JobView,
    leaving: Mapping[int, NodeId],
    target: NodeId | None,
    now: Instant,
    *,
    plugins: Plugins | None = None,
) -> str | None:
    """`leaving` maps each task to the node it leaves; without a target it may go to any other node."""
    trial = _MoveTrial(view, job, now, plugins)
    if target is not None:
        return trial.on_target(target, len(leaving))
    if job.spec.gang:
        return trial.as_gang(dict.fromkeys(leaving.values()))
    return trial.on_other_nodes(Counter(leaving.values()))


class _MoveTrial:
    """Places the tasks on a separate board, with the scheduler's own rules.

    Resources reserved for the head of line are not held back: the tasks release as much elsewhere.
    """

    def __init__(self, view: View, job: JobView, now: Instant, plugins: Plugins | None) -> None:
        self._view, self._job, self._now = view, job, now
        self._placer = Placer(view, plugins)
        self._refused = refusing_slots(view, job, now)
        reserve_targets(view, self._placer.board, now, 1)

    def on_target(self, target: NodeId, count: int) -> str | None:
        node, job = self._view.nodes[target], self._job
        if node.spec.cluster != job.spec.home:
            return f"it is in cluster {node.spec.cluster}, and job {job.spec.id} in cluster {job.spec.home}"
        report = check_feasibility(self._view, self._placer, job, None, self._now)
        at = report.names.index(node.spec.name)
        fitting = int(report.fits[at])
        if fitting >= count:
            return None
        lacks = [obstacle.lacks(at) for obstacle in report.obstacles if obstacle.nodes[at]]
        return "; ".join(lacks) or f"it has room for {count_of_tasks(fitting)} of it, and not for {count}"

    def on_other_nodes(self, sources: Mapping[NodeId, int]) -> str | None:
        for source, count in sources.items():
            found = len(self._placer.place(self._job, count, self._mask_without([source])).assigned)
            if found < count:
                return self._why_nowhere(count - found)
        return None

    def as_gang(self, sources: Mapping[NodeId, None]) -> str | None:
        """A gang stops as a whole before it starts again, so what it holds now counts as free."""
        assigned = [self._assignment_of(index) for _, index in live_tasks(self._job)]
        self._placer.release(self._job, assigned)
        found = self._placer.place(self._job, len(assigned), self._mask_without(list(sources))).assigned
        return None if len(found) == len(assigned) else self._why_nowhere(len(assigned))

    def _mask_without(self, nodes: list[NodeId]) -> Array:
        slots = self._view.node_table.slot
        return slot_mask(self._view, [*self._refused, *(slots[node] for node in nodes if node in slots)])

    def _assignment_of(self, index: int) -> Assignment:
        block, position = divmod(index, BLOCK_TASKS)
        attempt = self._job.attempts[block]
        node = attempt.nodes[ints(attempt, "node")[position]]
        return Assignment(self._view.node_table.slot[node], attempt.gpus.get(position, 0))

    def _why_nowhere(self, missing: int) -> str:
        report = check_feasibility(self._view, self._placer, self._job, None, self._now)
        reasons = sorted((obstacle.reason for obstacle in report.obstacles), key=lambda reason: -reason.count)
        text = "; ".join(reason.text for reason in reasons[:_REASONS_MAX])
        return f"no other node has room for {count_of_tasks(missing)} of it now" + (
            f": {text}" if text else ""
        )
