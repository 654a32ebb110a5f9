"""The word that nodes which are silent are gone: their work may be started elsewhere."""

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.lookup import find_node
from rota.apiserver.spec import fields
from rota.model.errors import BadField, Conflict
from rota.model.lifecycle import NodeState
from rota.model.node import NodeIntent
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import NodeView, View

_NODES_NAMED_MAX = 8  # nodes named in a sentence


def release_brake(view: View, body: object, caller: Caller, now: Instant) -> Plan[list[str]]:
    """Of the nodes that are named, or of all: it holds for the silence that each keeps now."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    named = fields.known_fields(body, ("nodes",)).get("nodes")
    chosen = list(view.nodes.values()) if named is None else _find_nodes(view, named)
    silent = [node for node in chosen if node.status is not None and node.status.state is NodeState.SUSPECT]
    if not silent:
        raise Conflict("none of these nodes is silent", hint="see rota node ls")
    puts = [
        msgspec.structs.replace(node.intent or NodeIntent(node.spec.id), gone_at_ms=now.ms) for node in silent
    ]
    names = sorted(node.spec.name for node in silent)
    told = ", ".join(names[:_NODES_NAMED_MAX]) + (", ..." if len(names) > _NODES_NAMED_MAX else "")
    why = f"{caller.name} says that {'these nodes are' if len(names) > 1 else 'this node is'} gone: {told}"
    event = EventRecord("cluster.brake", why, state="released")
    return Plan(tuple(puts), events=(event,), why=why, answer=names)


def _find_nodes(view: View, value: object) -> list[NodeView]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadField("nodes", "is not a list of names", 'write ["a", "b"], or leave it out for all')
    return [find_node(view, ref) for ref in value]
