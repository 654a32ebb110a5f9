"""One job, held against every node: where it fits now, and each reason for which it does not elsewhere."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from rota.model.container import ROOTLESS, RUNTIME
from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import NODE_TASKS_MAX
from rota.model.node import Eligibility, Link
from rota.model.plan import Instant
from rota.model.sandbox import SANDBOX
from rota.model.shape import LEASES, Constraint, tolerates
from rota.model.view import JobView, View
from rota.scheduler.backfill import Promise
from rota.scheduler.board import Nodes
from rota.scheduler.place import Seating
from rota.scheduler.scores import NEVER
from rota.scheduler.shortages import lacking, scattered
from rota.scheduler.sight import Obstacle, Scene, Sight, without
from rota.scheduler.words import few, of_nodes

_ABSENT_WORDS = {NodeState.LEFT: ("has left", "have left")}


def look(view: View, seating: Seating, job: JobView, promised: Promise | None, now: Instant) -> Sight:
    """What fits is asked of the scheduler's own filters and rules; obstacles explain the rest."""
    scene = Scene(view, seating, job.spec)
    shape, room = job.spec.shape, view.room
    refused = {
        node: said for node, (until_ms, said) in view.refused_by(job.spec.errand).items() if until_ms > now.ms
    }
    held_back = [] if promised is None else promised.bars(job.spec, seating.board, now)
    barred = np.zeros(room.size, np.bool_)
    barred[[*(room.slot[node] for node in refused), *held_back]] = True
    terms = seating.terms(job)
    worth = seating.rows.of(shape) + terms.points() if terms else seating.rows.of(shape)
    fits = np.where((worth == NEVER) | barred, 0, seating.board.copies(shape, np.arange(room.size)))
    obstacles = [
        *_absent(scene),
        *_closed(scene),
        *_unlabelled(scene),
        *_tainted(scene),
        *lacking(scene),
        *scattered(scene),
        *_ruled_out(scene, job),
        *_filtered(scene),
        *_refused(scene, refused),
        *_crowded(scene),
    ]
    if promised is not None:
        obstacles += _promised(scene, promised, held_back, now)
    return Sight(scene.names, fits[scene.slots], obstacles, scene.slots, barred)


# ---- the node as such


def _absent(scene: Scene) -> Iterator[Obstacle]:
    """Not ready, or ready by its last word and not connected to this process."""
    states = [node.status.state if node.status is not None else None for node in scene.nodes]
    for state in (NodeState.SUSPECT, NodeState.LOST, NodeState.LEFT):
        word = _ABSENT_WORDS.get(state, (f"is {state}", f"are {state}"))
        yield from scene.named("not_ready", [one is state for one in states], word)
    away = [
        state is None or (state is NodeState.READY and node.link is not Link.UP)
        for node, state in zip(scene.nodes, states, strict=True)
    ]
    yield from scene.named("not_connected", away, ("is not connected", "are not connected"))
    short = [node.status is not None and node.status.shortage is not None for node in scene.nodes]
    yield from scene.named("short", short, ("takes nothing new", "take nothing new"))


def _closed(scene: Scene) -> Iterator[Obstacle]:
    def opened(at: int) -> str:
        return f"if it were opened (rota node open {scene.names[at]})"

    wishes = [Eligibility.OPEN if node.wish is None else node.wish.eligibility for node in scene.nodes]
    leaving = [node.status is not None and node.status.leaving for node in scene.nodes]
    yield from scene.named("closed", leaving, ("is about to leave", "are about to leave"))
    revoked = [one is Eligibility.REVOKED for one in wishes]
    yield from scene.named("closed", revoked, ("is revoked", "are revoked"))
    for wish in (Eligibility.CORDONED, Eligibility.DRAINING, Eligibility.DRAINED):
        on = [one is wish for one in wishes]
        for obstacle in scene.named("closed", on, (f"is {wish}", f"are {wish}")):
            yield obstacle._replace(cost=1.0, change=opened)


def _refused(scene: Scene, refused: dict[NodeId, str]) -> Iterator[Obstacle]:
    on = np.array([node.spec.id in refused for node in scene.nodes], np.bool_)
    at = np.nonzero(on)[0].tolist()
    if at:
        said = [f"{scene.names[one]} ({refused[scene.nodes[one].spec.id]})" for one in at]
        text = f"{of_nodes(len(at), len(scene.nodes), 'refused', 'refused')} it lately: {few(said)}"
        yield scene.obstacle("refused", on, text, lambda one: f"refused: {refused[scene.nodes[one].spec.id]}")


def _crowded(scene: Scene) -> Iterator[Obstacle]:
    on = scene.view.room.open[scene.slots] & (scene.board.free[0, scene.slots] <= 0)
    count = int(np.count_nonzero(on))
    if count:
        head = of_nodes(count, on.size, "holds", "hold")
        text = f"{head} {NODE_TASKS_MAX} tasks, the most a node takes"
        yield scene.obstacle("full", on, text, f"holds {NODE_TASKS_MAX} tasks")


# ---- what is said of the node


def _unlabelled(scene: Scene) -> Iterator[Obstacle]:
    labels = [scene.view.room.labels[slot] for slot in scene.slots.tolist()]
    for constraint in scene.spec.conditions:
        values = [one.get(constraint.label) for one in labels]
        known = {value: _passes(constraint, value) for value in dict.fromkeys(values)}
        on = np.array([not known[value] for value in values], np.bool_)
        count = int(np.count_nonzero(on))
        if not count:
            continue
        said = [value or f"no {constraint.label}" for value in values]
        have = Counter(one for one, value in zip(said, values, strict=True) if not known[value])
        they = few(sorted(have, key=lambda value: -have[value]))
        text = f"{of_nodes(count, len(labels), 'does', 'do')} not satisfy {constraint}: "
        text += f"{'it has' if count == 1 else 'they have'} {they}"
        obstacle = scene.obstacle("constraint", on, text, _has_instead(constraint, said))
        if constraint == RUNTIME and scene.spec.container is not None:
            text = f"{of_nodes(count, len(labels), 'has', 'have')} no container runtime{_rootless(labels)}"
            obstacle = scene.obstacle("container", on, text, "no container runtime")
        elif constraint == SANDBOX and scene.spec.sandbox is not None:
            text = f"{of_nodes(count, len(labels), 'has', 'have')} no bubblewrap that works"
            obstacle = scene.obstacle("sandbox", on, text, "no bubblewrap that works")
        elif constraint == LEASES and scene.spec.lease_ms:
            text = f"{of_nodes(count, len(labels), 'holds', 'hold')} no run leases"
            obstacle = scene.obstacle("leases", on, text, "holds no run leases")
        yield obstacle._replace(cost=1.0, change=without(_field(constraint)), lasting=True)


def _rootless(labels: Sequence[Mapping[str, str]]) -> str:
    """Why not, of nodes that look as if they had one."""
    name, value = ROOTLESS
    count = sum(one.get(name) == value for one in labels)
    return f"; {count} with a podman that only a root agent could use" if count else ""


def _field(constraint: Constraint) -> str:
    fields = {RUNTIME: "image", SANDBOX: "sandbox", LEASES: "run = one_at_a_time"}
    return fields.get(constraint, str(constraint))


def _passes(constraint: Constraint, value: str | None) -> bool:
    return constraint.holds({} if value is None else {constraint.label: value})


def _has_instead(constraint: Constraint, said: list[str]) -> Callable[[int], str]:
    return lambda at: f"{constraint}: has {said[at]}"


def _tainted(scene: Scene) -> Iterator[Obstacle]:
    tolerate = scene.spec.tolerated
    if not any(scene.view.room.taints):
        return
    taints = [scene.view.room.taints[slot] for slot in scene.slots.tolist()]
    bad = [tuple(one for one in said if not tolerates(tolerate, (one,))) for said in taints]
    on = np.array([bool(one) for one in bad], np.bool_)
    count = int(np.count_nonzero(on))
    if count:
        names = list(dict.fromkeys(taint for one in bad for taint in one))
        head = of_nodes(count, len(bad), "has", "have")
        text = f"{head} a taint that it does not tolerate: {few(names)}"
        obstacle = scene.obstacle("taint", on, text, lambda at: f"taint {', '.join(bad[at])}")
        change: Callable[[int], str] = lambda at: f"if it tolerated {', '.join(bad[at])}"  # noqa: E731  as its siblings
        yield obstacle._replace(cost=1.0, change=change, lasting=True)


def _filtered(scene: Scene) -> Iterator[Obstacle]:
    """Filters of one's own."""
    nodes = Nodes(scene.board, scene.spec.shape, scene.slots)
    for one in scene.seating.rows.plugins.filters:
        on = ~np.asarray(one.allows(nodes), np.bool_)
        count = int(np.count_nonzero(on))
        if count:
            text = f"{of_nodes(count, on.size, 'is', 'are')} ruled out by the filter {one.name}"
            yield scene.obstacle("filter", on, text, f"ruled out by the filter {one.name}")


# ---- neighbours and the queue


def _ruled_out(scene: Scene, job: JobView) -> Iterator[Obstacle]:
    """Rule by rule, in the order of Terms.parts."""
    spec, parts = scene.spec, scene.seating.terms(job).parts
    repelled = [term for _, term in scene.seating.company.repelled(spec)]
    rules: list[tuple[str, object]] = [
        *(("near", term) for term in spec.near),
        *(("apart", term) for term in spec.apart),
        *(("kept_away", term) for term in repelled),
        *(("spread", rule) for rule in spec.spread),
    ]
    for (kind, rule), part in zip(rules, parts, strict=True):
        on = (part.points() == NEVER)[part.counts.domain][scene.slots]
        count = int(np.count_nonzero(on))
        if count:
            text = of_nodes(count, on.size, *_RULE_WORDS[kind]).format(rule=rule)
            obstacle = scene.obstacle(kind, on, text, _RULE_LACKS[kind].format(rule=rule))
            if kind != "kept_away":
                obstacle = obstacle._replace(cost=1.0, change=without(f"{kind} {rule}"))
            yield obstacle


_RULE_WORDS = {
    "near": ("is not near {rule}", "are not near {rule}"),
    "apart": ("is not apart from {rule}", "are not apart from {rule}"),
    "kept_away": ("holds jobs that stay apart from {rule}", "hold jobs that stay apart from {rule}"),
    "spread": ("would break spread {rule}", "would break spread {rule}"),
}
_RULE_LACKS = {
    "near": "not near {rule}",
    "apart": "not apart from {rule}",
    "kept_away": "others there stay apart from {rule}",
    "spread": "would break spread {rule}",
}


def _promised(scene: Scene, promised: Promise, held_back: list[int], now: Instant) -> Iterator[Obstacle]:
    """Room that the head of the queue will need; who is gone by then may use it meanwhile."""
    on = np.isin(scene.slots, held_back)
    count = int(np.count_nonzero(on))
    if not count:
        return
    head = scene.view.jobs[promised.job].spec
    whom = f"job {head.id}, " if head.namespace == scene.spec.namespace else ""
    text = f"{of_nodes(count, on.size, 'is', 'are')} promised to {whom}the head of the queue"
    left_ms = promised.at_ms - now.wall_ms
    obstacle = scene.obstacle("promised", on, text, "promised to the head of the queue")
    if left_ms >= 1000:
        obstacle = obstacle._replace(cost=0.5, change=lambda _: f"with expect <= {left_ms // 1000}s")
    yield obstacle
