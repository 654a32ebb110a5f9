"""A revoked node + the time -> deleted, once none of its certificates can be used or renewed any more.

Until then the record keeps the node refused. Later it is refused as an unknown node, and node ids are never
reused.
"""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler, own_id
from rota.model.ids import NodeId
from rota.model.lifecycle import NODE_PRESENT
from rota.model.limits import REVOKED_LOOK_MS
from rota.model.node import NodeIntent
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, wake_at
from rota.model.view import View, keys_of_node
from rota.rules.reconciler_names import ReconcilerName

NAME = ReconcilerName.REVOCATIONS
_SOON_MS = 1_000  # between two checks whether the attempts of an expired node are lost


def decide(view: View, key: str, now: Instant) -> Plan:
    entry = view.nodes.get(NodeId(key))
    if entry is None or entry.intent is None or not entry.revoked:
        return NO_CHANGE
    left_ms = (entry.intent.revoked_until_ms or 0) - now.wall_ms
    if left_ms > 0:
        # The wall clock may jump, so it is polled instead of setting a timer for the date.
        return wake_at(now.ms + min(left_ms, REVOKED_LOOK_MS))
    # Deleted last: while attempts are assigned to it, their loss still has to be recorded.
    if entry.assigned or (entry.status is not None and entry.status.state in NODE_PRESENT):
        return wake_at(now.ms + _SOON_MS)
    why = f"revoked node {entry.spec.name} is deleted: its certificates have expired"
    event = EventRecord("node.changed", why, node=entry.spec.id)
    return Plan((entry.intent,), deletes=keys_of_node(entry.spec.id), events=(event,), why=why)


def _start(view: View) -> Iterable[str]:
    return [node for node, entry in view.nodes.items() if entry.revoked]


RECONCILER = Reconciler(NAME, "apiserver", {NodeIntent: own_id}, decide, _start)
