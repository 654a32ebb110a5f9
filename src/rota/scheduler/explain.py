"""A job -> every reason for which it waits, counted over nodes, and the smallest change that starts it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rota.model.brake import Brake, Level, Silence
from rota.model.columns import Array, column
from rota.model.ids import JobId, NodeId
from rota.model.job import Kind
from rota.model.lifecycle import JobState, NodeState, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.phase import Phase
from rota.model.plan import Instant
from rota.model.view import JobView, View
from rota.model.why import Miss, Reason, Why
from rota.scheduler.ahead import Ahead, Known, count_before
from rota.scheduler.foresee import starts_at_ms
from rota.scheduler.growing import growing, how_to_get_another, on_the_way, would_help
from rota.scheduler.obstacles import look
from rota.scheduler.order import is_impatient
from rota.scheduler.others_first import waiting_for
from rota.scheduler.own_reasons import Own, own_reasons
from rota.scheduler.pinned_words import missing_on
from rota.scheduler.place import Seating
from rota.scheduler.preempt import find_victims
from rota.scheduler.rows import Plugins
from rota.scheduler.sight import NO_HELP, Obstacle, Sight
from rota.scheduler.words import few, of_nodes, other_jobs

_MISSES = 3  # nodes that are named with what they lack
_DOES = {
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
_HEADS = {JobState.CANCELING: "is being canceled", JobState.PAUSED: "it is paused"}


def why(
    view: View,
    job_id: JobId,
    now: Instant,
    plugins: Plugins | None = None,
    *,
    backfill: bool = True,
    known: Callable[[], Known | None] = lambda: None,
) -> Why:
    job = view.jobs[job_id]
    if job.status is None:
        return Why(waits=True, sentence="waits: it was submitted just now")
    if job.status.state is JobState.PAUSED and job.tally.pending:
        return Why(waits=True, sentence="waits: " + _doing(view, job), changes=(f"rota resume {job_id}",))
    if job.status.state is JobState.WAITING:
        return waiting_for(view, job)
    if job.spec.kind is Kind.SYSTEM and job.status.state is JobState.ACTIVE:
        return missing_on(view, job, _doing(view, job), now)
    if job.status.state is not JobState.ACTIVE or job.tally.pending == 0:
        return Why(waits=job.tally.unresolved > 0, sentence=_doing(view, job))
    if view.is_short:
        return Why(
            waits=True,
            sentence="waits: the server's disk is full",
            changes=("make room on the server's disk",),
        )
    told = in_words(view, job, study(view, job, now, plugins, backfill=backfill, known=known()), now)
    return told.with_words(*_held(job), *_braked(view, job))


class Study(NamedTuple):
    """All there is to know of a job that waits, before it is put in words."""

    seating: Seating
    sight: Sight
    own: Own
    scarce: list[Reason]  # nodes fit, but not enough of them at once
    head: JobId | None  # who was promised room that it would use


def study(
    view: View,
    job: JobView,
    now: Instant,
    plugins: Plugins | None = None,
    *,
    backfill: bool = True,
    known: Known | None = None,
) -> Study:
    """Those before it take their room first, on a board of our own; then it is looked at every node."""
    seating = Seating(view, plugins)
    ahead = Ahead(view, seating, now, backfill=backfill, known=known)
    ahead.serve(job)
    promised = ahead.promise
    sight = look(view, seating, job, promised, now)
    own = own_reasons(view, job, ahead.shares, now)
    scarce = _scarce(seating, job, sight, now)
    barred = any(one.reason.kind == "promised" for one in sight.obstacles)
    return Study(seating, sight, own, scarce, promised.job if promised is not None and barred else None)


def in_words(view: View, job: JobView, known: Study, now: Instant) -> Why:
    sight, own = known.sight, known.own
    before = count_before(view, job.spec)
    if not sight.names:
        nodes = [Reason("nodes", 0, 0, _no_node(view, job))]
    elif not sight.fits.any():
        nodes = sorted((one.reason for one in sight.obstacles), key=lambda reason: -reason.count)
        nodes += [] if own.stuck else _making_room(view, known.seating, job, sight)
        nodes += growing(view, job.spec.home)
    else:
        nodes = known.scarce
    queue = [Reason("queue", before, before + 1, f"{other_jobs(before)} before it in the queue")]
    queue = queue if before else []
    reasons = (*own.reasons, *nodes, *queue) if own.stuck else (*nodes, *own.reasons, *queue)
    known_when = not is_impatient(job) and bool(nodes) and not own.stuck and bool(sight.names)
    return Why(
        True,
        _sentence(job, sight, reasons),
        reasons,
        _changes(view, job, known),
        before + 1,
        () if own.stuck or sight.fits.any() else _misses(sight),
        starts_at_ms(view, known.seating, job, known.head, now) if known_when else None,
    )


def _no_node(view: View, job: JobView) -> str:
    home = job.spec.home
    whose = "" if len(view.clusters) <= 1 else f" of its cluster, {home},"
    words = on_the_way(view, home)
    if not words and how_to_get_another(view, job.spec) is None:
        words = [f"cluster {home} grows by itself"]
    return "; ".join([f"no node{whose} has joined", *words])


def _scarce(seating: Seating, job: JobView, sight: Sight, now: Instant) -> list[Reason]:
    """Of a gang all tasks start at once: how many have room?"""
    wanted = job.tally.pending
    if not job.spec.gang or not sight.fits.any() or len(job.ready(now.ms, wanted)) < wanted:
        return []
    seated = seating.seat(job, wanted, sight.barred)
    if len(seated.seats) == wanted:
        seating.give_back(job, seated.seats)
        return []
    most = min(int(sight.fits.sum()), wanted)
    there = f"there is room for {most}" if most < wanted else "its rules or GPUs leave too little room"
    return [Reason("gang", most, wanted, f"its {wanted} tasks start at once, and {there}")]


def _making_room(view: View, seating: Seating, job: JobView, sight: Sight) -> list[Reason]:
    """Others are giving way to it, or will have to with the next round."""
    eviction = None if job.spec.gang else find_victims(view, seating, job, sight.barred, set())
    if eviction is None:
        return []
    name = view.nodes[view.room.ids[eviction.slot]].spec.name
    return [Reason("giving_way", 1, len(sight.names), f"work of lower priority gives way to it on {name}")]


def _sentence(job: JobView, sight: Sight, reasons: tuple[Reason, ...]) -> str:
    pending, count = job.tally.pending, job.spec.count
    head = "waits" if count == 1 else f"{pending} of {count} tasks {'waits' if pending == 1 else 'wait'}"
    if not reasons or reasons[0].kind == "queue":
        fitting = int(np.count_nonzero(sight.fits))
        return f"{head}: {of_nodes(fitting, len(sight.names), 'fits', 'fit')}, its turn is next"
    told = 1 if reasons[0].count == reasons[0].of else 2
    return f"{head}: {'; '.join(reason.text for reason in reasons[:told])}"


# ---- what would help


def _changes(view: View, job: JobView, known: Study) -> tuple[str, ...]:
    """What alone would start it, were it first in the queue; else the cheapest two together on one node."""
    sight, own = known.sight, known.own
    if not sight.names:
        return _with_another(view, job, "join a node")
    if own.stuck:
        return own.changes if sight.fits.any() and not known.scarce else ()
    if known.scarce:
        return ("would start without gang, as far as there is room",)
    if sight.fits.any():
        return ()
    if job.spec.gang and job.tally.pending > 1:
        room = f"would start on new nodes with room for all {job.tally.pending} tasks"
        return _with_another(view, job, room)
    return _on_one_node(sight) or _with_another(view, job, "would start on a new node with room for it")


def _with_another(view: View, job: JobView, what: str) -> tuple[str, ...]:
    """Nothing, where it comes by itself or would not help."""
    command = how_to_get_another(view, job.spec) if would_help(view, job.spec) else None
    return () if command is None else (f"{what} ({command})",)


def _on_one_node(sight: Sight) -> tuple[str, ...]:
    """Nothing, where no two changes are enough."""
    stands, cost = _standing(sight)
    alone = (stands == 1) & np.isfinite(cost)
    if alone.any():
        groups = ((one, np.nonzero(alone & one.nodes)[0]) for one in sight.obstacles)
        return tuple(_alone(one, at, cost[at], sight.names) for one, at in groups if at.size)
    together = np.where(stands == 2, cost, NO_HELP)
    best = int(together.argmin())
    if not np.isfinite(together[best]):
        return ()
    both = " and ".join(one.change(best) for one in sight.obstacles if one.nodes[best])
    return (f"would start on {sight.names[best]} {both}",)


def _standing(sight: Sight) -> tuple[Array, Array]:
    """Per node how many obstacles there are, and what removing them all would cost."""
    stands = np.zeros(len(sight.names), np.int64)
    cost = np.zeros(len(sight.names))
    for obstacle in sight.obstacles:
        stands += obstacle.nodes
        cost += np.where(obstacle.nodes, obstacle.cost, 0.0)
    return stands, cost


def _alone(obstacle: Obstacle, nodes: Array, cost: Array, names: list[str]) -> str:
    best: list[int] = nodes[cost == cost.min()].tolist()
    change = obstacle.change(best[0])
    alike = len(best) > 1 and obstacle.change(best[-1]) == change
    return f"would start on {f'{len(best)} nodes' if alike else names[best[0]]} {change}"


def _misses(sight: Sight) -> tuple[Miss, ...]:
    """The nodes that lack least."""
    stands, cost = _standing(sight)
    beyond = sum((one.nodes & ~np.isfinite(one.cost) for one in sight.obstacles), np.zeros_like(stands))
    ranked = np.lexsort((np.arange(stands.size), stands, np.where(np.isfinite(cost), cost, 0.0), beyond))
    return tuple(
        Miss(sight.names[at], tuple(one.lacks(at) for one in sight.obstacles if one.nodes[at]))
        for at in ranked[:_MISSES].tolist()
    )


# ---- a job that does not wait


def _doing(view: View, job: JobView) -> str:
    assert job.status is not None
    if job.status.ended:
        return f"{job.status.state}: {job.status.reason}"
    parts = [f"{job.tally.ended} of {job.spec.count} tasks have ended"] if job.tally.ended else []
    for phase, (one, many) in _DOES.items():
        count = job.tally.as_dict()[phase.name.lower()]
        if count:
            does = f"1 task {one}" if count == 1 else f"{count} tasks {many}"
            parts.append(f"{one if job.spec.count == 1 else does} {few(_nodes_of(view, job, phase))}")
    parts += [*_held(job), *_braked(view, job)]
    head = _HEADS.get(job.status.state, "")
    return ": ".join(filter(None, (head, "; ".join(parts))))


def _braked(view: View, job: JobView) -> list[str]:
    """Where its tasks are silent, and why they are not started elsewhere."""
    nodes = (view.nodes[node] for node in job.on if node in view.nodes)
    states = {node.spec.name: node.status.state for node in nodes if node.status is not None}
    silent = [name for name, state in states.items() if state is NodeState.SUSPECT]
    brake = Silence(view).worst(view) if silent else Brake()
    if brake.level is Level.OFF:
        return []
    return [f"{few(silent)} {'is' if len(silent) == 1 else 'are'} silent, and the brake is {brake.sentence}"]


def _held(job: JobView) -> list[str]:
    """What may be taking nodes down, one of them with its reason."""
    if not job.tally.held:
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
