"""A node's words -> what to write."""

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
_IMPLAUSIBLE = "no server can have led that many; `rota node revoke` cuts off a node that says what is not so"
_STARTED = (AttemptState.RUNNING, AttemptState.STOPPING)


def why_refused(
    view: View, node: NodeId, word: Hello, *, epoch: int, now_ms: int, ttl_ms: int = 0
) -> str | None:
    """Why this node cannot be greeted now: it follows a newer leader, or another machine bears its name.

    A session is a machine and its boot: while the one that was greeted answers, no other is.
    """
    if word.epoch_seen > epoch:
        said = f"the node has seen epoch {word.epoch_seen}, this server leads {epoch}"
        return f"{said}: {_ACCEPT if is_plausible_epoch(word.epoch_seen, epoch) else _IMPLAUSIBLE}"
    if view.restored is not None and view.restored.closed(now_ms):
        return _closed(view.restored, now_ms)
    entry = view.nodes[node]
    if entry.revoked:
        return why_revoked(entry)
    before = entry.status
    if before is not None and before.boot_id != word.boot_id and holds_any(view, node, now_ms, ttl_ms):
        return (
            f"node {entry.spec.name} may still run something under a lease, before its restart or elsewhere"
        )
    answers = entry.connection is Connection.UP and now_ms - entry.last_seen_at_ms < SUSPECT_MS
    if (
        before is None
        or not answers
        or (before.machine_id, before.boot_id) == (word.machine_id, word.boot_id)
    ):
        return None
    return f"node {entry.spec.name} is connected from elsewhere"


def why_revoked(entry: NodeView) -> str:
    return f"node {entry.spec.name} was revoked: its machine can join as a new node"


def _closed(restored: Restored, now_ms: int) -> str:
    if not restored.accepted:
        return f"this server was restored from a backup: {_ACCEPT}"
    left_ms = restored.open_at_ms - now_ms
    return f"work under a lease may still run somewhere, for {left_ms // 1000 + 1} s at most"


def on_hello(view: View, node: NodeId, word: Hello, now: Instant) -> Plan:
    """A node calls: it is ready, and what it holds and does not hold is entered.

    It will stop what we do not know and forget what we say is stored: who no longer leads must not answer.
    """
    entry = view.nodes.get(node)
    if entry is None:
        raise NotFound(f"node {node} is not known here", hint="join it again with a new join token")
    if entry.revoked:
        raise NotAllowed(why_revoked(entry))
    ledger = StatusUpdater(view, node)
    ledger.apply_reports(word.inventory)
    _reconcile_missing(view, entry, word, ledger)
    status = _status_after_hello(entry, word, now)
    events = ledger.events(entry.spec.name)
    if entry.status is None or status.state is not entry.status.state:
        events = (_arrival(entry, node), *events)
    elif status.leaving is not entry.status.leaving:
        events = (_leaving(entry, word.drain), *events)
    changed = () if status == entry.status else (status,)
    puts = (*changed, *ledger.puts())
    return Plan(puts, events=events, why=f"node {entry.spec.name} said hello", fenced=True)


def on_report(view: View, node: NodeId, word: NodeReport, now: Instant) -> Plan:
    """What changed on a node."""
    del now
    entry = view.nodes.get(node)
    if entry is None:
        raise NotFound(f"node {node} is not known here")
    if entry.revoked:  # it was decided since the word came in
        raise NotAllowed(why_revoked(entry))
    ledger = StatusUpdater(view, node)
    ledger.apply_reports(word.claims)
    events = ledger.events(entry.spec.name)
    why = f"node {entry.spec.name} reported"
    return Plan(ledger.puts(), events=events, why=why, fenced=_needs_acknowledgement(word.claims))


def on_drain(view: View, node: NodeId, word: DrainRequest, now: Instant) -> Plan:
    """A node says that it will go: it gets nothing new, what it has may end until then. Or that it stays."""
    entry = view.nodes.get(node)
    if entry is None or entry.status is None or entry.status.leaving is not word.over:
        return Plan()
    event = _leaving(entry, None if word.over else word)
    return Plan((_with_drain(entry.status, word, now),), events=(event,), why=event.why)


def _with_drain(status: NodeStatus, word: DrainRequest | None, now: Instant) -> NodeStatus:
    """As its node has made up its mind to go, or to stay."""
    if word is None or word.over:
        return status.without_leaving()
    return status.with_leaving(word.reason, now.ms + word.within_ms if word.moves else None)


def _leaving(entry: NodeView, word: DrainRequest | None) -> EventRecord:
    name, node = entry.spec.name, entry.spec.id
    if word is None:
        stays = Eligibility.OPEN if entry.intent is None else entry.intent.eligibility
        return EventRecord(
            "node.changed", f"node {name} does not leave after all", node=node, state=stays.value
        )
    within = f" within {word.within_ms / 1000:g} s" if word.within_ms else ""
    why = f"node {name} leaves{within}: {word.reason}"
    return EventRecord("node.changed", why, node=node, state=Eligibility.DRAINING.value)


def on_shortage(view: View, node: NodeId, reason: str | None) -> Plan:
    """A node says why it takes nothing new, or (None) that it does again."""
    entry = view.nodes.get(node)
    if entry is None or entry.status is None or entry.status.shortage == reason:
        return Plan()
    name = entry.spec.name
    why = f"node {name} takes nothing new: {reason}" if reason else f"node {name} takes work again"
    event = EventRecord("node.short", why, node=node, state=entry.status.state.value)
    return Plan((entry.status.with_shortage(reason),), events=(event,), why=why)


def on_leave(view: View, node: NodeId, reason: str, now: Instant) -> Plan:
    """A node says that it goes: nothing waits for its silence."""
    entry = view.nodes.get(node)
    if entry is None or entry.status is None or entry.status.state is NodeState.LEFT:
        return Plan()
    return declare_gone(view, node, NodeEvent.LEFT, reason, now)


def declare_gone(view: View, node: NodeId, event: NodeEvent, reason: str, now: Instant) -> Plan:
    """A node is lost or has left: so has everything on it that holds no lease."""
    entry = view.nodes[node]
    assert entry.status is not None
    state = step(NODE, entry.status.state, event)
    status = entry.status.with_state(state, reason, now.wall_ms)
    ledger = StatusUpdater(view, node)
    sentence = f"node {entry.spec.name} {'left' if state is NodeState.LEFT else 'was lost'}: {reason}"
    for (job, index), attempt in sorted(entry.assigned.items()):
        if view.jobs[job].spec.lease_ms is not None:
            continue  # it may run there until its lease ends
        ran = state is NodeState.LOST and state_of(view.jobs[job], index, attempt) in _STARTED
        cause = EndCause.NODE_DOWN if ran else None
        claim = AttemptReport(
            index, attempt, ReportedState.LOST, ended_at_ms=now.wall_ms, reason=sentence, cause=cause
        )
        ledger.transition(view.jobs[job], claim, AttemptEvent.NODE_LOST)
    told = EventRecord(f"node.{state.value}", sentence, node=node, state=state.value)
    return Plan((status, *ledger.puts()), events=(told, *ledger.events(entry.spec.name)), why=sentence)


def withdraw_offers(view: View, node: NodeId, now: Instant) -> StatusUpdater:
    """Offers a silent node has not answered go elsewhere."""
    ledger = StatusUpdater(view, node)
    for (job_id, index), attempt in sorted(view.nodes[node].assigned.items()):
        job = view.jobs[job_id]
        again = job.spec.run is RunMode.AT_LEAST_ONCE  # what may start once only may have started there
        if again and state_of(job, index, attempt) is AttemptState.OFFERED:
            claim = AttemptReport(
                index, attempt, ReportedState.WITHDRAWN, ended_at_ms=now.wall_ms, reason="its node is silent"
            )
            ledger.transition(job, claim, AttemptEvent.WITHDRAWN)
    return ledger


def _needs_acknowledgement(claims: list[JobReports]) -> bool:
    """Whether the node will do something on our word that this is stored: forget a result, or start."""
    told = (claim.said for one in claims for claim in one.reports)
    return any(said >= REPORTED_FIRST_END or said == ReportedState.ACCEPTED for said in told)


def _status_after_hello(entry: NodeView, word: Hello, now: Instant) -> NodeStatus:
    before = entry.status
    state = NodeState.READY if before is None else step(NODE, before.state, NodeEvent.HELLO)
    since_ms = before.since_ms if before is not None and before.state is state else now.wall_ms
    status = NodeStatus(
        entry.spec.id,
        state,
        word.machine_id,
        word.boot_id,
        word.version,
        word.capacity,
        word.labels,
        None,
        since_ms,
        shortage=before.shortage if before is not None else None,
        last_silence=before.silence_until(now.ms) if before is not None else None,
        certificate_expires_at_ms=word.certificate_expires_at_ms,
        certificate_ca=word.certificate_ca,
    )
    return _with_drain(status, word.drain, now)


def _arrival(entry: NodeView, node: NodeId) -> EventRecord:
    kind = "node.joined" if entry.status is None else "node.recovered"
    return EventRecord(kind, f"node {entry.spec.name} is ready", node=node, state=NodeState.READY.value)


def _reconcile_missing(view: View, entry: NodeView, word: Hello, ledger: StatusUpdater) -> None:
    """What we believe there and the node does not name: offered again if it cannot have begun, else lost."""
    named = {(one.job, claim.index, claim.attempt) for one in word.inventory for claim in one.reports}
    rebooted = entry.status is not None and entry.status.boot_id != word.boot_id
    for (job_id, index), attempt in sorted(entry.assigned.items()):
        if (job_id, index, attempt) in named:
            continue
        job = view.jobs[job_id]
        state = state_of(job, index, attempt)
        if rebooted and state is AttemptState.OFFERED and job.spec.run is RunMode.AT_LEAST_ONCE:
            # Its answer, and what the disk had not taken yet, may be lost: that number could start twice.
            claim = AttemptReport(index, attempt, ReportedState.WITHDRAWN, reason="its node restarted")
            ledger.transition(job, claim, AttemptEvent.WITHDRAWN)
        elif rebooted or state in _STARTED:
            reason = "its node restarted" if rebooted else "its node no longer knows it"
            cause = EndCause.NODE_DOWN if rebooted and state in _STARTED else None
            claim = AttemptReport(index, attempt, ReportedState.LOST, reason=reason, cause=cause)
            ledger.transition(job, claim, AttemptEvent.RESULT_LOST)
