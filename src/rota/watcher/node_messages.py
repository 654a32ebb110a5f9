"""A node's messages -> records and events; also a node that is lost or has left."""

from rota.model.adoption import Restored
from rota.model.errors import NotAllowed, NotFound
from rota.model.ids import NodeId
from rota.model.lifecycle import NODE, AttemptEvent, AttemptState, NodeEvent, NodeState, step
from rota.model.limits import SUSPECT_MS
from rota.model.messages import (
    REPORTED_FIRST_END,
    AttemptReport,
    DrainRequest,
    Hello,
    JobReports,
    NodeReport,
    ReportedState,
)
from rota.model.node import Connection, Eligibility, NodeStatus, is_plausible_epoch
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.recovery import EndCause
from rota.model.shape import RunMode
from rota.model.view import NodeView, View
from rota.watcher.attempt_reports import StatusUpdater
from rota.watcher.dispatch import state_of
from rota.watcher.leases import holds_any

_ACCEPT = "`rota store accept` lets nodes follow it, if no other server leads them"
_IMPLAUSIBLE = "no server can have reached it; `rota node revoke` cuts off a node that reports false values"
_STARTED = (AttemptState.RUNNING, AttemptState.STOPPING)


def why_refused(
    view: View, node: NodeId, hello: Hello, *, epoch: int, now_ms: int, ttl_ms: int = 0
) -> str | None:
    """Why the handshake is refused now, if it is: the node has seen a newer leader, or is connected already.

    A node is one boot of one machine: while it answers, a hello from another machine or boot is refused.
    """
    # Fencing in the other direction: a node that has seen a newer leader must not follow this one.
    if hello.epoch_seen > epoch:
        reason = f"the node has seen epoch {hello.epoch_seen}, this server leads {epoch}"
        return f"{reason}: {_ACCEPT if is_plausible_epoch(hello.epoch_seen, epoch) else _IMPLAUSIBLE}"
    if view.restored is not None and view.restored.closed(now_ms):
        return _closed(view.restored, now_ms)
    entry = view.nodes[node]
    if entry.revoked:
        return why_revoked(entry)
    before = entry.status
    # Safety of one_at_a_time: the machine may have been replaced, and the old one may still run the task.
    if before is not None and before.boot_id != hello.boot_id and holds_any(view, node, now_ms, ttl_ms):
        return (
            f"node {entry.spec.name} may still run something under a lease, before its restart or elsewhere"
        )
    answers = entry.connection is Connection.UP and now_ms - entry.last_seen_at_ms < SUSPECT_MS
    if (
        before is None
        or not answers
        or (before.machine_id, before.boot_id) == (hello.machine_id, hello.boot_id)
    ):
        return None
    return f"node {entry.spec.name} is connected from elsewhere"


def display_name(view: View, node: NodeId) -> str:
    """The node's name for users, or its id if it is unknown."""
    entry = view.nodes.get(node)
    return node if entry is None else entry.spec.name


def why_revoked(entry: NodeView) -> str:
    return f"node {entry.spec.name} was revoked: its machine can join as a new node"


def _closed(restored: Restored, now_ms: int) -> str:
    if not restored.accepted:
        return f"this server was restored from a backup: {_ACCEPT}"
    left_ms = restored.open_at_ms - now_ms
    return f"work under a lease may still run somewhere, for {left_ms // 1000 + 1} s at most"


def on_hello(view: View, node: NodeId, hello: Hello, now: Instant) -> Plan:
    """A node connects: it is ready, and its inventory is compared with what is assigned to it.

    Fenced: on the answer the node stops work that this server does not know and deletes results that it says
    are stored. A server that no longer leads must not cause either.
    """
    entry = view.nodes.get(node)
    if entry is None:
        raise NotFound(f"node {node} is not known here", hint="join it again with a new join token")
    if entry.revoked:
        raise NotAllowed(why_revoked(entry))
    updater = StatusUpdater(view, node)
    updater.apply_reports(hello.inventory)
    _reconcile_missing(view, entry, hello, updater)
    status = _status_after_hello(entry, hello, now)
    events = updater.events(entry.spec.name)
    if entry.status is None or status.state is not entry.status.state:
        events = (_arrival(entry, node), *events)
    elif status.leaving is not entry.status.leaving:
        events = (_leaving(entry, hello.drain), *events)
    changed = () if status == entry.status else (status,)
    puts = (*changed, *updater.puts())
    return Plan(puts, events=events, why=f"node {entry.spec.name} said hello", fenced=True)


def on_report(view: View, node: NodeId, report: NodeReport, now: Instant) -> Plan:
    """Apply a node's report of changed attempts. Raises NotFound or NotAllowed."""
    del now
    entry = view.nodes.get(node)
    if entry is None:
        raise NotFound(f"node {node} is not known here")
    if entry.revoked:  # race: revoked after the message was received
        raise NotAllowed(why_revoked(entry))
    updater = StatusUpdater(view, node)
    updater.apply_reports(report.reports)
    events = updater.events(entry.spec.name)
    why = f"node {entry.spec.name} reported"
    return Plan(updater.puts(), events=events, why=why, fenced=_needs_acknowledgement(report.reports))


def on_drain(view: View, node: NodeId, request: DrainRequest, now: Instant) -> Plan:
    """A node will leave: it gets no new tasks, and running ones may end until then. Or it withdraws that."""
    entry = view.nodes.get(node)
    if entry is None or entry.status is None or entry.status.leaving is not request.over:
        return Plan()
    event = _leaving(entry, None if request.over else request)
    return Plan((_with_drain(entry.status, request, now),), events=(event,), why=event.why)


def _with_drain(status: NodeStatus, request: DrainRequest | None, now: Instant) -> NodeStatus:
    """The status with the node's own drain request applied, or removed."""
    if request is None or request.over:
        return status.without_leaving()
    return status.with_leaving(request.reason, now.ms + request.within_ms if request.moves else None)


def _leaving(entry: NodeView, request: DrainRequest | None) -> EventRecord:
    name, node = entry.spec.name, entry.spec.id
    if request is None:
        eligibility = Eligibility.OPEN if entry.intent is None else entry.intent.eligibility
        return EventRecord(
            "node.changed", f"node {name} does not leave after all", node=node, state=eligibility.value
        )
    within = f" within {request.within_ms / 1000:g} s" if request.within_ms else ""
    why = f"node {name} leaves{within}: {request.reason}"
    return EventRecord("node.changed", why, node=node, state=Eligibility.DRAINING.value)


def on_shortage(view: View, node: NodeId, reason: str | None) -> Plan:
    """A node takes no new tasks for this reason; None: it does again."""
    entry = view.nodes.get(node)
    if entry is None or entry.status is None or entry.status.shortage == reason:
        return Plan()
    name = entry.spec.name
    why = f"node {name} takes nothing new: {reason}" if reason else f"node {name} takes work again"
    event = EventRecord("node.short", why, node=node, state=entry.status.state.value)
    return Plan((entry.status.with_shortage(reason),), events=(event,), why=why)


def on_leave(view: View, node: NodeId, reason: str, now: Instant) -> Plan:
    """A node leaves: it is `left` immediately, without a timeout of its silence."""
    entry = view.nodes.get(node)
    if entry is None or entry.status is None or entry.status.state is NodeState.LEFT:
        return Plan()
    return declare_gone(view, node, NodeEvent.LEFT, reason, now)


def declare_gone(view: View, node: NodeId, event: NodeEvent, reason: str, now: Instant) -> Plan:
    """A node is lost or has left: its attempts are lost, except those under a run lease."""
    entry = view.nodes[node]
    assert entry.status is not None
    state = step(NODE, entry.status.state, event)
    status = entry.status.with_state(state, reason, now.wall_ms)
    updater = StatusUpdater(view, node)
    sentence = f"node {entry.spec.name} {'left' if state is NodeState.LEFT else 'was lost'}: {reason}"
    # Sorted, so that the plan does not depend on the order of a dictionary.
    for (job, index), attempt in sorted(entry.assigned.items()):
        if view.jobs[job].spec.lease_ms is not None:
            continue  # it may run until its lease ends; `leases.expire` declares it lost
        # NODE_DOWN counts towards quarantine: only for attempts that ran, and not if the node left in order.
        ran = state is NodeState.LOST and state_of(view.jobs[job], index, attempt) in _STARTED
        cause = EndCause.NODE_DOWN if ran else None
        report = AttemptReport(
            index, attempt, ReportedState.LOST, ended_at_ms=now.wall_ms, reason=sentence, cause=cause
        )
        updater.transition(view.jobs[job], report, AttemptEvent.NODE_LOST)
    node_event = EventRecord(f"node.{state.value}", sentence, node=node, state=state.value)
    return Plan(
        (status, *updater.puts()), events=(node_event, *updater.events(entry.spec.name)), why=sentence
    )


def withdraw_offers(view: View, node: NodeId, now: Instant) -> StatusUpdater:
    """Withdraw the offers that a silent node has not answered, so that they are placed elsewhere."""
    updater = StatusUpdater(view, node)
    for (job_id, index), attempt in sorted(view.nodes[node].assigned.items()):
        job = view.jobs[job_id]
        # An at_most_once task may have started there: its offer is not withdrawn.
        restartable = job.spec.run is RunMode.AT_LEAST_ONCE
        if restartable and state_of(job, index, attempt) is AttemptState.OFFERED:
            report = AttemptReport(
                index, attempt, ReportedState.WITHDRAWN, ended_at_ms=now.wall_ms, reason="its node is silent"
            )
            updater.transition(job, report, AttemptEvent.WITHDRAWN)
    return updater


def _needs_acknowledgement(reports: list[JobReports]) -> bool:
    """Whether the node acts on the acknowledgement: it deletes a result, or starts an accepted attempt."""
    states = (report.state for job_reports in reports for report in job_reports.reports)
    return any(state >= REPORTED_FIRST_END or state == ReportedState.ACCEPTED for state in states)


def _status_after_hello(entry: NodeView, hello: Hello, now: Instant) -> NodeStatus:
    before = entry.status
    state = NodeState.READY if before is None else step(NODE, before.state, NodeEvent.HELLO)
    since_ms = before.since_ms if before is not None and before.state is state else now.wall_ms
    status = NodeStatus(
        entry.spec.id,
        state,
        hello.machine_id,
        hello.boot_id,
        hello.version,
        hello.capacity,
        hello.labels,
        None,
        since_ms,
        # A hello has no load: the last shortage holds until the next report.
        shortage=before.shortage if before is not None else None,
        last_silence=before.silence_until(now.ms) if before is not None else None,
        certificate_expires_at_ms=hello.certificate_expires_at_ms,
        certificate_ca=hello.certificate_ca,
    )
    return _with_drain(status, hello.drain, now)


def _arrival(entry: NodeView, node: NodeId) -> EventRecord:
    kind = "node.joined" if entry.status is None else "node.recovered"
    return EventRecord(kind, f"node {entry.spec.name} is ready", node=node, state=NodeState.READY.value)


def _reconcile_missing(view: View, entry: NodeView, hello: Hello, updater: StatusUpdater) -> None:
    """Assigned attempts that the inventory does not list: offered again if not started, else lost."""
    listed = {
        (job_reports.job, report.index, report.attempt)
        for job_reports in hello.inventory
        for report in job_reports.reports
    }
    rebooted = entry.status is not None and entry.status.boot_id != hello.boot_id
    for (job_id, index), attempt in sorted(entry.assigned.items()):
        if (job_id, index, attempt) in listed:
            continue
        job = view.jobs[job_id]
        state = state_of(job, index, attempt)
        if rebooted and state is AttemptState.OFFERED and job.spec.run is RunMode.AT_LEAST_ONCE:
            # The crash may have lost the answer, and the node's own record of it: offered again under the
            # same number, the attempt could run twice.
            report = AttemptReport(index, attempt, ReportedState.WITHDRAWN, reason="its node restarted")
            updater.transition(job, report, AttemptEvent.WITHDRAWN)
        elif rebooted or state in _STARTED:
            reason = "its node restarted" if rebooted else "its node no longer knows it"
            cause = EndCause.NODE_DOWN if rebooted and state in _STARTED else None
            report = AttemptReport(index, attempt, ReportedState.LOST, reason=reason, cause=cause)
            updater.transition(job, report, AttemptEvent.RESULT_LOST)
