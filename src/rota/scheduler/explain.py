"""A job -> every reason for which it waits, counted over nodes, and the smallest change that starts it."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rota.model.amounts import CPU, DISK, MEMORY, show_amount
from rota.model.columns import Array, column
from rota.model.ids import JobId, NodeId
from rota.model.job import Constraint, Shape
from rota.model.lifecycle import JobState, NodeState
from rota.model.limits import BLOCK_TASKS, NODE_TASKS_MAX
from rota.model.node import Eligibility, Link
from rota.model.phase import Phase
from rota.model.plan import Instant
from rota.model.view import JobView, NodeView, View
from rota.model.why import Reason, Why
from rota.scheduler.filters import Masks, satisfies
from rota.scheduler.place import Space

_ESSENTIAL = (CPU, MEMORY, DISK)  # every task needs some: to ask for none of it is no advice
_NAMED = 4  # nodes or values named in a sentence
_NEVER = np.inf
_JOIN = "rota node token"
_DOES = {
    Phase.OFFERED: ("is offered to", "are offered to"),
    Phase.QUEUED: ("waits for room on", "wait for room on"),
    Phase.ACCEPTED: ("is about to start on", "are about to start on"),
    Phase.RUNNING: ("runs on", "run on"),
    Phase.STOPPING: ("is being stopped on", "are being stopped on"),
}


def why(view: View, job_id: JobId, now: Instant) -> Why:
    job = view.jobs[job_id]
    if job.status is None:
        return Why(waits=True, sentence="waits: it was submitted just now")
    if job.status.state is not JobState.ACTIVE or job.tally.pending == 0:
        return Why(waits=False, sentence=_doing(view, job))
    ahead = sum(bisect_left(line, job.spec.order) for _, line in view.waiting())
    return _waiting(job, look(view, job.spec.shape, now), ahead, now)


class Obstacle(NamedTuple):
    """One reason, where it holds, and what would remove it there."""

    reason: Reason
    nodes: Array  # one truth value per node
    cost: Array | float = _NEVER  # how much would have to give way, from 0 on; infinite where nothing helps
    change: Callable[[int], str] = lambda _: ""


class Sight(NamedTuple):
    """All nodes, held against one shape; columns are in the order of `names`."""

    names: list[str]
    fits: Array  # how many more tasks of the shape each can take now
    obstacles: list[Obstacle]


def look(view: View, shape: Shape, now: Instant) -> Sight:
    """What fits is asked of the scheduler's own filter and account of room; obstacles explain the rest."""
    room, space = view.room, Space(view.room)
    nodes = list(view.nodes.values())
    slots = np.array([room.slot[node] for node in view.nodes], np.intp)
    refused = {node: said for node, (until_ms, said) in view.refused_by(shape).items() if until_ms > now.ms}
    allowed = room.open[: room.size] & Masks().of(room, shape.where)
    allowed[[room.slot[node] for node in refused]] = False
    called = np.array([node.status is not None for node in nodes], np.bool_)
    obstacles = [*_absent(nodes), *_closed(nodes), *_unlabelled(view, shape.where, slots)]
    for resource, asked in shape.needs:
        if asked > 0:
            obstacles += _lacking(space, slots, called, resource, asked)
    obstacles += [*_refused(nodes, refused), *_crowded(space.held[slots])]
    return Sight([node.spec.name for node in nodes], space.fits(shape, allowed)[slots], obstacles)


def _waiting(job: JobView, sight: Sight, ahead: int, now: Instant) -> Why:
    pauses = _pauses(job, now)
    full = _at_its_limit(job)
    stuck = bool(full) or not job.ready(now.ms, 1)  # whatever the nodes offer
    if not sight.names:
        nodes = [Reason("nodes", 0, 0, "no node has joined")]
        changes: tuple[str, ...] = (f"join a node ({_JOIN})",)
    elif not sight.fits.any():
        nodes = sorted((one.reason for one in sight.obstacles), key=lambda reason: -reason.count)
        changes = () if stuck else _changes(sight)
    else:
        nodes = []
        changes = (f"would start with parallel > {job.spec.parallel}",) if full else ()
    queue = [Reason("queue", ahead, ahead + 1, f"{_jobs(ahead)} before it in the queue")] if ahead else []
    own = [*full, *pauses]
    reasons = (*own, *nodes, *queue) if stuck else (*nodes, *own, *queue)
    return Why(True, _sentence(job, sight, reasons), reasons, changes, ahead + 1)


def _sentence(job: JobView, sight: Sight, reasons: tuple[Reason, ...]) -> str:
    pending, count = job.tally.pending, job.spec.count
    head = "waits" if count == 1 else f"{pending} of {count} tasks {'waits' if pending == 1 else 'wait'}"
    if not reasons or reasons[0].kind == "queue":
        fitting = int(np.count_nonzero(sight.fits))
        return f"{head}: {_of(fitting, len(sight.names), 'fits', 'fit')}, its turn is next"
    told = 1 if reasons[0].count == reasons[0].of else 2
    return f"{head}: {'; '.join(reason.text for reason in reasons[:told])}"


def _changes(sight: Sight) -> tuple[str, ...]:
    """What alone would start it, were it first in the queue; else the cheapest two together on one node."""
    stands = np.zeros(len(sight.names), np.int64)
    cost = np.zeros(len(sight.names))
    for obstacle in sight.obstacles:
        stands += obstacle.nodes
        cost += np.where(obstacle.nodes, obstacle.cost, 0.0)
    alone = (stands == 1) & np.isfinite(cost)
    if alone.any():
        groups = ((one, np.nonzero(alone & one.nodes)[0]) for one in sight.obstacles)
        return tuple(_alone(one, at, cost[at], sight.names) for one, at in groups if at.size)
    together = np.where(stands == 2, cost, _NEVER)
    best = int(together.argmin())
    if not np.isfinite(together[best]):
        return (f"would start on a new node with room for it ({_JOIN})",)
    both = " and ".join(one.change(best) for one in sight.obstacles if one.nodes[best])
    return (f"would start on {sight.names[best]} {both}",)


def _alone(obstacle: Obstacle, nodes: Array, cost: Array, names: list[str]) -> str:
    best: list[int] = nodes[cost == cost.min()].tolist()
    change = obstacle.change(best[0])
    alike = len(best) > 1 and obstacle.change(best[-1]) == change
    return f"would start on {f'{len(best)} nodes' if alike else names[best[0]]} {change}"


# ---- the job's own reasons


def _at_its_limit(job: JobView) -> list[Reason]:
    live, parallel = job.tally.live, job.spec.parallel
    if parallel is None or live < parallel:
        return []
    text = f"{live} of its tasks {'is' if live == 1 else 'are'} under way, and parallel allows {parallel}"
    return [Reason("parallel", live, parallel, text)]


def _pauses(job: JobView, now: Instant) -> list[Reason]:
    paused: list[tuple[int, int]] = []
    for block, task in job.tasks.items():
        not_before = column(task, "not_before")
        phase = np.frombuffer(job.phases[block], np.uint8)
        at = np.nonzero((not_before > now.ms) & (phase == Phase.PENDING))[0]
        paused += zip(not_before[at].tolist(), (at + block * BLOCK_TASKS).tolist(), strict=True)
    if not paused:
        return []
    until_ms, index = min(paused)
    text = f"task {index} is tried again in {-((now.ms - until_ms) // 1000)} s"
    if len(paused) > 1:
        text = f"{len(paused)} tasks pause after a failure: {text}"
    return [Reason("pause", len(paused), job.tally.pending, text)]


# ---- obstacles, kind by kind


def _absent(nodes: list[NodeView]) -> Iterator[Obstacle]:
    """Not ready, or ready by its last word and not connected to this process."""
    states = [node.status.state if node.status is not None else None for node in nodes]
    for state in (NodeState.SUSPECT, NodeState.LOST, NodeState.LEFT):
        word = {NodeState.LEFT: ("has left", "have left")}.get(state, (f"is {state}", f"are {state}"))
        yield from _named("not_ready", nodes, [one is state for one in states], word)
    away = [
        state is None or (state is NodeState.READY and node.link is not Link.UP)
        for node, state in zip(nodes, states, strict=True)
    ]
    yield from _named("not_connected", nodes, away, ("is not connected", "are not connected"))


def _closed(nodes: list[NodeView]) -> Iterator[Obstacle]:
    def opened(at: int) -> str:
        return f"if it were opened (rota node open {nodes[at].spec.name})"

    wishes = [Eligibility.OPEN if node.wish is None else node.wish.eligibility for node in nodes]
    for wish in (Eligibility.CORDONED, Eligibility.DRAINING, Eligibility.DRAINED):
        on = [one is wish for one in wishes]
        for obstacle in _named("closed", nodes, on, (f"is {wish}", f"are {wish}")):
            yield obstacle._replace(cost=1.0, change=opened)


def _named(kind: str, nodes: list[NodeView], on: list[bool], verb: tuple[str, str]) -> Iterator[Obstacle]:
    names = [node.spec.name for node, here in zip(nodes, on, strict=True) if here]
    if names:
        text = f"{_of(len(names), len(nodes), *verb)}: {_few(names)}"
        yield Obstacle(Reason(kind, len(names), len(nodes), text), np.array(on, np.bool_))


def _unlabelled(view: View, where: tuple[Constraint, ...], slots: Array) -> Iterator[Obstacle]:
    labels = [view.room.labels[slot] for slot in slots.tolist()]
    for constraint in where:
        values = [one.get(constraint.label) for one in labels]
        known = {value: _passes(constraint, value) for value in dict.fromkeys(values)}
        on = np.array([not known[value] for value in values], np.bool_)
        count = int(np.count_nonzero(on))
        if count:
            have = Counter(value or f"no {constraint.label}" for value in values if not known[value])
            they = _few(sorted(have, key=lambda value: -have[value]))
            text = f"{_of(count, len(labels), 'does', 'do')} not satisfy {constraint}: "
            text += f"{'it has' if count == 1 else 'they have'} {they}"
            reason = Reason("constraint", count, len(labels), text)
            yield Obstacle(reason, on, 1.0, _without(str(constraint)))


def _passes(constraint: Constraint, value: str | None) -> bool:
    return satisfies(constraint, {} if value is None else {constraint.label: value})


def _lacking(space: Space, slots: Array, called: Array, resource: str, asked: int) -> Iterator[Obstacle]:
    """Nodes that have none of it, for ever too little, or too little now; what never called is not judged."""
    row = space.room.rows.get(resource)
    capacity = np.zeros(slots.size, np.int64) if row is None else space.room.capacity[row, slots]
    free = np.zeros(slots.size, np.int64) if row is None else np.maximum(0, space.free[row, slots])
    cost = (asked - free) / asked
    if resource in _ESSENTIAL:
        cost = np.where(free == 0, _NEVER, cost)

    def change(at: int) -> str:
        left = int(free[at])
        return f"with {resource} <= {_at_most(resource, left)}" if left else f"without {resource}"

    none = called & (capacity == 0)
    small = called & (capacity > 0) & (capacity < asked)
    short = called & (capacity >= asked) & (free < asked)
    for on, amounts, words in ((none, capacity, "no"), (small, capacity, "in all"), (short, free, "free")):
        if on.any():
            text = _lack(resource, asked, on, int(amounts[on].max()), words)
            yield Obstacle(Reason(resource, int(np.count_nonzero(on)), slots.size, text), on, cost, change)


def _lack(resource: str, asked: int, on: Array, largest: int, words: str) -> str:
    count = int(np.count_nonzero(on))
    who = _of(count, on.size, "has", "have")
    if words == "no":
        return f"no node has {resource}" if count == on.size else f"{who} no {resource}"
    there, wanted = _at_most(resource, largest), _plain(resource, asked)
    if there == wanted:  # they differ by less than is shown
        there, wanted = f"{largest:,}", f"{asked:,}"
    if words == "free":
        return f"{who} too little free {resource}: largest free {there}, asked {wanted}"
    return f"{who} too little {resource} in all: largest {there}, asked {wanted}"


def _refused(nodes: list[NodeView], refused: dict[NodeId, str]) -> Iterator[Obstacle]:
    on = np.array([node.spec.id in refused for node in nodes], np.bool_)
    said = [f"{nodes[at].spec.name} ({refused[nodes[at].spec.id]})" for at in np.nonzero(on)[0].tolist()]
    if said:
        text = f"{_of(len(said), len(nodes), 'refused', 'refused')} it lately: {_few(said)}"
        yield Obstacle(Reason("refused", len(said), len(nodes), text), on)


def _crowded(held: Array) -> Iterator[Obstacle]:
    on = held >= NODE_TASKS_MAX
    count = int(np.count_nonzero(on))
    if count:
        text = f"{_of(count, held.size, 'holds', 'hold')} {NODE_TASKS_MAX} tasks, the most a node takes"
        yield Obstacle(Reason("full", count, held.size, text), on)


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
            parts.append(f"{one if job.spec.count == 1 else does} {_few(_nodes_of(view, job, phase))}")
    head = "is being canceled" if job.status.state is JobState.CANCELING else ""
    return ": ".join(filter(None, (head, "; ".join(parts))))


def _nodes_of(view: View, job: JobView, phase: Phase) -> list[str]:
    found: dict[NodeId, None] = {}
    for block, attempt in job.attempts.items():
        at = np.frombuffer(job.phases[block], np.uint8) == phase
        for place in np.unique(column(attempt, "node")[at]).tolist():
            found[attempt.nodes[place]] = None
    return [view.nodes[node].spec.name if node in view.nodes else node for node in found]


# ---- words


def _of(count: int, total: int, one: str, many: str) -> str:
    return f"{count} of {total} nodes {one if count == 1 else many}"


def _few(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _jobs(count: int) -> str:
    return "1 other job is" if count == 1 else f"{count} other jobs are"


def _without(what: str) -> Callable[[int], str]:
    return lambda _: f"without {what}"


def _plain(resource: str, amount: int) -> str:
    return show_amount(resource, amount).removesuffix(f" {resource}")


def _at_most(resource: str, amount: int) -> str:
    """Rounded down, so that who asks for what is shown gets it."""
    if resource not in (MEMORY, DISK) or amount < 1024:
        return _plain(resource, amount)
    unit = 1024 ** min(4, (amount.bit_length() - 1) // 10)
    tenths = amount * 10 // unit if amount < 100 * unit else amount // unit * 10
    return _plain(resource, -(-tenths * unit // 10))
