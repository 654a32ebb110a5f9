"""A node's silence + the time -> suspect, lost, ready again.

Silence is the time since the node's last message. Together with `leases`, which ends run leases: both follow
from the same silence. After a takeover silence starts at zero, because what the previous leader received is
not known here.
"""

from collections.abc import Callable

from rota.engine.reconciler import Reconciler, own_id
from rota.model.ids import NodeId
from rota.model.lifecycle import NODE, NodeEvent, NodeState, step
from rota.model.limits import (
    BRAKE_LOOK_MS,
    LEASE_MARGIN_MS_MIN,
    LEASE_MS_MIN,
    LOST_MS,
    OFFER_GRACE_MS,
    SUSPECT_MS,
)
from rota.model.node import Connection, NodeIntent, NodeStatus
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, wake_at
from rota.model.view import NodeView, View
from rota.rules.disruption import SilentNodes
from rota.rules.reconciler_names import ReconcilerName
from rota.watcher.brake import SilenceCache
from rota.watcher.leases import expire, lease_durations_ms
from rota.watcher.node_messages import declare_gone, withdraw_offers

NAME = ReconcilerName.LIVENESS
FRESH_MS = LEASE_MS_MIN + LEASE_MARGIN_MS_MIN  # no run lease makes a node suspect sooner than this


def reconciler(lost_ms: int = LOST_MS, ttl_ms: int = 0) -> Reconciler:
    """`ttl_ms`: for how long after our takeover the previous leader may have renewed run leases."""
    cache = SilenceCache()

    def decide(view: View, key: str, now: Instant) -> Plan:
        node = NodeId(key)
        if node not in view.nodes:
            return NO_CHANGE
        # After a restore nodes are refused until the operator accepts it: their silence says nothing.
        if view.restored is not None and view.restored.closed(now.ms - lost_ms):
            plan = wake_at(now.ms + BRAKE_LOOK_MS)
        else:
            plan = decide_liveness(view, node, now, lost_ms, lambda: cache.get(view, now))
        return _merge(plan, expire(view, node, now, ttl_ms))

    return Reconciler(
        NAME,
        "watcher",
        dict.fromkeys((NodeStatus, NodeIntent), own_id),
        decide,
        lambda view: list(view.nodes),
    )


def decide_liveness(
    view: View, node: NodeId, now: Instant, lost_ms: int, silence: Callable[[], SilentNodes] | None = None
) -> Plan:
    entry = view.nodes.get(node)
    if entry is None or entry.status is None:
        return NO_CHANGE
    silent_ms = now.ms - entry.last_seen_at_ms
    # Suspect before a run lease can expire, so that the node gets no new work under a lease meanwhile.
    suspect_ms = min(SUSPECT_MS, lost_ms // 2, *lease_durations_ms(view, node))
    # A connection that is DOWN makes the node suspect at once; silence on an open one takes suspect_ms.
    responsive = not entry.revoked and entry.connection is not Connection.DOWN and silent_ms < suspect_ms
    match entry.status.state:
        case NodeState.READY if responsive:
            return wake_at(entry.last_seen_at_ms + suspect_ms)
        case NodeState.READY:
            return _suspect(view, entry, _why_suspect(entry, silent_ms), now, lost_ms)
        # FRESH_MS is hysteresis: with a longer silence a lease could make the node suspect again at once.
        case NodeState.SUSPECT | NodeState.LOST if (
            responsive and silent_ms < FRESH_MS and entry.connection is Connection.UP
        ):
            return _recovered(entry, now)
        case NodeState.SUSPECT if silent_ms >= lost_ms:
            return _declare_lost(view, entry, now, lost_ms, silence() if silence else SilentNodes(view))
        case NodeState.SUSPECT:
            return _withdraw(view, entry, now, lost_ms)
        case NodeState.LOST | NodeState.LEFT:
            return NO_CHANGE


def _why_suspect(entry: NodeView, silent_ms: int) -> str:
    if entry.revoked:
        return "it was revoked"
    if entry.connection is Connection.DOWN:
        return entry.disconnect_reason or "its connection broke"
    return f"silent for {silent_ms // 1000} s"


def _merge(first: Plan, other: Plan) -> Plan:
    """Both plans in one. They never write the same block: a job has one run mode, so leases or not."""
    wakes = [plan.wake_at_ms for plan in (first, other) if plan.wake_at_ms is not None]
    return Plan(
        (*first.puts, *other.puts),
        events=(*first.events, *other.events),
        why="; ".join(filter(None, (first.why, other.why))),
        wake_at_ms=min(wakes, default=None),
    )


def _suspect(view: View, entry: NodeView, reason: str, now: Instant, lost_ms: int) -> Plan:
    """The node gets no new tasks; those it has are not replaced yet."""
    assert entry.status is not None
    state = step(NODE, entry.status.state, NodeEvent.SUSPECT_TIMEOUT)
    status = entry.status.with_state(state, reason, now.wall_ms).with_silence(entry.last_seen_at_ms, now.ms)
    why = f"node {entry.spec.name} is suspect: {reason}"
    event = EventRecord("node.suspect", why, node=entry.spec.id, state=state.value)
    withdrawn = _withdraw(view, entry, now, lost_ms, since_ms=now.ms)
    return withdrawn.but(puts=(status, *withdrawn.puts), events=(event, *withdrawn.events), why=why)


def _withdraw(view: View, entry: NodeView, now: Instant, lost_ms: int, since_ms: int | None = None) -> Plan:
    """Withdraw unanswered offers of a suspect node; immediately if it is silent on an open stream.

    After a broken connection the node has OFFER_GRACE_MS to reconnect. It may report that an offered attempt
    was started and died with the keeper. If the offer were withdrawn by then, that crash would not count
    against the task in quarantine.
    """
    assert entry.status is not None
    since_ms = entry.status.suspect_at_ms if since_ms is None else since_ms
    wake_at_ms = entry.last_seen_at_ms + lost_ms
    if entry.connection is Connection.DOWN and since_ms is not None and now.ms < since_ms + OFFER_GRACE_MS:
        return wake_at(min(wake_at_ms, since_ms + OFFER_GRACE_MS))
    ledger = withdraw_offers(view, entry.spec.id, now)
    puts, events = ledger.puts(), ledger.events(entry.spec.name)
    why = f"node {entry.spec.name} has not answered its offers" if puts else ""
    return Plan(puts, events=events, why=why, wake_at_ms=wake_at_ms)


def _declare_lost(view: View, entry: NodeView, now: Instant, lost_ms: int, silence: SilentNodes) -> Plan:
    """The node was silent for too long. If many fell silent together, the brake delays this."""
    at_ms = silence.lost_at_ms(entry, lost_ms)
    soon_ms = now.ms + BRAKE_LOOK_MS
    # Looked at again soon even if a time is known: an operator may release the brake in between.
    if at_ms is None or at_ms > now.ms:
        return wake_at(soon_ms if at_ms is None else min(at_ms, soon_ms))
    silent_ms = now.ms - entry.last_seen_at_ms
    return declare_gone(view, entry.spec.id, NodeEvent.LOST_TIMEOUT, f"silent for {silent_ms // 1000} s", now)


def _recovered(entry: NodeView, now: Instant) -> Plan:
    assert entry.status is not None
    state = step(NODE, entry.status.state, NodeEvent.HELLO)
    status = entry.status.seen_again(state, now.wall_ms, now.ms)
    why = f"node {entry.spec.name} responds again"
    return Plan(
        (status,),
        events=(EventRecord("node.recovered", why, node=entry.spec.id, state=state.value),),
        why=why,
    )
