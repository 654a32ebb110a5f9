"""A draining node + its tasks -> evictions: services immediately, other tasks at the drain deadline."""

from collections.abc import Callable, Iterable, Iterator

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.attempt import DRAINED, EVICTED
from rota.model.cluster import Machine
from rota.model.columns import Ranges
from rota.model.ids import JobId, NodeId
from rota.model.job import JobKind
from rota.model.limits import BLOCK_TASKS
from rota.model.node import NodeIntent, NodeStatus
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.view import JobView, NodeView, View
from rota.rules.phases import Phase
from rota.rules.reconciler_names import ReconcilerName
from rota.scheduler.placement.attempt_blocks import AttemptBlockWriter
from rota.scheduler.policy.preempt import live_tasks, may_evict

_RETRY_MS = 1_000  # between two decisions while some tasks could not be evicted yet

WAKES: Wakes = {
    NodeIntent: lambda intent: (intent.id,) if intent.drains else (),
    NodeStatus: lambda status: (status.id,) if status.leaving else (),
    Machine: lambda machine: (machine.node,) if machine.is_being_removed and machine.node is not None else (),
}


def start(view: View) -> Iterable[str]:
    return (name for name, node in view.nodes.items() if node.is_draining)


def decide(view: View, key: str, now: Instant) -> Plan:
    node = view.nodes.get(NodeId(key))
    if node is None or not node.is_draining or not node.assigned:
        return NO_CHANGE
    # A node that leaves by itself has no drain request: an empty intent stands for
    # "no deadline, not everything".
    intent = node.intent if node.intent is not None and node.intent.drains else NodeIntent(node.spec.id)
    # Tasks of system jobs serve the other tasks of the node, so they are evicted last.
    system_tasks = [name for name in node.assigned if _is_system_task(view, name)]
    alone = len(system_tasks) == len(node.assigned)
    if alone or (intent.drain_by_ms is not None and now.ms >= intent.drain_by_ms):
        return _evict_tasks(view, node, intent, now, alone=alone)
    plan = _evict_tasks(view, node, intent, now, alone=False, is_due=lambda job: _is_due(job, node, now))
    # Nothing wakes this key when a grace period has to start, so the earliest of these times is its timer.
    dues = (_due_ms(view.jobs[job], node) for job, _ in node.assigned)
    times = [intent.drain_by_ms, plan.wake_at_ms, *(due for due in dues if due is not None and due > now.ms)]
    return plan.but(wake_at_ms=min((at_ms for at_ms in times if at_ms is not None), default=None))


def _is_due(job: JobView, node: NodeView, now: Instant) -> bool:
    due_ms = _due_ms(job, node)
    # A service never ends by itself: waiting for the deadline would only keep the node busy for longer.
    return job.spec.is_service or (due_ms is not None and now.ms >= due_ms)


def _due_ms(job: JobView, node: NodeView) -> int | None:
    """When to stop the task if the machine is terminated: its grace period must end before that."""
    by_ms = None if node.status is None else node.status.leaves_by_ms
    return None if by_ms is None else by_ms - round(job.spec.grace_seconds * 1000)


def _is_system_task(view: View, name: tuple[JobId, int]) -> bool:
    """Whether it is a task of a system job: it never ends by itself, and leaves the node last."""
    return view.jobs[name[0]].spec.kind is JobKind.SYSTEM


def may_be_moved(job: JobView, *, everything: bool) -> bool:
    """Whether its tasks may be stopped on one node and started on another."""
    return job.spec.movable or (everything and job.spec.kind is not JobKind.SYSTEM)


def _evict_tasks(
    view: View,
    node: NodeView,
    intent: NodeIntent,
    now: Instant,
    *,
    alone: bool,
    is_due: Callable[[JobView], bool] = lambda _: True,
) -> Plan:
    """Evict as many tasks as the eviction budgets allow; decide again later if others are left."""
    blocks = AttemptBlockWriter()
    events = []
    movable = _tasks_by_job(view, node, everything=intent.drain_all, alone=alone)
    left = not alone and any(_is_system_task(view, name) for name in node.assigned)
    for job, indices in movable:
        if not is_due(job):
            continue
        ready = [index for index in indices if may_evict(job, index)]
        bound = len(ready) if intent.drain_all else _eviction_limit(job, len(ready))
        # A gang that loses one task cannot go on; stopping all of it lets it start elsewhere as a whole.
        evicted = [at for _, at in live_tasks(job)] if job.spec.gang and ready else ready[:bound]
        left |= len(ready) > len(evicted) or any(_waits_on_node(job, index) for index in indices)
        for index in evicted:
            blocks.evict(job, index, EVICTED | DRAINED)
        if evicted:
            events.append(_event(job, evicted, node, alone=alone))
    # The end of another task may free the budget, but wakes no key of this node.
    wake_at = now.ms + _RETRY_MS if left else None
    why = "; ".join(event.why for event in events)
    return Plan(blocks.records(), events=tuple(events), why=why, wake_at_ms=wake_at)


def _tasks_by_job(
    view: View, node: NodeView, *, everything: bool, alone: bool
) -> Iterator[tuple[JobView, list[int]]]:
    found: dict[JobId, list[int]] = {}
    for job_id, index in sorted(node.assigned):
        if alone or may_be_moved(view.jobs[job_id], everything=everything):
            found.setdefault(job_id, []).append(index)
    for job_id, indices in found.items():
        yield view.jobs[job_id], indices


def _eviction_limit(job: JobView, count: int) -> int:
    """The job's eviction budget applies to drains too, but at least one task is evicted."""
    allowed = job.spec.evict_at_most
    # At least one: with a budget of 0 a node could never be drained.
    return count if allowed is None else max(0, max(1, allowed) - job.task_counts.stopping)


def _waits_on_node(job: JobView, index: int) -> bool:
    """Whether it is queued on the node as lookahead: it can be evicted only once it has started."""
    block, position = divmod(index, BLOCK_TASKS)
    return not may_evict(job, index) and job.phases[block][position] < Phase.STOPPING


def _event(job: JobView, indices: list[int], node: NodeView, *, alone: bool) -> EventRecord:
    ranges = Ranges(indices)
    s, es = ("s", "") if len(indices) > 1 else ("", "s")
    because = _reason(job, node, alone=alone)
    why = f"task{s} {ranges} of job {job.spec.id} leave{es} node {node.spec.name}: {because}"
    return EventRecord("task.evicted", why, job=job.spec.id, node=node.spec.id, indices=tuple(ranges.pairs))


def _reason(job: JobView, node: NodeView, *, alone: bool) -> str:
    if alone:
        return "nothing else is left there"
    if job.spec.is_service:
        return "services do not end by themselves"
    requested = node.intent is not None and node.intent.drains
    terminated = None if requested or node.status is None else node.status.reason
    return f"its machine is taken away: {terminated}" if terminated else "its time to drain is over"


RECONCILER = Reconciler(ReconcilerName.DRAIN, "scheduler", WAKES, decide, start)
