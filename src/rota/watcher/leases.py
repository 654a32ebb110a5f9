"""A node's silence + the run leases of its attempts -> those that provably run no more.

A run lease (one_at_a_time) counts on the node from when it sent the last message that the server echoed. The
keeper kills the attempt before the lease ends. The server counts from when it received that message, which
is later, and adds a margin: when the lease is over here, the attempt has been killed there, even if the two
cannot reach each other.
"""

from collections.abc import Iterator

from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptEvent
from rota.model.messages import AttemptReport, ReportedState
from rota.model.plan import Instant, Plan
from rota.model.view import View
from rota.watcher.attempt_reports import StatusUpdater

Held = tuple[JobId, int, int]  # job, index, attempt


def held_until_ms(view: View, node: NodeId, job: JobId, ttl_ms: int) -> int:
    """Until when an attempt of this job may run on the node.

    The previous leader may have renewed it after our snapshot was read, until its own lease (`ttl_ms`) ended.
    """
    spec = view.jobs[job].spec
    assert spec.lease_ms is not None
    # Safety: the later of both, because the previous leader may have renewed without this server seeing it.
    renewed_ms = max(view.nodes[node].last_seen_at_ms, view.read_at_ms + ttl_ms)
    return renewed_ms + spec.lease_ms + spec.lease_margin_ms


def lease_durations_ms(view: View, node: NodeId) -> list[int]:
    """For each job with run leases on the node, how long the node may be silent."""
    specs = [view.jobs[job].spec for job in view.leased_on.get(node, ())]
    return [spec.lease_ms + spec.lease_margin_ms for spec in specs if spec.lease_ms is not None]


def holds_any(view: View, node: NodeId, now_ms: int, ttl_ms: int = 0) -> bool:
    return any(until_ms > now_ms for _, until_ms in _leases(view, node, ttl_ms))


def expire(view: View, node: NodeId, now: Instant, ttl_ms: int) -> Plan:
    """Declare attempts lost whose leases have expired, in any state of the node; wakes at the next one."""
    entry = view.nodes[node]
    expired: list[Held] = []
    next_ms: int | None = None
    for held, until_ms in _leases(view, node, ttl_ms):
        # Independent of the node's state: only the lease says when a second attempt may start.
        if until_ms <= now.ms:
            expired.append(held)
        else:
            next_ms = until_ms if next_ms is None else min(next_ms, until_ms)
    if not expired:
        return Plan(wake_at_ms=next_ms)
    silent_ms = now.ms - entry.last_seen_at_ms
    reason = f"its run lease ran out: node {entry.spec.name} was silent for {silent_ms // 1000} s"
    updater = StatusUpdater(view, node)
    for job, index, attempt in sorted(expired):
        report = AttemptReport(index, attempt, ReportedState.LOST, ended_at_ms=now.wall_ms, reason=reason)
        updater.transition(view.jobs[job], report, AttemptEvent.NODE_LOST)
    return Plan(updater.puts(), events=updater.events(entry.spec.name), why=reason, wake_at_ms=next_ms)


def _leases(view: View, node: NodeId, ttl_ms: int) -> Iterator[tuple[Held, int]]:
    jobs = {job: held_until_ms(view, node, job, ttl_ms) for job in view.leased_on.get(node, ())}
    for (job, index), attempt in view.nodes[node].assigned.items() if jobs else ():
        if job in jobs:
            yield (job, index, attempt), jobs[job]
