"""A node that left + what subscribers have acknowledged -> `node.left` repeated, or nothing.

Subscribers acknowledge positions in the event stream, and the position of an event is known once it is
committed. So a commit hook notes the position of `node.left`, and the status of the node keeps it for as long
as a subscriber has not acknowledged it.
"""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler
from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import EVENTS_KEPT_MS, TOLD_AGAIN_LAST_MS
from rota.model.node import LeaveNotice, NodeStatus
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, wake_at
from rota.model.recovery import next_notice_at_ms
from rota.model.view import NodeView, View
from rota.rules.reconciler_names import ReconcilerName

NAME = ReconcilerName.LEAVE_NOTICES
KIND = "node.left"


def leave_events(events: Iterable[EventRecord]) -> Iterable[tuple[NodeId, int]]:
    """The nodes that left in these events of one commit, each with the index of its event."""
    for index, event in enumerate(events):
        if event.kind == KIND and event.node is not None:
            yield event.node, index


def decide(view: View, key: str, now: Instant) -> Plan:
    entry = view.nodes.get(NodeId(key))
    if entry is None or entry.status is None or entry.status.state is not NodeState.LEFT:
        return NO_CHANGE
    notice = entry.status.notice
    if notice is None:
        return _start_notice(view, entry, now)
    behind = _behind(view, (notice.revision, notice.index))
    if not behind or now.ms >= notice.since_ms + EVENTS_KEPT_MS:  # later it is no longer replayed either
        return NO_CHANGE
    due_ms = next_notice_at_ms(notice.told_ms, notice.times)
    if now.ms < due_ms:
        return wake_at(due_ms)
    if all(view.presence.absent_since(name) is not None for name in behind):
        return wake_at(now.ms + TOLD_AGAIN_LAST_MS)  # events are replayed to a subscriber that connects
    return _resend(entry, entry.status, notice, now)


def _start_notice(view: View, entry: NodeView, now: Instant) -> Plan:
    """Store the position of the event, if a subscriber has not acknowledged it yet."""
    if entry.left_at is None or entry.status is None or not _behind(view, entry.left_at):
        return NO_CHANGE
    notice = LeaveNotice(*entry.left_at, since_ms=now.ms, told_ms=now.ms)
    status = entry.status.with_notice(notice)
    why = f"subscribers have not acknowledged that node {entry.spec.name} left"
    return Plan((status,), why=why, wake_at_ms=next_notice_at_ms(notice.told_ms, notice.times))


def _behind(view: View, at: tuple[int, int]) -> list[str]:
    """Names of the subscribers that have not acknowledged the event at this position."""
    return [name for name, cursor in view.subscribers.items() if (cursor.revision, cursor.index) < at]


def _resend(entry: NodeView, status: NodeStatus, notice: LeaveNotice, now: Instant) -> Plan:
    again = notice.sent_again(now.ms)
    why = f"node {entry.spec.name} left: {status.reason}, told {again.times} times"
    event = EventRecord(KIND, why, node=status.id, state=status.state.value)
    return Plan(
        (status.with_notice(again),),
        events=(event,),
        why=why,
        wake_at_ms=next_notice_at_ms(now.ms, again.times),
    )


def _start(view: View) -> Iterable[str]:
    return (
        node
        for node, entry in view.nodes.items()
        if entry.status is not None and entry.status.notice is not None
    )


RECONCILER = Reconciler(NAME, "watcher", {}, decide, _start)
