"""Pending tasks of a cluster + copies of the mirror with more nodes -> the fewest nodes that start the most.

Tasks on nodes whose machines are being terminated count as pending in these copies: they soon will be.
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
from rota.rules.reconciler_names import ROUND_KEY
from rota.scheduler.drain_preview import withdraw_movable
from rota.scheduler.plan import Scheduler
from rota.scheduler.round import SchedulerSettings

_NEW_NODE_PREFIX = "new-"  # names of hypothetical nodes
# Before the first node of a cluster has joined, a new one is assumed to support all of these.
_ASSUMED_LABELS = {label.label: "" for label in (RUNTIME, SANDBOX, LEASES)}


class ScaleTrial(NamedTuple):
    """Result of one trial with some more nodes."""

    unplaced: int  # tasks that found no node
    nodes_used: int  # new nodes on which something was placed


def estimate_scale(
    view: View,
    intent: ClusterIntent,
    coming: int,
    most: int,
    now: Instant,
    *,
    settings: SchedulerSettings | None = None,
) -> ScaleEstimate:
    """Run the real scheduler on copies with `coming` nodes that are being added, and up to `most` on top."""
    assert isinstance(view, Mirror), "only the mirror can be copied"
    trials = _ScaleTrials(WhatIfMirror.copy_of(view), intent, coming, now, settings or SchedulerSettings())
    # With no further node: tasks that start on nodes which exist or are coming ask for nothing.
    waiting = trials.run(0).unplaced
    high = min(most, waiting, SCALE_STEP_MAX)  # a useful node runs at least one of them
    if not high:
        return ScaleEstimate(waiting, 0, 0)
    least = trials.run(high).unplaced
    # More nodes would not help: the tasks wait for a quota or a rule, not for resources.
    if least >= waiting:
        return ScaleEstimate(waiting, 0, 0)
    return ScaleEstimate(waiting, _fewest_nodes(trials, least, coming, high), waiting - least)


def _fewest_nodes(trials: "_ScaleTrials", least: int, coming: int, high: int) -> int:
    """Binary search, starting with the number of nodes that bin-packing would use."""
    guess = min(max(1, trials.run(high, packed=True).nodes_used - coming), high)
    low = 0
    if trials.run(guess).unplaced <= least:
        # Each trial is a whole round on a copy. Where the guess is right, two trials
        # confirm it and no search follows.
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
        """Run one scheduling round with `more` additional nodes."""
        # A fresh mirror per trial: a round changes it, and caches must not carry
        # results from one size to the next.
        mirror = WhatIfMirror.from_copy(_pack_all(self._copied) if packed else self._copied)
        withdraw_movable(mirror, nodes_being_terminated(mirror, self._intent.name))
        for number in range(self._coming + more):
            self._add_node(mirror, NodeId(f"{_NEW_NODE_PREFIX}{number}"))
        waiting = self._count_waiting(mirror)
        scheduler = Scheduler(self._settings)
        plan = scheduler.decide(mirror, ROUND_KEY, self._now)
        # Tasks of system jobs exist only after their pins are applied. They take a part of every new node, so
        # a trial without them would find too few nodes.
        if any(isinstance(record, PinBlock) for record in plan.puts):
            for record in plan.puts:
                mirror.apply(record)
            plan = scheduler.decide(mirror, ROUND_KEY, self._now)
        placed = [node for job, node in _new_placements(mirror, plan) if self._is_counted(job)]
        return ScaleTrial(
            waiting - len(placed), len({node for node in placed if node.startswith(_NEW_NODE_PREFIX)})
        )

    def _count_waiting(self, mirror: WhatIfMirror) -> int:
        jobs = (mirror.jobs[JobId(str(rank[2]))] for _, ranks in mirror.pending_queues() for rank in ranks)
        return sum(
            len(job.ready(self._now.ms, job.task_counts.pending))
            for job in jobs
            if self._is_counted(job.spec)
        )

    def _is_counted(self, job: JobSpec) -> bool:
        """Whether the job may ask for nodes: system jobs run on every node, but never ask for one."""
        return job.home == self._intent.name and job.kind is not JobKind.SYSTEM

    def _add_node(self, mirror: WhatIfMirror, node: NodeId) -> None:
        """Add a node with the labels that the last joined node of the cluster detected on itself."""
        cluster = mirror.clusters.get(self._intent.name)
        found = _ASSUMED_LABELS if cluster is None or cluster.found is None else cluster.found
        capacity = {CPU: 1000, MEMORY: AMOUNT_MAX, DISK: AMOUNT_MAX, **self._intent.capacity}
        mirror.apply(NodeSpec(node, str(node), self._intent.name, self._intent.node_labels))
        mirror.apply(NodeStatus(node, NodeState.READY, str(node), "", "", capacity, found))
        mirror.connect(node, Connection.UP)


def _pack_all(copied: MirrorCopy) -> MirrorCopy:
    """The same jobs with the bin-packing policy."""
    return copied._replace(
        records=[
            with_pack_policy(record) if isinstance(record, JobSpec) else record for record in copied.records
        ]
    )


def _new_placements(mirror: WhatIfMirror, plan: Plan) -> list[tuple[JobSpec, NodeId]]:
    """Job and node of each new attempt of the plan."""
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
