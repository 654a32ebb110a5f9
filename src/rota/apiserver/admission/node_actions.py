"""Requests about nodes: enroll, cordon, drain, open, label, taint, revoke and delete."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.clusters import check_enrolling_machine
from rota.apiserver.lookup import find_node
from rota.apiserver.spec import fields
from rota.model.amounts import parse_seconds
from rota.model.errors import BadField, Conflict, NotFound
from rota.model.ids import NodeId
from rota.model.job import Counters
from rota.model.lifecycle import NodeState
from rota.model.limits import DRAIN_SECONDS_MAX, LABEL_VALUE_MAX, LABELS_MAX, NAME_LENGTH_MAX
from rota.model.names import LABEL, is_label
from rota.model.node import Connection, Eligibility, NodeIntent, NodeSpec
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import NodeView, View, keys_of_node

_LABEL_FIELDS, _TAINT_FIELDS = ("label", "unlabel"), ("taint", "untaint")
_LABEL_HINT = 'write {"label": {"pool": "prod"}} or {"unlabel": ["pool"]}'
TAINTS_MAX = 16  # of a node: each is compared with every shape's tolerations
_TAINT_HINT = "write KEY or KEY=VALUE, as dedicated=ci"


class DrainDeadline(NamedTuple):
    """When what still runs on a node has to go; None: it may end."""

    by_ms: int | None = None
    everything: bool = False
    text: str = ""


NO_DRAIN_DEADLINE = DrainDeadline()


def set_node_eligibility(
    view: View, ref: str, eligibility: Eligibility, caller: Caller, drain: DrainDeadline = NO_DRAIN_DEADLINE
) -> Plan[NodeId]:
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    if node.revoked:
        hint = "its machine can join as a new node: rota node token"
        raise Conflict(f"node {node.spec.name} was revoked", hint=hint)
    wish = node.intent or NodeIntent(node.spec.id)
    changed = msgspec.structs.replace(
        wish, eligibility=eligibility, drain_by_ms=drain.by_ms, drain_all=drain.everything
    )
    if wish == changed:
        return Plan(answer=node.spec.id, fenced=True)
    why = f"{caller.name} wants node {node.spec.name} to be {eligibility}{drain.text}"
    events = [EventRecord("node.changed", why, node=node.spec.id, state=eligibility.value)]
    if changed.drains and not node.assigned:
        empty = f"node {node.spec.name} is drained"
        events.append(EventRecord("node.changed", empty, node=node.spec.id, state=Eligibility.DRAINED.value))
    return Plan((changed,), events=tuple(events), why=why, answer=node.spec.id)


def drain_node(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[NodeId]:
    """Without a deadline what runs there may end; `force` is at once, unless there is one."""
    said = fields.known_fields(body, ("deadline_seconds", "force"))
    everything = fields.flag("force", said.get("force", False))
    within = said.get("deadline_seconds", None)
    if within is None and not everything:
        return set_node_eligibility(view, ref, Eligibility.DRAINING, caller)
    seconds = fields.number(
        "deadline_seconds", parse_seconds, 0 if within is None else within, DRAIN_SECONDS_MAX
    )
    told = f" within {seconds:g} s" if seconds else " at once"
    drain = DrainDeadline(now.ms + round(seconds * 1000), everything, told)
    return set_node_eligibility(view, ref, Eligibility.DRAINING, caller, drain)


def delete_node(view: View, ref: str, caller: Caller) -> Plan[NodeId]:
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    gone = node.status is None or node.status.state in (NodeState.LOST, NodeState.LEFT)
    if node.connection is Connection.UP or not gone:
        hint = "stop its agent first; a node is deleted when it is lost or has left"
        raise Conflict(f"node {node.spec.name} is still there", hint=hint)
    _refuse_while_leased(view, node)
    return delete_node_records(node, f"{caller.name} deletes node {node.spec.name}")


def _refuse_while_leased(view: View, node: NodeView) -> None:
    """Refuse while tasks may run there under a lease: its end is counted by the node's record."""
    specs = [view.jobs[job].spec for job in dict.fromkeys(job for job, _ in node.assigned)]
    if specs:
        longest_ms = max((spec.lease_ms or 0) + spec.lease_margin_ms for spec in specs)
        hint = f"delete it when their leases have ended, {longest_ms / 1000:g} s after it was heard last"
        raise Conflict(
            f"node {node.spec.name} may still run {len(node.assigned)} tasks under a lease", hint=hint
        )


def delete_node_records(node: NodeView, why: str) -> Plan[NodeId]:
    event = EventRecord("node.changed", why, node=node.spec.id)
    last = node.intent or NodeIntent(
        node.spec.id
    )  # written first, so that whoever had a task for it is looked at
    return Plan((last,), deletes=keys_of_node(node.spec.id), events=(event,), why=why, answer=node.spec.id)


def enroll_node(
    view: View, name: str, labels: Mapping[str, str], cluster: str, now: Instant
) -> Plan[NodeSpec]:
    """A new node with a number never used before, and a name nobody else has."""
    check_enrolling_machine(view, cluster, labels)
    number = view.counters.nodes + 1
    spec = NodeSpec(
        NodeId(f"n{number}"), _unused_name(view, name), cluster, dict(labels), joined_at_ms=now.wall_ms
    )
    why = f"node {spec.name} is enrolled in cluster {cluster} as {spec.id}"
    event = EventRecord("node.joined", why, node=spec.id)
    return Plan((spec, Counters(view.counters.jobs, number)), events=(event,), why=why, answer=spec)


def _unused_name(view: View, name: str) -> str:
    taken = {node.spec.name for node in view.nodes.values()} | set(view.nodes)
    if name not in taken:
        return name
    short = name[: NAME_LENGTH_MAX - 8]
    number = 2
    while f"{short}-{number}" in taken:
        number += 1
    return f"{short}-{number}"


def revoke_node(view: View, ref: str, caller: Caller, now: Instant, usable_ms: int) -> Plan[NodeId]:
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


def change_node(view: View, ref: str, body: object, caller: Caller) -> Plan[NodeId]:
    said = fields.known_fields(body, (*_TAINT_FIELDS, *_LABEL_FIELDS))
    plans = []
    if not any(name in said for name in _LABEL_FIELDS) or any(name in said for name in _TAINT_FIELDS):
        plans.append(
            taint_node(view, ref, {name: said[name] for name in _TAINT_FIELDS if name in said}, caller)
        )
    if any(name in said for name in _LABEL_FIELDS):
        plans.append(label_node(view, ref, said, caller))
    return Plan(
        tuple(record for plan in plans for record in plan.puts),
        events=tuple(event for plan in plans for event in plan.events),
        why="; ".join(plan.why for plan in plans if plan.why),
        answer=plans[0].answer,
        fenced=True,
    )


def label_node(view: View, ref: str, said: Mapping[str, object], caller: Caller) -> Plan[NodeId]:
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


def taint_node(view: View, ref: str, body: object, caller: Caller) -> Plan[NodeId]:
    """`taint` adds, or gives a key another value; `untaint` takes away by key, or by key and value."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    said = fields.known_fields(body, ("taint", "untaint"))
    added, gone = _parse_taints(said, "taint"), _parse_taints(said, "untaint")
    if not added and not gone:
        raise BadField("taint", "nothing is to change", 'write {"taint": ["dedicated=ci"]}')
    node = find_node(view, ref)
    wish = node.intent or NodeIntent(node.spec.id)
    missing = [one for one in gone if not any(_matches(one, taint) for taint in wish.taints)]
    if missing:
        has = ", ".join(wish.taints) or "none"
        raise NotFound(
            f"node {node.spec.name} has no taint {missing[0]}", field="untaint", hint=f"it has {has}"
        )
    kept = {
        _taint_key(taint): taint for taint in wish.taints if not any(_matches(one, taint) for one in gone)
    }
    taints = tuple(sorted((kept | {_taint_key(taint): taint for taint in added}).values()))
    if len(taints) > TAINTS_MAX:
        raise BadField("taint", f"the node would have {len(taints)}", f"a node has at most {TAINTS_MAX}")
    if taints == wish.taints:
        return Plan(answer=node.spec.id, fenced=True)
    why = f"{caller.name} sets the taints of node {node.spec.name}: {', '.join(taints) or 'none'}"
    event = EventRecord("node.changed", why, node=node.spec.id, state=wish.eligibility.value)
    changed = msgspec.structs.replace(wish, taints=taints)
    return Plan((changed,), events=(event,), why=why, answer=node.spec.id)


def _parse_taints(said: Mapping[str, object], field: str) -> list[str]:
    value = said.get(field, [])
    if not isinstance(value, list) or len(value) > TAINTS_MAX:
        raise BadField(field, "is not a short list", 'write {"taint": ["dedicated=ci"]}')
    return [_parse_taint(field, one) for one in value]


def _parse_taint(field: str, value: object) -> str:
    given = fields.text(field, value, NAME_LENGTH_MAX + LABEL_VALUE_MAX)
    key, sign, named = given.partition("=")
    bad_value = sign and LABEL.fullmatch(named) is None
    if not is_label(key) or bad_value:
        raise BadField(field, f"'{fields.printable(given)}' is not a taint", _TAINT_HINT)
    return given


def _taint_key(taint: str) -> str:
    return taint.partition("=")[0]


def _matches(said: str, taint: str) -> bool:
    return said in (taint, _taint_key(taint))
