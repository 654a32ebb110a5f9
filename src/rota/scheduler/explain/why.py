"""A job -> every reason for which it waits, counted over nodes, and the smallest change that starts it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rota.model.columns import Array, column
from rota.model.ids import JobId, NodeId
from rota.model.job import JobKind
from rota.model.lifecycle import JobState, NodeState, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.outlook import Explanation, NearMiss, WaitReason
from rota.model.plan import Instant
from rota.model.view import JobView, View
from rota.rules.disruption import BrakeLevel, BrakeState, SilentNodes
from rota.rules.phases import Phase
from rota.scheduler.explain.dependencies import explain_dependencies
from rota.scheduler.explain.estimate_start import estimate_start_ms
from rota.scheduler.explain.feasibility import NO_REMEDY, FeasibilityReport, Obstacle
from rota.scheduler.explain.job_limits import JobLimits, find_job_limits
from rota.scheduler.explain.obstacles import check_feasibility
from rota.scheduler.explain.phrases import count_of_nodes, count_other_jobs, join_few
from rota.scheduler.explain.queue_position import EarlierJobs, QueueSnapshot, count_before
from rota.scheduler.explain.scaling import (
    command_for_new_node,
    describe_scaling,
    new_node_would_help,
    scaling_reasons,
)
from rota.scheduler.explain.system_jobs import explain_system_job
from rota.scheduler.order import must_start_now
from rota.scheduler.placement.place import Placer
from rota.scheduler.placement.rows import Plugins
from rota.scheduler.policy.preempt import find_victims

_NEAR_MISSES_MAX = 3  # nodes that are named with what they lack
_PHASE_VERBS = {
    Phase.OFFERED: ("is offered to", "are offered to"),
    Phase.QUEUED: ("waits for room on", "wait for room on"),
    Phase.ACCEPTED: ("is about to start on", "are about to start on"),
    Phase.RUNNING: ("runs on", "run on"),
    Phase.STOPPING: ("is being stopped on", "are being stopped on"),
    Phase.UNRESOLVED: (
        "waits for its controller to say what becomes of it after the loss of",
        "wait for their controller to say what becomes of them after the loss of",
    ),
}
_STATE_PREFIXES = {JobState.CANCELING: "is being canceled", JobState.PAUSED: "it is paused"}


def explain_job(
    view: View,
    job_id: JobId,
    now: Instant,
    plugins: Plugins | None = None,
    *,
    backfill: bool = True,
    known: Callable[[], QueueSnapshot | None] = lambda: None,
) -> Explanation:
    job = view.jobs[job_id]
    if job.status is None:
        return Explanation(waits=True, sentence="waits: it was submitted just now")
    if job.status.state is JobState.PAUSED and job.task_counts.pending:
        return Explanation(
            waits=True, sentence="waits: " + _describe_progress(view, job), changes=(f"rota resume {job_id}",)
        )
    if job.status.state is JobState.WAITING:
        return explain_dependencies(view, job)
    if job.spec.kind is JobKind.SYSTEM and job.status.state is JobState.ACTIVE:
        return explain_system_job(view, job, _describe_progress(view, job), now)
    if job.status.state is not JobState.ACTIVE or job.task_counts.pending == 0:
        return Explanation(waits=job.task_counts.unresolved > 0, sentence=_describe_progress(view, job))
    if view.disk_low:
        return Explanation(
            waits=True,
            sentence="waits: the server's disk is full",
            changes=("make room on the server's disk",),
        )
    told = describe_wait(
        view, job, analyse_wait(view, job, now, plugins, backfill=backfill, known=known()), now
    )
    return told.with_text(*_describe_held(job), *_describe_brake(view, job))


class WaitAnalysis(NamedTuple):
    """All there is to know of a job that waits, before it is put in words."""

    placer: Placer
    feasibility: FeasibilityReport
    job_limits: JobLimits
    gang_shortage: list[WaitReason]  # nodes fit, but not enough of them at once
    reserved_for: JobId | None  # who was promised room that it would use


def analyse_wait(
    view: View,
    job: JobView,
    now: Instant,
    plugins: Plugins | None = None,
    *,
    backfill: bool = True,
    known: QueueSnapshot | None = None,
) -> WaitAnalysis:
    """Those before it take their room first, on a board of our own; then it is looked at every node."""
    seating = Placer(view, plugins)
    ahead = EarlierJobs(view, seating, now, backfill=backfill, known=known)
    ahead.place_before(job)
    promised = ahead.reservation
    sight = check_feasibility(view, seating, job, promised, now)
    own = find_job_limits(view, job, ahead.shares, now)
    scarce = _gang_shortage(seating, job, sight, now)
    barred = any(one.reason.kind == "promised" for one in sight.obstacles)
    return WaitAnalysis(
        seating, sight, own, scarce, promised.job if promised is not None and barred else None
    )


def describe_wait(view: View, job: JobView, analysis: WaitAnalysis, now: Instant) -> Explanation:
    sight, own = analysis.feasibility, analysis.job_limits
    before = count_before(view, job.spec)
    if not sight.names:
        nodes = [WaitReason("nodes", 0, 0, _describe_no_node(view, job))]
    elif not sight.fits.any():
        nodes = sorted((one.reason for one in sight.obstacles), key=lambda reason: -reason.count)
        nodes += [] if own.stuck else _preemption_reasons(view, analysis.placer, job, sight)
        nodes += scaling_reasons(view, job.spec.home)
    else:
        nodes = analysis.gang_shortage
    queue = [WaitReason("queue", before, before + 1, f"{count_other_jobs(before)} before it in the queue")]
    queue = queue if before else []
    reasons = (*own.reasons, *nodes, *queue) if own.stuck else (*nodes, *own.reasons, *queue)
    known_when = not must_start_now(job) and bool(nodes) and not own.stuck and bool(sight.names)
    return Explanation(
        True,
        _sentence(job, sight, reasons),
        reasons,
        _changes(view, job, analysis),
        before + 1,
        () if own.stuck or sight.fits.any() else _near_misses(sight),
        estimate_start_ms(view, analysis.placer, job, analysis.reserved_for, now) if known_when else None,
    )


def _describe_no_node(view: View, job: JobView) -> str:
    home = job.spec.home
    whose = "" if len(view.clusters) <= 1 else f" of its cluster, {home},"
    words = describe_scaling(view, home)
    if not words and command_for_new_node(view, job.spec) is None:
        words = [f"cluster {home} grows by itself"]
    return "; ".join([f"no node{whose} has joined", *words])


def _gang_shortage(placer: Placer, job: JobView, report: FeasibilityReport, now: Instant) -> list[WaitReason]:
    """Of a gang all tasks start at once: how many have room?"""
    wanted = job.task_counts.pending
    if not job.spec.gang or not report.fits.any() or len(job.ready(now.ms, wanted)) < wanted:
        return []
    seated = placer.place(job, wanted, report.barred)
    if len(seated.assigned) == wanted:
        placer.release(job, seated.assigned)
        return []
    most = min(int(report.fits.sum()), wanted)
    there = f"there is room for {most}" if most < wanted else "its rules or GPUs leave too little room"
    return [WaitReason("gang", most, wanted, f"its {wanted} tasks start at once, and {there}")]


def _preemption_reasons(
    view: View, placer: Placer, job: JobView, report: FeasibilityReport
) -> list[WaitReason]:
    """Others are giving way to it, or will have to with the next round."""
    eviction = None if job.spec.gang else find_victims(view, placer, job, report.barred, set())
    if eviction is None:
        return []
    name = view.nodes[view.node_table.ids[eviction.slot]].spec.name
    return [
        WaitReason("giving_way", 1, len(report.names), f"work of lower priority gives way to it on {name}")
    ]


def _sentence(job: JobView, report: FeasibilityReport, reasons: tuple[WaitReason, ...]) -> str:
    pending, count = job.task_counts.pending, job.spec.count
    head = "waits" if count == 1 else f"{pending} of {count} tasks {'waits' if pending == 1 else 'wait'}"
    if not reasons or reasons[0].kind == "queue":
        fitting = int(np.count_nonzero(report.fits))
        return f"{head}: {count_of_nodes(fitting, len(report.names), 'fits', 'fit')}, its turn is next"
    told = 1 if reasons[0].count == reasons[0].of else 2
    return f"{head}: {'; '.join(reason.text for reason in reasons[:told])}"


# ---- what would help


def _changes(view: View, job: JobView, analysis: WaitAnalysis) -> tuple[str, ...]:
    """What alone would start it, were it first in the queue; else the cheapest two together on one node."""
    sight, own = analysis.feasibility, analysis.job_limits
    if not sight.names:
        return _advise_new_node(view, job, "join a node")
    if own.stuck:
        return own.changes if sight.fits.any() and not analysis.gang_shortage else ()
    if analysis.gang_shortage:
        return ("would start without gang, as far as there is room",)
    if sight.fits.any():
        return ()
    if job.spec.gang and job.task_counts.pending > 1:
        room = f"would start on new nodes with room for all {job.task_counts.pending} tasks"
        return _advise_new_node(view, job, room)
    return _changes_on_one_node(sight) or _advise_new_node(
        view, job, "would start on a new node with room for it"
    )


def _advise_new_node(view: View, job: JobView, what: str) -> tuple[str, ...]:
    """Nothing, where it comes by itself or would not help."""
    command = command_for_new_node(view, job.spec) if new_node_would_help(view, job.spec) else None
    return () if command is None else (f"{what} ({command})",)


def _changes_on_one_node(report: FeasibilityReport) -> tuple[str, ...]:
    """Nothing, where no two changes are enough."""
    stands, cost = _count_obstacles(report)
    alone = (stands == 1) & np.isfinite(cost)
    if alone.any():
        groups = ((one, np.nonzero(alone & one.nodes)[0]) for one in report.obstacles)
        return tuple(_single_change(one, at, cost[at], report.names) for one, at in groups if at.size)
    together = np.where(stands == 2, cost, NO_REMEDY)
    best = int(together.argmin())
    if not np.isfinite(together[best]):
        return ()
    both = " and ".join(one.change(best) for one in report.obstacles if one.nodes[best])
    return (f"would start on {report.names[best]} {both}",)


def _count_obstacles(report: FeasibilityReport) -> tuple[Array, Array]:
    """Per node how many obstacles there are, and what removing them all would cost."""
    stands = np.zeros(len(report.names), np.int64)
    cost = np.zeros(len(report.names))
    for obstacle in report.obstacles:
        stands += obstacle.nodes
        cost += np.where(obstacle.nodes, obstacle.cost, 0.0)
    return stands, cost


def _single_change(obstacle: Obstacle, nodes: Array, cost: Array, names: list[str]) -> str:
    best: list[int] = nodes[cost == cost.min()].tolist()
    change = obstacle.change(best[0])
    alike = len(best) > 1 and obstacle.change(best[-1]) == change
    return f"would start on {f'{len(best)} nodes' if alike else names[best[0]]} {change}"


def _near_misses(report: FeasibilityReport) -> tuple[NearMiss, ...]:
    """The nodes that lack least."""
    stands, cost = _count_obstacles(report)
    beyond = sum((one.nodes & ~np.isfinite(one.cost) for one in report.obstacles), np.zeros_like(stands))
    ranked = np.lexsort((np.arange(stands.size), stands, np.where(np.isfinite(cost), cost, 0.0), beyond))
    return tuple(
        NearMiss(report.names[at], tuple(one.lacks(at) for one in report.obstacles if one.nodes[at]))
        for at in ranked[:_NEAR_MISSES_MAX].tolist()
    )


# ---- a job that does not wait


def _describe_progress(view: View, job: JobView) -> str:
    assert job.status is not None
    if job.status.ended:
        return f"{job.status.state}: {job.status.reason}"
    parts = [f"{job.task_counts.ended} of {job.spec.count} tasks have ended"] if job.task_counts.ended else []
    for phase, (one, many) in _PHASE_VERBS.items():
        count = job.task_counts.as_dict()[phase.name.lower()]
        if count:
            does = f"1 task {one}" if count == 1 else f"{count} tasks {many}"
            parts.append(f"{one if job.spec.count == 1 else does} {join_few(_nodes_of(view, job, phase))}")
    parts += [*_describe_held(job), *_describe_brake(view, job)]
    head = _STATE_PREFIXES.get(job.status.state, "")
    return ": ".join(filter(None, (head, "; ".join(parts))))


def _describe_brake(view: View, job: JobView) -> list[str]:
    """Where its tasks are silent, and why they are not started elsewhere."""
    nodes = (view.nodes[node] for node in job.live_by_node if node in view.nodes)
    states = {node.spec.name: node.status.state for node in nodes if node.status is not None}
    silent = [name for name, state in states.items() if state is NodeState.SUSPECT]
    brake = SilentNodes(view).worst(view) if silent else BrakeState()
    if brake.level is BrakeLevel.OFF:
        return []
    return [
        f"{join_few(silent)} {'is' if len(silent) == 1 else 'are'} silent, and the brake is {brake.sentence}"
    ]


def _describe_held(job: JobView) -> list[str]:
    """What may be taking nodes down, one of them with its reason."""
    if not job.task_counts.held:
        return []
    held = [
        (block * BLOCK_TASKS + at, task.reasons.get(at, "suspected"))
        for block, task in sorted(job.tasks.items())
        for at in np.nonzero(column(task, "state") == TaskState.HELD)[0].tolist()
    ]
    index, reason = held[0]
    who = "" if job.spec.count == 1 else f"task {index} " if len(held) == 1 else f"{len(held)} tasks "
    are, which = ("are", f" of task {index}") if len(held) > 1 else ("is", "")
    return [f"{who}{are} held as suspect:{which} {reason} (rota job release {job.spec.id})"]


def _nodes_of(view: View, job: JobView, phase: Phase) -> list[str]:
    found: dict[NodeId, None] = {}
    for block, attempt in job.attempts.items():
        at = np.frombuffer(job.phases[block], np.uint8) == phase
        for place in np.unique(column(attempt, "node")[at]).tolist():
            found[attempt.nodes[place]] = None
    return [view.nodes[node].spec.name if node in view.nodes else node for node in found]
