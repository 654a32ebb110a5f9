"""Who waits in a cluster + copies of it with more nodes -> the fewest that start as many as the most do."""

from rota.engine.mirror import Mirror
from rota.engine.shadow import Shadow, Taken
from rota.model.amounts import CPU, DISK, MEMORY
from rota.model.cluster import ClusterWish
from rota.model.fit import Growth
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import AMOUNT_MAX
from rota.model.node import Link, NodeSpec, NodeStatus
from rota.model.pins import PinBlock
from rota.model.plan import Instant
from rota.model.view import View
from rota.scheduler.plan import ROUND, Scheduler
from rota.scheduler.round import Settings


def foresee_growth(
    view: View, wish: ClusterWish, coming: int, most: int, now: Instant, *, settings: Settings | None = None
) -> Growth:
    """By the real scheduler, on copies: `coming` nodes are there in all of them, up to `most` on top."""
    assert isinstance(view, Mirror), "copies are made of it"
    trial = _Trial(Shadow.take(view), wish, coming, now, settings or Settings())
    waiting = trial.left(0)
    high = min(most, waiting)  # a node that is worth it takes one at least
    if not high:
        return Growth(waiting, 0, 0)
    least_left = trial.left(high)
    if least_left == waiting:
        return Growth(waiting, 0, 0)
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if trial.left(middle) <= least_left:
            high = middle
        else:
            low = middle
    return Growth(waiting, high, waiting - least_left)


class _Trial:
    def __init__(
        self, taken: Taken, wish: ClusterWish, coming: int, now: Instant, settings: Settings
    ) -> None:
        self._taken = taken
        self._wish = wish
        self._coming = coming
        self._now = now
        self._settings = settings

    def left(self, more: int) -> int:
        """Tasks that find no room with so many more nodes."""
        shadow = Shadow.of(self._taken)
        for number in range(self._coming + more):
            self._add(shadow, NodeId(f"new-{number}"))
        scheduler = Scheduler(self._settings)
        plan = scheduler.decide(shadow, ROUND, self._now)
        for record in plan.puts:
            shadow.apply(record)
        if any(isinstance(record, PinBlock) for record in plan.puts):
            for record in scheduler.decide(shadow, ROUND, self._now).puts:
                shadow.apply(record)
        name = self._wish.name
        return sum(
            min(job.tally.pending, len(job.ready(self._now.ms, job.tally.pending)))
            for line, turns in shadow.waiting()
            if line.shape.cluster == name
            for job in (shadow.jobs[JobId(str(turn[2]))] for turn in turns)
        )

    def _add(self, shadow: Shadow, node: NodeId) -> None:
        capacity = {CPU: 1000, MEMORY: AMOUNT_MAX, DISK: AMOUNT_MAX, **self._wish.capacity}
        labels = self._wish.node_labels
        shadow.apply(NodeSpec(node, str(node), self._wish.name, labels))
        shadow.apply(NodeStatus(node, NodeState.READY, str(node), "", "", capacity))
        shadow.connect(node, Link.UP)
