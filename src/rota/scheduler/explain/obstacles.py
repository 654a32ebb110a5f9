"""Feasibility of one job on every node: where it fits now, and every reason why it does not elsewhere."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from rota.model.container import ROOTLESS, RUNTIME, SANDBOX
from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import NODE_TASKS_MAX
from rota.model.node import Connection, Eligibility
from rota.model.plan import Instant
from rota.model.shape import LEASES, Constraint, tolerates
from rota.model.view import JobView, View
from rota.scheduler.explain.feasibility import FeasibilityInput, FeasibilityReport, Obstacle, without
from rota.scheduler.explain.phrases import count_of_nodes, join_few
from rota.scheduler.explain.shortages import fragmented_gpus, resource_shortages
from rota.scheduler.placement.board import NodeSlice
from rota.scheduler.placement.place import Placer
from rota.scheduler.placement.scores import EXCLUDED
from rota.scheduler.policy.backfill import BackfillReservation

_ABSENT_VERBS = {NodeState.LEFT: ("has left", "have left")}


def check_feasibility(
    view: View, placer: Placer, job: JobView, reservation: BackfillReservation | None, now: Instant
) -> FeasibilityReport:
    """Where the job fits is decided by the scheduler's own filters and rules; obstacles only explain."""
    inputs = FeasibilityInput(view, placer, job.spec)
    shape, table = job.spec.shape, view.node_table
    refused = {
        node: reason
        for node, (until_ms, reason) in view.refused_by(job.spec.refusal_key).items()
        if until_ms > now.ms
    }
    held_back = [] if reservation is None else reservation.barred_slots(job.spec, placer.board, now)
    barred = np.zeros(table.size, np.bool_)
    barred[[*(table.slot[node] for node in refused), *held_back]] = True
    rules = placer.placement_rules(job)
    worth = placer.rows.points(shape) + rules.points() if rules else placer.rows.points(shape)
    fits = np.where((worth == EXCLUDED) | barred, 0, placer.board.fitting_tasks(shape, np.arange(table.size)))
    obstacles = [
        *_absent(inputs),
        *_closed(inputs),
        *_unlabelled(inputs),
        *_tainted(inputs),
        *resource_shortages(inputs),
        *fragmented_gpus(inputs),
        *_ruled_out(inputs, job),
        *_filtered(inputs),
        *_refused(inputs, refused),
        *_full(inputs),
    ]
    if reservation is not None:
        obstacles += _reserved(inputs, reservation, held_back, now)
    return FeasibilityReport(inputs.names, fits[inputs.slots], obstacles, inputs.slots, barred)


# ---- state of the node


def _absent(inputs: FeasibilityInput) -> Iterator[Obstacle]:
    """Nodes that are not ready, or ready by their last report but not connected to this process."""
    states = [node.status.state if node.status is not None else None for node in inputs.nodes]
    for state in (NodeState.SUSPECT, NodeState.LOST, NodeState.LEFT):
        verbs = _ABSENT_VERBS.get(state, (f"is {state}", f"are {state}"))
        yield from inputs.named_obstacles("not_ready", [actual is state for actual in states], verbs)
    disconnected = [
        state is None or (state is NodeState.READY and node.connection is not Connection.UP)
        for node, state in zip(inputs.nodes, states, strict=True)
    ]
    yield from inputs.named_obstacles(
        "not_connected", disconnected, ("is not connected", "are not connected")
    )
    short = [node.status is not None and node.status.shortage is not None for node in inputs.nodes]
    yield from inputs.named_obstacles("short", short, ("takes nothing new", "take nothing new"))


def _closed(inputs: FeasibilityInput) -> Iterator[Obstacle]:
    def opened(at: int) -> str:
        return f"if it were opened (rota node open {inputs.names[at]})"

    eligibilities = [
        Eligibility.OPEN if node.intent is None else node.intent.eligibility for node in inputs.nodes
    ]
    leaving = [node.status is not None and node.status.leaving for node in inputs.nodes]
    yield from inputs.named_obstacles("closed", leaving, ("is about to leave", "are about to leave"))
    revoked = [actual is Eligibility.REVOKED for actual in eligibilities]
    yield from inputs.named_obstacles("closed", revoked, ("is revoked", "are revoked"))
    for eligibility in (Eligibility.CORDONED, Eligibility.DRAINING, Eligibility.DRAINED):
        on = [actual is eligibility for actual in eligibilities]
        for obstacle in inputs.named_obstacles("closed", on, (f"is {eligibility}", f"are {eligibility}")):
            yield obstacle._replace(cost=1.0, change=opened)


def _refused(inputs: FeasibilityInput, refused: dict[NodeId, str]) -> Iterator[Obstacle]:
    on = np.array([node.spec.id in refused for node in inputs.nodes], np.bool_)
    at = np.nonzero(on)[0].tolist()
    if at:
        named = [f"{inputs.names[node]} ({refused[inputs.nodes[node].spec.id]})" for node in at]
        text = (
            f"{count_of_nodes(len(at), len(inputs.nodes), 'refused', 'refused')} it lately: {join_few(named)}"
        )
        yield inputs.make_obstacle(
            "refused", on, text, lambda node: f"refused: {refused[inputs.nodes[node].spec.id]}"
        )


def _full(inputs: FeasibilityInput) -> Iterator[Obstacle]:
    on = inputs.view.node_table.open[inputs.slots] & (inputs.board.free[0, inputs.slots] <= 0)
    count = int(np.count_nonzero(on))
    if count:
        head = count_of_nodes(count, on.size, "holds", "hold")
        text = f"{head} {NODE_TASKS_MAX} tasks, the most a node takes"
        yield inputs.make_obstacle("full", on, text, f"holds {NODE_TASKS_MAX} tasks")


# ---- labels and taints


def _unlabelled(inputs: FeasibilityInput) -> Iterator[Obstacle]:
    labels = [inputs.view.node_table.labels[slot] for slot in inputs.slots.tolist()]
    for constraint in inputs.spec.conditions:
        values = [node_labels.get(constraint.label) for node_labels in labels]
        known = {value: _passes(constraint, value) for value in dict.fromkeys(values)}
        on = np.array([not known[value] for value in values], np.bool_)
        count = int(np.count_nonzero(on))
        if not count:
            continue
        shown = [value or f"no {constraint.label}" for value in values]
        have = Counter(text for text, value in zip(shown, values, strict=True) if not known[value])
        values_text = join_few(sorted(have, key=lambda value: -have[value]))
        text = f"{count_of_nodes(count, len(labels), 'does', 'do')} not satisfy {constraint}: "
        text += f"{'it has' if count == 1 else 'they have'} {values_text}"
        obstacle = inputs.make_obstacle("constraint", on, text, _has_instead(constraint, shown))
        if constraint == RUNTIME and inputs.spec.container is not None:
            text = (
                f"{count_of_nodes(count, len(labels), 'has', 'have')} no container runtime{_rootless(labels)}"
            )
            obstacle = inputs.make_obstacle("container", on, text, "no container runtime")
        elif constraint == SANDBOX and inputs.spec.sandbox is not None:
            text = f"{count_of_nodes(count, len(labels), 'has', 'have')} no bubblewrap that works"
            obstacle = inputs.make_obstacle("sandbox", on, text, "no bubblewrap that works")
        elif constraint == LEASES and inputs.spec.lease_ms:
            text = f"{count_of_nodes(count, len(labels), 'holds', 'hold')} no run leases"
            obstacle = inputs.make_obstacle("leases", on, text, "holds no run leases")
        yield obstacle._replace(cost=1.0, change=without(_field(constraint)), lasting=True)


def _rootless(labels: Sequence[Mapping[str, str]]) -> str:
    """Addition for nodes that have a container runtime that the agent cannot use."""
    name, value = ROOTLESS
    count = sum(node_labels.get(name) == value for node_labels in labels)
    return f"; {count} with a podman that only a root agent could use" if count else ""


def _field(constraint: Constraint) -> str:
    fields = {RUNTIME: "image", SANDBOX: "sandbox", LEASES: "run = one_at_a_time"}
    return fields.get(constraint, str(constraint))


def _passes(constraint: Constraint, value: str | None) -> bool:
    return constraint.holds({} if value is None else {constraint.label: value})


def _has_instead(constraint: Constraint, shown: list[str]) -> Callable[[int], str]:
    return lambda at: f"{constraint}: has {shown[at]}"


def _tainted(inputs: FeasibilityInput) -> Iterator[Obstacle]:
    tolerate = inputs.spec.tolerated
    if not any(inputs.view.node_table.taints):
        return
    taints = [inputs.view.node_table.taints[slot] for slot in inputs.slots.tolist()]
    bad = [tuple(taint for taint in of_node if not tolerates(tolerate, (taint,))) for of_node in taints]
    on = np.array([bool(untolerated) for untolerated in bad], np.bool_)
    count = int(np.count_nonzero(on))
    if count:
        names = list(dict.fromkeys(taint for untolerated in bad for taint in untolerated))
        head = count_of_nodes(count, len(bad), "has", "have")
        text = f"{head} a taint that it does not tolerate: {join_few(names)}"
        obstacle = inputs.make_obstacle("taint", on, text, lambda at: f"taint {', '.join(bad[at])}")
        change: Callable[[int], str] = lambda at: f"if it tolerated {', '.join(bad[at])}"  # noqa: E731  as its siblings
        yield obstacle._replace(cost=1.0, change=change, lasting=True)


def _filtered(inputs: FeasibilityInput) -> Iterator[Obstacle]:
    """Nodes that a filter plugin excludes."""
    nodes = NodeSlice(inputs.board, inputs.spec.shape, inputs.slots)
    for plugin in inputs.placer.rows.plugins.filters:
        on = ~np.asarray(plugin.allows(nodes), np.bool_)
        count = int(np.count_nonzero(on))
        if count:
            text = f"{count_of_nodes(count, on.size, 'is', 'are')} ruled out by the filter {plugin.name}"
            yield inputs.make_obstacle("filter", on, text, f"ruled out by the filter {plugin.name}")


# ---- placement rules and the queue


def _ruled_out(inputs: FeasibilityInput, job: JobView) -> Iterator[Obstacle]:
    """Nodes that each placement rule excludes, in the order of `PlacementRules.rules`."""
    spec, parts = inputs.spec, inputs.placer.placement_rules(job).rules
    repelled = [term for _, term in inputs.placer.affinity.repelled(spec)]
    rules: list[tuple[str, object]] = [
        *(("near", term) for term in spec.near),
        *(("apart", term) for term in spec.apart),
        *(("kept_away", term) for term in repelled),
        *(("spread", rule) for rule in spec.spread),
    ]
    for (kind, rule), part in zip(rules, parts, strict=True):
        on = (part.points() == EXCLUDED)[part.counts.domain][inputs.slots]
        count = int(np.count_nonzero(on))
        if count:
            text = count_of_nodes(count, on.size, *_RULE_VERBS[kind]).format(rule=rule)
            obstacle = inputs.make_obstacle(kind, on, text, _RULE_LACKS[kind].format(rule=rule))
            if kind != "kept_away":
                obstacle = obstacle._replace(cost=1.0, change=without(f"{kind} {rule}"))
            yield obstacle


_RULE_VERBS = {
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


def _reserved(
    inputs: FeasibilityInput, reservation: BackfillReservation, held_back: list[int], now: Instant
) -> Iterator[Obstacle]:
    """Nodes reserved for the head of line; a job that ends before it starts may use them."""
    on = np.isin(inputs.slots, held_back)
    count = int(np.count_nonzero(on))
    if not count:
        return
    head = inputs.view.jobs[reservation.job].spec
    whom = f"job {head.id}, " if head.namespace == inputs.spec.namespace else ""
    text = f"{count_of_nodes(count, on.size, 'is', 'are')} reserved for {whom}the head of the queue"
    left_ms = reservation.at_ms - now.wall_ms
    obstacle = inputs.make_obstacle("promised", on, text, "reserved for the head of the queue")
    if left_ms >= 1000:
        obstacle = obstacle._replace(cost=0.5, change=lambda _: f"with expect <= {left_ms // 1000}s")
    yield obstacle
