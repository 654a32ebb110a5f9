"""`rota why`: a job -> the reasons why it waits, counted over nodes, and the smallest change that helps."""

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
from rota.model.view import JobView, NodeView, View, state_of
from rota.rules.disruption import BrakeLevel, BrakeState, SilentNodes
from rota.rules.phases import Phase
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
from rota.scheduler.order import must_start_now
from rota.scheduler.placement.place import Placer
from rota.scheduler.placement.rows import Plugins
from rota.scheduler.policy.preempt import find_victims

_DEPENDENCIES_NAMED = 8  # in an explanation
_NEAR_MISSES_MAX = 3  # nodes named together with what they lack
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
        return _explain_dependencies(view, job)
    if job.spec.kind is JobKind.SYSTEM and job.status.state is JobState.ACTIVE:
        return _explain_system_job(view, job, _describe_progress(view, job), now)
    if job.status.state is not JobState.ACTIVE or job.task_counts.pending == 0:
        return Explanation(waits=job.task_counts.unresolved > 0, sentence=_describe_progress(view, job))
    if view.disk_low:
        return Explanation(
            waits=True,
            sentence="waits: the server's disk is full",
            changes=("make room on the server's disk",),
        )
    explanation = describe_wait(
        view, job, analyse_wait(view, job, now, plugins, backfill=backfill, known=known()), now
    )
    return explanation.with_text(*_describe_held(job), *_describe_brake(view, job))


class WaitAnalysis(NamedTuple):
    """Analysis of a pending job, from which the explanation is written."""

    placer: Placer
    feasibility: FeasibilityReport
    job_limits: JobLimits
    gang_shortage: list[WaitReason]  # single tasks fit, but not all of a gang together
    reserved_for: JobId | None  # the head of line, whose reserved resources it would use


def analyse_wait(
    view: View,
    job: JobView,
    now: Instant,
    plugins: Plugins | None = None,
    *,
    backfill: bool = True,
    known: QueueSnapshot | None = None,
) -> WaitAnalysis:
    """Place the jobs before it on a separate board, then check the job against every node."""
    placer = Placer(view, plugins)
    earlier = EarlierJobs(view, placer, now, backfill=backfill, known=known)
    earlier.place_before(job)
    reservation = earlier.reservation
    report = check_feasibility(view, placer, job, reservation, now)
    limits = find_job_limits(view, job, earlier.shares, now)
    gang_shortage = _gang_shortage(placer, job, report, now)
    barred = any(obstacle.reason.kind == "promised" for obstacle in report.obstacles)
    return WaitAnalysis(
        placer, report, limits, gang_shortage, reservation.job if reservation is not None and barred else None
    )


def describe_wait(view: View, job: JobView, analysis: WaitAnalysis, now: Instant) -> Explanation:
    report, limits = analysis.feasibility, analysis.job_limits
    before = count_before(view, job.spec)
    if not report.names:
        nodes = [WaitReason("nodes", 0, 0, _describe_no_node(view, job))]
    elif not report.fits.any():
        nodes = sorted((obstacle.reason for obstacle in report.obstacles), key=lambda reason: -reason.count)
        nodes += [] if limits.stuck else _preemption_reasons(view, analysis.placer, job, report)
        nodes += scaling_reasons(view, job.spec.home)
    else:
        nodes = analysis.gang_shortage
    queue = [WaitReason("queue", before, before + 1, f"{count_other_jobs(before)} before it in the queue")]
    queue = queue if before else []
    reasons = (*limits.reasons, *nodes, *queue) if limits.stuck else (*nodes, *limits.reasons, *queue)
    known_when = not must_start_now(job) and bool(nodes) and not limits.stuck and bool(report.names)
    return Explanation(
        True,
        _sentence(job, report, reasons),
        reasons,
        _changes(view, job, analysis),
        before + 1,
        () if limits.stuck or report.fits.any() else _near_misses(report),
        estimate_start_ms(view, analysis.placer, job, analysis.reserved_for, now) if known_when else None,
    )


def _describe_no_node(view: View, job: JobView) -> str:
    home = job.spec.home
    whose = "" if len(view.clusters) <= 1 else f" of its cluster, {home},"
    texts = describe_scaling(view, home)
    if not texts and command_for_new_node(view, job.spec) is None:
        texts = [f"cluster {home} grows by itself"]
    return "; ".join([f"no node{whose} has joined", *texts])


def _gang_shortage(placer: Placer, job: JobView, report: FeasibilityReport, now: Instant) -> list[WaitReason]:
    """Reason for a gang whose tasks fit one by one, but not together."""
    pending = job.task_counts.pending
    if not job.spec.gang or not report.fits.any() or len(job.ready(now.ms, pending)) < pending:
        return []
    found = placer.place(job, pending, report.barred)
    if len(found.assigned) == pending:
        placer.release(job, found.assigned)
        return []
    most = min(int(report.fits.sum()), pending)
    shortage = f"there is room for {most}" if most < pending else "its rules or GPUs leave too little room"
    return [WaitReason("gang", most, pending, f"its {pending} tasks start at once, and {shortage}")]


def _preemption_reasons(
    view: View, placer: Placer, job: JobView, report: FeasibilityReport
) -> list[WaitReason]:
    """Reason if tasks of lower priority are being evicted for it, or will be in the next round."""
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
    shown = 1 if reasons[0].count == reasons[0].of else 2
    return f"{head}: {'; '.join(reason.text for reason in reasons[:shown])}"


# ---- changes that would help


def _changes(view: View, job: JobView, analysis: WaitAnalysis) -> tuple[str, ...]:
    """Single changes that would start the job if it were first.

    Else the two cheapest together on one node.
    """
    report, limits = analysis.feasibility, analysis.job_limits
    if not report.names:
        return _advise_new_node(view, job, "join a node")
    if limits.stuck:
        return limits.changes if report.fits.any() and not analysis.gang_shortage else ()
    if analysis.gang_shortage:
        return ("would start without gang, as far as there is room",)
    if report.fits.any():
        return ()
    if job.spec.gang and job.task_counts.pending > 1:
        advice = f"would start on new nodes with room for all {job.task_counts.pending} tasks"
        return _advise_new_node(view, job, advice)
    return _changes_on_one_node(report) or _advise_new_node(
        view, job, "would start on a new node with room for it"
    )


def _advise_new_node(view: View, job: JobView, what: str) -> tuple[str, ...]:
    """Advice to add a node; empty if one is added automatically or would not help."""
    command = command_for_new_node(view, job.spec) if new_node_would_help(view, job.spec) else None
    return () if command is None else (f"{what} ({command})",)


def _changes_on_one_node(report: FeasibilityReport) -> tuple[str, ...]:
    """Changes that make one node fit; empty if two are not enough."""
    counts, cost = _count_obstacles(report)
    alone = (counts == 1) & np.isfinite(cost)
    if alone.any():
        groups = ((obstacle, np.nonzero(alone & obstacle.nodes)[0]) for obstacle in report.obstacles)
        return tuple(_single_change(removed, at, cost[at], report.names) for removed, at in groups if at.size)
    together = np.where(counts == 2, cost, NO_REMEDY)
    best = int(together.argmin())
    if not np.isfinite(together[best]):
        return ()
    both = " and ".join(obstacle.change(best) for obstacle in report.obstacles if obstacle.nodes[best])
    return (f"would start on {report.names[best]} {both}",)


def _count_obstacles(report: FeasibilityReport) -> tuple[Array, Array]:
    """Per node: the number of obstacles, and the cost of removing them all."""
    counts = np.zeros(len(report.names), np.int64)
    cost = np.zeros(len(report.names))
    for obstacle in report.obstacles:
        counts += obstacle.nodes
        cost += np.where(obstacle.nodes, obstacle.cost, 0.0)
    return counts, cost


def _single_change(obstacle: Obstacle, nodes: Array, cost: Array, names: list[str]) -> str:
    best: list[int] = nodes[cost == cost.min()].tolist()
    change = obstacle.change(best[0])
    alike = len(best) > 1 and obstacle.change(best[-1]) == change
    return f"would start on {f'{len(best)} nodes' if alike else names[best[0]]} {change}"


def _near_misses(report: FeasibilityReport) -> tuple[NearMiss, ...]:
    """The nodes that need the cheapest changes."""
    counts, cost = _count_obstacles(report)
    unsolvable = sum(
        (obstacle.nodes & ~np.isfinite(obstacle.cost) for obstacle in report.obstacles), np.zeros_like(counts)
    )
    ranked = np.lexsort((np.arange(counts.size), counts, np.where(np.isfinite(cost), cost, 0.0), unsolvable))
    return tuple(
        NearMiss(
            report.names[at], tuple(obstacle.lacks(at) for obstacle in report.obstacles if obstacle.nodes[at])
        )
        for at in ranked[:_NEAR_MISSES_MAX].tolist()
    )


# ---- dependencies and system jobs


def _explain_dependencies(view: View, job: JobView) -> Explanation:
    """Which jobs a waiting job waits for, and their states."""
    after = job.spec.after
    left = [dependency for dependency in after if dependency.is_met(state_of(view, dependency.job)) is None]
    reasons = [
        WaitReason(
            "after",
            1,
            1,
            f"waits for {dependency.description}: it {_describe_dependency(view, dependency.job)}",
        )
        for dependency in left
    ]
    if len(left) > _DEPENDENCIES_NAMED:
        more = len(left) - _DEPENDENCIES_NAMED
        reasons = [
            *reasons[:_DEPENDENCIES_NAMED],
            WaitReason("after", more, len(after), f"and for {more} other jobs to end"),
        ]
    head = f"waits for {len(left)} of {len(after)} jobs" if len(after) > 1 else "waits"
    first = reasons[0].text.removeprefix("waits ") if reasons else "it starts now"
    sentence = f"{head} {first}" if len(after) == 1 else f"{head}; the first: {first.removeprefix('for ')}"
    return Explanation(waits=True, sentence=sentence, reasons=tuple(reasons))


def _describe_dependency(view: View, job_id: JobId) -> str:
    job = view.jobs[job_id]
    match state_of(view, job_id):
        case JobState.WAITING:
            return "waits for others itself"
        case JobState.CANCELING:
            return "is being canceled"
        case _:
            return "runs" if job.task_counts.live or job.task_counts.ended else "has not started"


def _explain_system_job(view: View, job: JobView, doing: str, now: Instant) -> Explanation:
    """The nodes on which tasks of a system job do not run, and why."""
    if not job.task_by_node:
        text = "no open node fits its conditions" if view.nodes else "no node has joined"
        return Explanation(True, f"waits: {text}", (WaitReason("nodes", 0, len(view.nodes), text),))
    groups: dict[str, list[str]] = {}
    ready = set(job.ready(now.ms, job.spec.count))
    for node_id, index in job.task_by_node.items():
        node = view.nodes.get(node_id)
        if node is not None and _phase_of(job, index) is Phase.PENDING:
            groups.setdefault(_describe_absence(node, in_backoff=index not in ready), []).append(
                node.spec.name
            )
    reasons = tuple(
        WaitReason("node", len(names), len(job.task_by_node), f"not on {join_few(names)}: {why}")
        for why, names in groups.items()
    )
    text = "; ".join(reason.text for reason in reasons)
    return Explanation(bool(reasons), "; ".join(filter(None, (doing, text))), reasons)


def _phase_of(job: JobView, index: int) -> Phase:
    block, position = divmod(index, BLOCK_TASKS)
    return Phase(job.phases[block][position]) if block in job.phases else Phase.PENDING


def _describe_absence(node: NodeView, *, in_backoff: bool) -> str:
    if node.status is None or node.status.state is not NodeState.READY:
        return "it has not connected yet" if node.status is None else f"it is {node.status.state}"
    if node.is_draining:
        return "it is drained"
    if node.intent is not None and node.intent.eligibility.value != "open":
        return f"it is {node.intent.eligibility}"
    return "backoff before the next start" if in_backoff else "there is no room now"


# ---- jobs that are not pending


def _describe_progress(view: View, job: JobView) -> str:
    assert job.status is not None
    if job.status.ended:
        return f"{job.status.state}: {job.status.reason}"
    parts = [f"{job.task_counts.ended} of {job.spec.count} tasks have ended"] if job.task_counts.ended else []
    for phase, (singular, plural) in _PHASE_VERBS.items():
        count = job.task_counts.as_dict()[phase.name.lower()]
        if count:
            does = f"1 task {singular}" if count == 1 else f"{count} tasks {plural}"
            parts.append(
                f"{singular if job.spec.count == 1 else does} {join_few(_nodes_of(view, job, phase))}"
            )
    parts += [*_describe_held(job), *_describe_brake(view, job)]
    head = _STATE_PREFIXES.get(job.status.state, "")
    return ": ".join(filter(None, (head, "; ".join(parts))))


def _describe_brake(view: View, job: JobView) -> list[str]:
    """Silent nodes of the job, if the brake keeps their tasks from being replaced."""
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
    """Quarantined tasks of the job, one of them with its reason."""
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
        for position in np.unique(column(attempt, "node")[at]).tolist():
            found[attempt.nodes[position]] = None
    return [view.nodes[node].spec.name if node in view.nodes else node for node in found]
