"""What an operator changes on a node: the labels it is granted, and its taints."""

from collections.abc import Mapping

import msgspec

from rota.apiserver import access, fields
from rota.apiserver.access import Action, Caller
from rota.apiserver.admit_namespaces import taint_node
from rota.apiserver.finding import find_node
from rota.model.errors import BadField, NotFound
from rota.model.limits import LABELS_MAX, NAME_LENGTH_MAX
from rota.model.plan import EventRecord, Plan
from rota.model.view import View

_LABEL_FIELDS, _TAINT_FIELDS = ("label", "unlabel"), ("taint", "untaint")
_LABEL_HINT = 'write {"label": {"pool": "prod"}} or {"unlabel": ["pool"]}'


def change_node(view: View, ref: str, body: object, caller: Caller) -> Plan:
    said = fields.known_fields(body, (*_TAINT_FIELDS, *_LABEL_FIELDS))
    plans = []
    if not any(name in said for name in _LABEL_FIELDS) or any(name in said for name in _TAINT_FIELDS):
        plans.append(taint_node(view, ref, {name: said[name] for name in _TAINT_FIELDS if name in said}, caller))
    if any(name in said for name in _LABEL_FIELDS):
        plans.append(label_node(view, ref, said, caller))
    return Plan(
        tuple(record for plan in plans for record in plan.puts),
        events=tuple(event for plan in plans for event in plan.events),
        why="; ".join(plan.why for plan in plans if plan.why),
        answer=plans[0].answer,
        fenced=True,
    )


def label_node(view: View, ref: str, said: Mapping[str, object], caller: Caller) -> Plan:
    """`label` grants, or gives a key another value; `unlabel` takes away by key what was granted."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    added, gone = fields.granted_labels("label", said.get("label", {})), _parse_keys(said.get("unlabel", []))
    if not added and not gone:
        raise BadField("label", "nothing is to change", _LABEL_HINT)
    node = find_node(view, ref)
    before = node.spec.labels
    missing = [key for key in gone if key not in before]
    if missing:
        has = ", ".join(before) or "none"
        reason = f"node {node.spec.name} was not granted the label {missing[0]}"
        raise NotFound(reason, field="unlabel", hint=f"it was granted {has}; its agent declares the others")
    labels = {key: value for key, value in before.items() if key not in gone} | added
    if len(labels) > LABELS_MAX:
        raise BadField("label", f"the node would have {len(labels)}", f"a node has at most {LABELS_MAX}")
    if labels == before:
        return Plan(answer=node.spec.id)
    named = ", ".join(f"{key}={value}" for key, value in labels.items()) or "none"
    why = f"{caller.name} sets the granted labels of node {node.spec.name}: {named}"
    event = EventRecord("node.changed", why, node=node.spec.id)
    return Plan(
        (msgspec.structs.replace(node.spec, labels=labels),), events=(event,), why=why, answer=node.spec.id
    )


def _parse_keys(value: object) -> list[str]:
    if not isinstance(value, list) or len(value) > LABELS_MAX:
        raise BadField("unlabel", "is not a short list", _LABEL_HINT)
    keys = [fields.text("unlabel", one, NAME_LENGTH_MAX) for one in value]
    for key in keys:
        fields.require_grantable("unlabel", key)
    return keys
