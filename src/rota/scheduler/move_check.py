"""Tasks that are to move + the nodes as they are now -> None if they have room, or why they have none."""

from collections import Counter
from collections.abc import Mapping

from rota.model.columns import Array, ints
from rota.model.ids import NodeId
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import Instant
from rota.model.view import JobView, View
from rota.scheduler.moves import hold_targets
from rota.scheduler.obstacles import look
from rota.scheduler.place import Seat, Seating, barring, refusing
from rota.scheduler.preempt import live_tasks
from rota.scheduler.rows import Plugins
from rota.scheduler.words import tasks

_REASONS = 3  # told of the other nodes, those that hold on most nodes first


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
    trial = _Trial(view, job, now, plugins)
    if target is not None:
        return trial.on_target(target, len(leaving))
    if job.spec.gang:
        return trial.of_gang(dict.fromkeys(leaving.values()))
    return trial.elsewhere(Counter(leaving.values()))


class _Trial:
    """The tasks are placed on a board of our own, by the scheduler's own rules.

    Room that is promised to the head of the queue is not kept from them, for they hold as much already.
    """

    def __init__(self, view: View, job: JobView, now: Instant, plugins: Plugins | None) -> None:
        self._view, self._job, self._now = view, job, now
        self._seating = Seating(view, plugins)
        self._refused = refusing(view, job, now)
        hold_targets(view, self._seating.board, now, 1)

    def on_target(self, target: NodeId, wanted: int) -> str | None:
        node, job = self._view.nodes[target], self._job
        if node.spec.cluster != job.spec.home:
            return f"it is in cluster {node.spec.cluster}, and job {job.spec.id} in cluster {job.spec.home}"
        sight = look(self._view, self._seating, job, None, self._now)
        at = sight.names.index(node.spec.name)
        room = int(sight.fits[at])
        if room >= wanted:
            return None
        lacks = [one.lacks(at) for one in sight.obstacles if one.nodes[at]]
        return "; ".join(lacks) or f"it has room for {tasks(room)} of it, and not for {wanted}"

    def elsewhere(self, sources: Mapping[NodeId, int]) -> str | None:
        for source, wanted in sources.items():
            found = len(self._seating.seat(self._job, wanted, self._without([source])).seats)
            if found < wanted:
                return self._why_nowhere(wanted - found)
        return None

    def of_gang(self, sources: Mapping[NodeId, None]) -> str | None:
        """All of it stops before any of it starts again, so what it holds now counts as free."""
        seats = [self._seat_of(index) for _, index in live_tasks(self._job)]
        self._seating.give_back(self._job, seats)
        found = self._seating.seat(self._job, len(seats), self._without(list(sources))).seats
        return None if len(found) == len(seats) else self._why_nowhere(len(seats))

    def _without(self, nodes: list[NodeId]) -> Array:
        slots = self._view.room.slot
        return barring(self._view, [*self._refused, *(slots[node] for node in nodes if node in slots)])

    def _seat_of(self, index: int) -> Seat:
        block, position = divmod(index, BLOCK_TASKS)
        attempt = self._job.attempts[block]
        node = attempt.nodes[ints(attempt, "node")[position]]
        return Seat(self._view.room.slot[node], attempt.gpus.get(position, 0))

    def _why_nowhere(self, missing: int) -> str:
        sight = look(self._view, self._seating, self._job, None, self._now)
        reasons = sorted((one.reason for one in sight.obstacles), key=lambda reason: -reason.count)
        told = "; ".join(reason.text for reason in reasons[:_REASONS])
        return f"no other node has room for {tasks(missing)} of it now" + (f": {told}" if told else "")
