"""What-if: a job that is not submitted, on a copy of the mirror, perhaps with other nodes -> its outcome.

The real scheduler runs on the copy, so that the preview and the later decision agree.
"""

from collections.abc import Iterator

import numpy as np

from rota.engine.state.what_if import MirrorCopy, WhatIfMirror
from rota.model.attempt import EVICTED, AttemptBlock
from rota.model.cluster import DEFAULT
from rota.model.columns import Ranges, ints
from rota.model.ids import Key, NodeId
from rota.model.job import JobCluster, JobKind, JobSpec, JobStatus, with_observed_needs
from rota.model.lifecycle import ClusterState, JobState, NodeState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Connection, NodeSpec, NodeStatus
from rota.model.outlook import (
    Explanation,
    PlannedEviction,
    PlannedPlacement,
    PlannedScaling,
    PlanOutcome,
    PlanResult,
    WhatIf,
)
from rota.model.plan import Instant, Plan
from rota.model.task import PinBlock
from rota.model.view import JobView
from rota.rules.reconciler_names import ROUND_KEY
from rota.scheduler.cluster_fit import FitCalculator
from rota.scheduler.explain.phrases import count_of_tasks, join_few
from rota.scheduler.explain.queue_position import is_too_late
from rota.scheduler.explain.why import WaitAnalysis, analyse_wait, describe_wait
from rota.scheduler.plan import Scheduler
from rota.scheduler.round import SchedulerSettings
from rota.scheduler.scale_estimate import estimate_scale


def plan_job(
    copied: MirrorCopy,
    spec: JobSpec,
    what_if: WhatIf,
    now: Instant,
    settings: SchedulerSettings | None = None,
) -> PlanResult:
    settings = settings or SchedulerSettings()
    found = plan_on_copy(WhatIfMirror.from_copy(copied), spec, what_if, now, settings)
    is_hopeless = found.outcome is PlanOutcome.NEVER and found.why is not None
    if found.starts == spec.count or not (what_if.scale or is_hopeless):
        return found
    scaling = _plan_scaling(copied, spec, now, settings, may_choose=found.starts == 0)
    return found if scaling is None else found.grown(scaling)


def _plan_scaling(
    copied: MirrorCopy, spec: JobSpec, now: Instant, settings: SchedulerSettings, *, may_choose: bool
) -> PlannedScaling | None:
    """The first cluster that would scale up for the job.

    If some tasks start, only the cluster they start in.
    """
    clusters = WhatIfMirror.from_copy(copied)
    # All tasks of a job are in one cluster: growth of another would not help those that are left over.
    home = None if may_choose else _likeliest_cluster(clusters, spec)
    for name, intent in clusters.cluster_intents.items():
        if home not in (None, name):
            continue
        cluster = clusters.clusters.get(name)
        if (
            intent.by_hand
            or intent.nodes is not None
            or cluster is None
            or cluster.state is ClusterState.FAILED
        ):
            continue
        if intent.drain or spec.cluster not in (None, name, cluster.like):
            continue
        # A copy for each cluster: the job is assigned to it there, which must not show in the next trial.
        copy = WhatIfMirror.from_copy(copied)
        for record in (spec, JobCluster(spec.id, name), JobStatus(spec.id, JobState.ACTIVE)):
            copy.apply(record)
        machines = [machine for machine in copy.machines.values() if machine.cluster == name]
        has, coming = (
            sum(1 + machine.extra for machine in machines),
            sum(machine.is_being_created for machine in machines),
        )
        estimate = estimate_scale(copy, intent, coming, intent.max_nodes - has, now, settings=settings)
        if estimate.nodes:
            return PlannedScaling(
                name, estimate.nodes, has, intent.max_nodes, estimate.waiting, estimate.starts
            )
    return None


def plan_on_copy(
    mirror: WhatIfMirror, spec: JobSpec, what_if: WhatIf, now: Instant, settings: SchedulerSettings
) -> PlanResult:
    """One round for jobs that are pending already, so that they go first; then one that includes this job."""
    scheduler = Scheduler(settings)
    # Jobs that can start now would have started before this one was submitted. If they were placed in the
    # same round, a job of higher priority would seem to precede them.
    _apply_plan(mirror, scheduler.decide(mirror, ROUND_KEY, now))
    new = _change_nodes(mirror, what_if)
    home = spec.cluster or _likeliest_cluster(mirror, spec)
    for record in (spec, JobCluster(spec.id, home), JobStatus(spec.id, JobState.ACTIVE)):
        mirror.apply(record)
    job = mirror.jobs[spec.id]
    if is_too_late(job, now):
        return PlanResult(PlanOutcome.NEVER, "would never start: it can no longer be over by its deadline")
    plan = scheduler.decide(mirror, ROUND_KEY, now)
    if any(isinstance(record, PinBlock) for record in plan.puts):  # pinned tasks, which the next round places
        _apply_plan(mirror, plan)
        plan = scheduler.decide(mirror, ROUND_KEY, now)
    nominated = [mirror.node_table.ids[slot] for slot in scheduler.nominated_slots(spec.id)]
    evicts = tuple(_planned_evictions(mirror, plan, nominated))
    _apply_plan(mirror, plan)
    if job.verdict is not None:
        return PlanResult(PlanOutcome.NEVER, f"would be rejected: {job.verdict.reason}")
    places = tuple(_planned_placements(mirror, job, nominated, new))
    if spec.kind is JobKind.SYSTEM:
        return _system_job_result(job, places, evicts)
    analysis = analyse_wait(mirror, job, now, settings.plugins, backfill=settings.backfill)
    if not places:
        return _waits(mirror, job, analysis, now)
    starts_all = sum(place.tasks for place in places) == spec.count
    left = None if starts_all else describe_wait(mirror, job, analysis, now)
    return _starts_now(places, evicts, spec.count, left)


def _likeliest_cluster(mirror: WhatIfMirror, spec: JobSpec) -> str:
    """The cluster with the most free resources for the job; the default one if none has any."""
    fits_of = FitCalculator()
    names = (DEFAULT, *mirror.clusters)
    fits = {name: fits_of.cluster_fit(mirror, with_observed_needs(spec), name) for name in names}
    if spec.observed and not any(fit.able for fit in fits.values()):
        fits = {name: fits_of.cluster_fit(mirror, spec, name) for name in names}
    return max(fits, key=lambda name: (min(fits[name].free, spec.count), fits[name].able))


def _system_job_result(
    job: JobView, places: tuple[PlannedPlacement, ...], evicts: tuple[PlannedEviction, ...]
) -> PlanResult:
    if not job.task_by_node:
        return PlanResult(PlanOutcome.WAIT, "would wait: no open node fits its conditions")
    coverage = f"{len(places)} of {len(job.task_by_node)} fitting nodes"
    if not places:
        return PlanResult(PlanOutcome.WAIT, f"would wait: {coverage} have room")
    nodes = join_few([place.node for place in places])
    return PlanResult(PlanOutcome.NOW, f"would start on {coverage}: {nodes}", len(places), places, evicts)


def _apply_plan(mirror: WhatIfMirror, plan: Plan) -> None:
    for record in plan.puts:
        mirror.apply(record)


def _change_nodes(mirror: WhatIfMirror, what_if: WhatIf) -> list[NodeId]:
    """Remove nodes with their tasks, and add idle ones named new-1 and so on."""
    taken = {node.spec.name for node in mirror.nodes.values()}
    for removed in what_if.without:
        mirror.forget(Key(f"node/{removed}/spec"))
    new: list[NodeId] = []
    number = 0
    for kind in what_if.add_nodes:
        for _ in range(kind.count):
            number += 1
            # A real node may have such a name, and a second one under it would replace it.
            while f"new-{number}" in taken or NodeId(f"new-{number}") in mirror.nodes:
                number += 1
            node = NodeId(f"new-{number}")
            mirror.apply(NodeSpec(node, str(node), labels=kind.labels))
            mirror.apply(NodeStatus(node, NodeState.READY, str(node), "", "", kind.capacity))
            mirror.connect(node, Connection.UP)
            new.append(node)
    return new


def _planned_placements(
    mirror: WhatIfMirror, job: JobView, nominated: list[NodeId], new: list[NodeId]
) -> Iterator[PlannedPlacement]:
    """Nodes where its tasks were placed, or where tasks are evicted for them; those with most tasks first."""
    tasks = dict(job.live_by_node)
    for node in nominated:
        tasks[node] = tasks.get(node, 0) + 1
    for node in sorted(tasks, key=lambda node: (-tasks[node], mirror.node_table.slot[node])):
        yield PlannedPlacement(mirror.nodes[node].spec.name, tasks[node], node in new)


def _planned_evictions(
    mirror: WhatIfMirror, plan: Plan, nominated: list[NodeId]
) -> Iterator[PlannedEviction]:
    """Evictions of this round on the nodes that are nominated to the job."""
    for block in plan.puts:
        if not isinstance(block, AttemptBlock):
            continue
        before = mirror.jobs[block.job].attempts.get(block.block)
        flags = np.frombuffer(block.flags, np.uint8) & EVICTED
        analysis = 0 if before is None else np.frombuffer(before.flags, np.uint8) & EVICTED
        positions = np.nonzero(flags & ~np.uint8(analysis))[0].tolist()
        on = ints(block, "node")
        gang = mirror.jobs[block.job].spec.gang
        here = [at for at in positions if block.nodes[on[at]] in nominated]
        evicted = positions if gang and here else here
        if evicted:
            ranges = Ranges([block.block * BLOCK_TASKS + at for at in evicted])
            yield PlannedEviction(block.job, mirror.jobs[block.job].spec.namespace, tuple(ranges.pairs))


def _starts_now(
    places: tuple[PlannedPlacement, ...],
    evicts: tuple[PlannedEviction, ...],
    count: int,
    left: Explanation | None,
) -> PlanResult:
    starts = sum(place.tasks for place in places)
    where = join_few([place.node if count == 1 else f"{place.node} ({place.tasks})" for place in places])
    head = "would start" if count == 1 else f"{starts} of {count} tasks would start"
    wait = f"; {left.sentence}" if left is not None else ""
    sentence = f"{head} {_when(evicts)} on {where}{wait}"
    return PlanResult(PlanOutcome.NOW, sentence, starts, places, evicts, left)


def _when(evicts: tuple[PlannedEviction, ...]) -> str:
    evicted = sum(last - first + 1 for eviction in evicts for first, last in eviction.indices)
    if not evicted:
        return "now"
    has = "has" if evicted == 1 else "have"
    return f"as soon as {count_of_tasks(evicted)} of lower priority {has} given way"


def _waits(mirror: WhatIfMirror, job: JobView, analysis: WaitAnalysis, now: Instant) -> PlanResult:
    answer = describe_wait(mirror, job, analysis, now)
    reason = answer.sentence.partition(": ")[2]
    if _is_infeasible(job, analysis):
        return PlanResult(PlanOutcome.NEVER, f"would never start: {reason}", why=answer)
    return PlanResult(PlanOutcome.WAIT, f"would wait: {reason}", why=answer)


def _is_infeasible(job: JobView, analysis: WaitAnalysis) -> bool:
    """Whether the job, or the whole gang, would not fit even on empty nodes."""
    report, board = analysis.feasibility, analysis.placer.board
    feasible = ~report.lasting
    if analysis.job_limits.permanent or not feasible.any():
        return True
    most = int(board.tasks_when_empty(job.spec.shape)[report.slots[feasible]].sum())
    return job.spec.gang and most < job.spec.count
