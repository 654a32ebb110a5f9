"""Who waits in a cluster + copies of it with more nodes -> the fewest that start as many as the most do.

What runs on nodes whose machines are taken away waits too, in these copies: it soon will.
"""

from typing import NamedTuple

from rota.engine.mirror import Mirror
from rota.engine.shadow import Shadow, Taken
from rota.model.amounts import CPU, DISK, MEMORY
from rota.model.attempt import AttemptBlock
from rota.model.cluster import ClusterWish
from rota.model.columns import ints
from rota.model.container import RUNTIME
from rota.model.fit import Growth
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec, Kind, packed
from rota.model.lifecycle import NodeState
from rota.model.limits import AMOUNT_MAX, SCALE_STEP_MAX
from rota.model.node import Link, NodeSpec, NodeStatus
from rota.model.pins import PinBlock
from rota.model.plan import Instant, Plan
from rota.model.sandbox import SANDBOX
from rota.model.shape import LEASES
from rota.model.view import View, taken_away
from rota.scheduler.plan import ROUND, Scheduler
from rota.scheduler.round import Settings
from rota.scheduler.what_moves import let_go

_NEW = "new-"  # nodes that are thought of
_ABLE = {one.label: "" for one in (RUNTIME, SANDBOX, LEASES)}  # so is one of which nothing is known yet


class Trial(NamedTuple):
    """What became of those who wait, with some more nodes."""

    left: int  # tasks without room
    used: int  # of the new nodes, on which something was placed


def foresee_growth(
    view: View, wish: ClusterWish, coming: int, most: int, now: Instant, *, settings: Settings | None = None
) -> Growth:
    """By the real scheduler, on copies: `coming` nodes are there in all of them, up to `most` on top."""
    assert isinstance(view, Mirror), "copies are made of it"
    trials = _Trials(Shadow.take(view), wish, coming, now, settings or Settings())
    waiting = trials.run(0).left
    high = min(most, waiting, SCALE_STEP_MAX)  # a node that is worth it takes one at least
    if not high:
        return Growth(waiting, 0, 0)
    least = trials.run(high).left
    if least >= waiting:
        return Growth(waiting, 0, 0)
    return Growth(waiting, _fewest(trials, least, coming, high), waiting - least)


def _fewest(trials: "_Trials", least: int, coming: int, high: int) -> int:
    """Most likely as many as are used when all is packed; else looked for on either side."""
    guess = min(max(1, trials.run(high, packed=True).used - coming), high)
    low = 0
    if trials.run(guess).left <= least:
        if guess == 1 or trials.run(guess - 1).left > least:
            return guess
        high = guess - 1
    else:
        low = guess
    while high - low > 1:
        middle = (low + high) // 2
        if trials.run(middle).left <= least:
            high = middle
        else:
            low = middle
    return high


class _Trials:
    def __init__(
        self, taken: Taken, wish: ClusterWish, coming: int, now: Instant, settings: Settings
    ) -> None:
        self._taken = taken
        self._wish = wish
        self._coming = coming
        self._now = now
        self._settings = settings

    def run(self, more: int, *, packed: bool = False) -> Trial:
        """One round of the scheduler with so many more nodes."""
        shadow = Shadow.of(_packed(self._taken) if packed else self._taken)
        let_go(shadow, taken_away(shadow, self._wish.name))
        for number in range(self._coming + more):
            self._add(shadow, NodeId(f"{_NEW}{number}"))
        waiting = self._waiting(shadow)
        scheduler = Scheduler(self._settings)
        plan = scheduler.decide(shadow, ROUND, self._now)
        if any(isinstance(record, PinBlock) for record in plan.puts):
            for record in plan.puts:
                shadow.apply(record)
            plan = scheduler.decide(shadow, ROUND, self._now)
        placed = [node for job, node in _placed(shadow, plan) if self._counts(job)]
        return Trial(waiting - len(placed), len({node for node in placed if node.startswith(_NEW)}))

    def _waiting(self, shadow: Shadow) -> int:
        jobs = (shadow.jobs[JobId(str(turn[2]))] for _, turns in shadow.waiting() for turn in turns)
        return sum(len(job.ready(self._now.ms, job.tally.pending)) for job in jobs if self._counts(job.spec))

    def _counts(self, job: JobSpec) -> bool:
        """What runs on every node takes its part of each, and asks for none."""
        return job.home == self._wish.name and job.kind is not Kind.SYSTEM

    def _add(self, shadow: Shadow, node: NodeId) -> None:
        """Like the last one that has joined, as far as it has found out by itself what it is."""
        cluster = shadow.clusters.get(self._wish.name)
        found = _ABLE if cluster is None or cluster.found is None else cluster.found
        capacity = {CPU: 1000, MEMORY: AMOUNT_MAX, DISK: AMOUNT_MAX, **self._wish.capacity}
        shadow.apply(NodeSpec(node, str(node), self._wish.name, self._wish.node_labels))
        shadow.apply(NodeStatus(node, NodeState.READY, str(node), "", "", capacity, found))
        shadow.connect(node, Link.UP)


def _packed(taken: Taken) -> Taken:
    """The same jobs, which want to be where it is fullest."""
    return taken._replace(records=[packed(one) if isinstance(one, JobSpec) else one for one in taken.records])


def _placed(shadow: Shadow, plan: Plan) -> list[tuple[JobSpec, NodeId]]:
    """Each task that has a new attempt, and where."""
    found: list[tuple[JobSpec, NodeId]] = []
    for block in plan.puts:
        if not isinstance(block, AttemptBlock):
            continue
        job = shadow.jobs[block.job]
        before = job.attempts.get(block.block)
        numbers, on = ints(block, "number"), ints(block, "node")
        known = ints(before, "number") if before is not None else [0] * len(numbers)
        new = [at for at, (now, then) in enumerate(zip(numbers, known, strict=True)) if now != then]
        found += [(job.spec, block.nodes[on[at]]) for at in new]
    return found
