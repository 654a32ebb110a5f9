"""The wish that a node's certificate opens nothing any more."""

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.finding import find_node
from rota.model.errors import Conflict
from rota.model.node import Eligibility, NodeIntent
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View


def revoke_node(view: View, ref: str, caller: Caller, now: Instant, usable_ms: int) -> Plan:
    """`usable_ms`: for how long a certificate that is signed now could be shown or renewed.

    The node is kept for that long: then no certificate of it is of any use, and it can be forgotten.
    """
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    if node.spec.dialled is not None:
        hint = "revoke the token with which its worker registers: rota token revoke"
        raise Conflict(f"node {node.spec.name} is dialled, and has no certificate", hint=hint)
    if node.revoked:
        return Plan(answer=node.spec.id, fenced=True)
    wish = msgspec.structs.replace(
        node.intent or NodeIntent(node.spec.id),
        eligibility=Eligibility.REVOKED,
        drain_by_ms=None,
        drain_all=False,
        revoked_until_ms=now.wall_ms + usable_ms,
    )
    why = f"{caller.name} revokes node {node.spec.name}"
    event = EventRecord("node.revoked", why, node=node.spec.id, state=Eligibility.REVOKED.value)
    return Plan((wish,), events=(event,), why=why, answer=node.spec.id)
