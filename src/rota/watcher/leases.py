"""A node's silence + the leases of what runs there -> what surely runs no more, and when the next will be."""

from collections.abc import Iterator

from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptEvent
from rota.model.messages import AttemptReport, ReportedState
from rota.model.plan import Instant, Plan
from rota.model.view import View
from rota.watcher.attempt_reports import StatusUpdater

Held = tuple[JobId, int, int]  # job, index, attempt


def held_until_ms(view: View, node: NodeId, job: JobId, ttl_ms: int) -> int:
    """Until when an attempt of this job may run there.

    Its node counts from when it said what we heard, which was before we heard it. Who led before us may have
    heard it after that, until its own time to lead ran out.
    """
    spec = view.jobs[job].spec
    assert spec.lease_ms is not None
    heard_ms = max(view.nodes[node].last_seen_at_ms, view.read_at_ms + ttl_ms)
    return heard_ms + spec.lease_ms + spec.lease_margin_ms


def lease_durations_ms(view: View, node: NodeId) -> list[int]:
    """How long each job that is there under leases lets its node be silent."""
    specs = [view.jobs[job].spec for job in view.leased_on.get(node, ())]
    return [spec.lease_ms + spec.lease_margin_ms for spec in specs if spec.lease_ms is not None]


def holds_any(view: View, node: NodeId, now_ms: int, ttl_ms: int = 0) -> bool:
    return any(until_ms > now_ms for _, until_ms in _leases(view, node, ttl_ms))


def expire(view: View, node: NodeId, now: Instant, ttl_ms: int) -> Plan:
    """Attempts whose leases have run out are lost, whatever is thought of their node; when to look again."""
    entry = view.nodes[node]
    over: list[Held] = []
    next_ms: int | None = None
    for held, until_ms in _leases(view, node, ttl_ms):
        if until_ms <= now.ms:
            over.append(held)
        else:
            next_ms = until_ms if next_ms is None else min(next_ms, until_ms)
    if not over:
        return Plan(wake_at_ms=next_ms)
    silent_ms = now.ms - entry.last_seen_at_ms
    reason = f"its run lease ran out: node {entry.spec.name} was silent for {silent_ms // 1000} s"
    ledger = StatusUpdater(view, node)
    for job, index, attempt in sorted(over):
        claim = AttemptReport(index, attempt, ReportedState.LOST, ended_at_ms=now.wall_ms, reason=reason)
        ledger.transition(view.jobs[job], claim, AttemptEvent.NODE_LOST)
    return Plan(ledger.puts(), events=ledger.events(entry.spec.name), why=reason, wake_at_ms=next_ms)


def _leases(view: View, node: NodeId, ttl_ms: int) -> Iterator[tuple[Held, int]]:
    jobs = {job: held_until_ms(view, node, job, ttl_ms) for job in view.leased_on.get(node, ())}
    for (job, index), attempt in view.nodes[node].assigned.items() if jobs else ():
        if job in jobs:
            yield (job, index, attempt), jobs[job]
