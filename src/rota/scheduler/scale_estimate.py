"""Who waits in a cluster + copies of it with more nodes -> the fewest that start as many as the most do.

What runs on nodes whose machines are taken away waits too, in these copies: it soon will.
"""

from typing import NamedTuple

from rota.engine.state.mirror import Mirror
from rota.engine.state.what_if import MirrorCopy, WhatIfMirror
from rota.model.amounts import CPU, DISK, MEMORY
from rota.model.attempt import AttemptBlock
from rota.model.cluster import ClusterIntent, ScaleEstimate
from rota.model.columns import ints
from rota.model.container import RUNTIME, SANDBOX
from rota.model.ids import JobId, NodeId
from rota.model.job import JobKind, JobSpec, with_pack_policy
from rota.model.lifecycle import NodeState
from rota.model.limits import AMOUNT_MAX, SCALE_STEP_MAX
from rota.model.node import Connection, NodeSpec, NodeStatus
from rota.model.plan import Instant, Plan
from rota.model.shape import LEASES
from rota.model.task import PinBlock
from rota.model.view import View, nodes_being_terminated
from rota.scheduler.drain_preview import withdraw_movable
from rota.scheduler.plan import ROUND_KEY, Scheduler
from rota.scheduler.round import SchedulerSettings

_NEW_NODE_PREFIX = "new-"  # nodes that are thought of
_ASSUMED_LABELS = {
    one.label: "" for one in (RUNTIME, SANDBOX, LEASES)
}  # so is one of which nothing is known yet


class ScaleTrial(NamedTuple):
    """What became of those who wait, with some more nodes."""

    unplaced: int  # tasks without room
    nodes_used: int  # of the new nodes, on which something was placed


def estimate_scale(
    view: View,
    intent: ClusterIntent,
    coming: int,
    most: int,
    now: Instant,
    *,
    settings: SchedulerSettings | None = None,
) -> ScaleEstimate:
    """By the real scheduler, on copies: `coming` nodes are there in all of them, up to `most` on top."""
    assert isinstance(view, Mirror), "copies are made of it"
    trials = _ScaleTrials(WhatIfMirror.copy_of(view), intent, coming, now, settings or SchedulerSettings())
    waiting = trials.run(0).unplaced
    high = min(most, waiting, SCALE_STEP_MAX)  # a node that is worth it takes one at least
    if not high:
        return ScaleEstimate(waiting, 0, 0)
    least = trials.run(high).unplaced
    if least >= waiting:
        return ScaleEstimate(waiting, 0, 0)
    return ScaleEstimate(waiting, _fewest_nodes(trials, least, coming, high), waiting - least)


def _fewest_nodes(trials: "_ScaleTrials", least: int, coming: int, high: int) -> int:
    """Most likely as many as are used when all is packed; else looked for on either side."""
    guess = min(max(1, trials.run(high, packed=True).nodes_used - coming), high)
    low = 0
    if trials.run(guess).unplaced <= least:
        if guess == 1 or trials.run(guess - 1).unplaced > least:
            return guess
        high = guess - 1
    else:
        low = guess
    while high - low > 1:
        middle = (low + high) // 2
        if trials.run(middle).unplaced <= least:
            high = middle
        else:
            low = middle
    return high


class _ScaleTrials:
    def __init__(
        self,
        copied: MirrorCopy,
        intent: ClusterIntent,
        coming: int,
        now: Instant,
        settings: SchedulerSettings,
    ) -> None:
        self._copied = copied
        self._intent = intent
        self._coming = coming
        self._now = now
        self._settings = settings

    def run(self, more: int, *, packed: bool = False) -> ScaleTrial:
        """One round of the scheduler with so many more nodes."""
        shadow = WhatIfMirror.from_copy(_pack_all(self._copied) if packed else self._copied)
        withdraw_movable(shadow, nodes_being_terminated(shadow, self._intent.name))
        for number in range(self._coming + more):
            self._add_node(shadow, NodeId(f"{_NEW_NODE_PREFIX}{number}"))
        waiting = self._count_waiting(shadow)
        scheduler = Scheduler(self._settings)
        plan = scheduler.decide(shadow, ROUND_KEY, self._now)
        if any(isinstance(record, PinBlock) for record in plan.puts):
            for record in plan.puts:
                shadow.apply(record)
            plan = scheduler.decide(shadow, ROUND_KEY, self._now)
        placed = [node for job, node in _new_placements(shadow, plan) if self._is_counted(job)]
        return ScaleTrial(
            waiting - len(placed), len({node for node in placed if node.startswith(_NEW_NODE_PREFIX)})
        )

    def _count_waiting(self, mirror: WhatIfMirror) -> int:
        jobs = (mirror.jobs[JobId(str(turn[2]))] for _, turns in mirror.pending_queues() for turn in turns)
        return sum(
            len(job.ready(self._now.ms, job.task_counts.pending))
            for job in jobs
            if self._is_counted(job.spec)
        )

    def _is_counted(self, job: JobSpec) -> bool:
        """What runs on every node takes its part of each, and asks for none."""
        return job.home == self._intent.name and job.kind is not JobKind.SYSTEM

    def _add_node(self, mirror: WhatIfMirror, node: NodeId) -> None:
        """Like the last one that has joined, as far as it has found out by itself what it is."""
        cluster = mirror.clusters.get(self._intent.name)
        found = _ASSUMED_LABELS if cluster is None or cluster.found is None else cluster.found
        capacity = {CPU: 1000, MEMORY: AMOUNT_MAX, DISK: AMOUNT_MAX, **self._intent.capacity}
        mirror.apply(NodeSpec(node, str(node), self._intent.name, self._intent.node_labels))
        mirror.apply(NodeStatus(node, NodeState.READY, str(node), "", "", capacity, found))
        mirror.connect(node, Connection.UP)


def _pack_all(copied: MirrorCopy) -> MirrorCopy:
    """The same jobs, which want to be where it is fullest."""
    return copied._replace(
        records=[with_pack_policy(one) if isinstance(one, JobSpec) else one for one in copied.records]
    )


def _new_placements(mirror: WhatIfMirror, plan: Plan) -> list[tuple[JobSpec, NodeId]]:
    """Each task that has a new attempt, and where."""
    found: list[tuple[JobSpec, NodeId]] = []
    for block in plan.puts:
        if not isinstance(block, AttemptBlock):
            continue
        job = mirror.jobs[block.job]
        before = job.attempts.get(block.block)
        numbers, on = ints(block, "number"), ints(block, "node")
        known = ints(before, "number") if before is not None else [0] * len(numbers)
        new = [at for at, (now, then) in enumerate(zip(numbers, known, strict=True)) if now != then]
        found += [(job.spec, block.nodes[on[at]]) for at in new]
    return found
