"""Requests about nodes: enroll, cordon, drain, open, label, taint, revoke and delete.

Also the two that concern many nodes: the release of the brake, and the interval of load reports.
"""

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
from rota.model.limits import (
    DRAIN_SECONDS_MAX,
    LABEL_VALUE_MAX,
    LABELS_MAX,
    NAME_LENGTH_MAX,
    REPORT_LEAST_MS,
    REPORT_MOST_MS,
)
from rota.model.names import LABEL, is_label
from rota.model.node import Connection, Eligibility, NodeIntent, NodeSpec, ReportInterval
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import NodeView, View, keys_of_node

_LABEL_FIELDS, _TAINT_FIELDS = ("label", "unlabel"), ("taint", "untaint")
_LABEL_HINT = 'write {"label": {"pool": "prod"}} or {"unlabel": ["pool"]}'
_NODES_NAMED_MAX = 8  # in one sentence
TAINTS_MAX = 16  # of a node: each is compared with the tolerations of every shape
_TAINT_HINT = "write KEY or KEY=VALUE, as dedicated=ci"


class DrainDeadline(NamedTuple):
    """When tasks that still run on a draining node are evicted; None: they may end."""

    by_ms: int | None = None
    everything: bool = False  # also those that are otherwise left to end
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
    intent = node.intent or NodeIntent(node.spec.id)
    changed = msgspec.structs.replace(
        intent, eligibility=eligibility, drain_by_ms=drain.by_ms, drain_all=drain.everything
    )
    if intent == changed:
        return Plan(answer=node.spec.id, fenced=True)
    why = f"{caller.name} sets node {node.spec.name} to {eligibility}{drain.text}"
    events = [EventRecord("node.changed", why, node=node.spec.id, state=eligibility.value)]
    # No later record would report it: the event that a node is drained comes with the end of its last task.
    if changed.drains and not node.assigned:
        drained = f"node {node.spec.name} is drained"
        events.append(
            EventRecord("node.changed", drained, node=node.spec.id, state=Eligibility.DRAINED.value)
        )
    return Plan((changed,), events=tuple(events), why=why, answer=node.spec.id)


def drain_node(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[NodeId]:
    """Drain a node. Without a deadline its tasks may end; `force` without one evicts them immediately."""
    given_fields = fields.known_fields(body, ("deadline_seconds", "force"))
    everything = fields.flag("force", given_fields.get("force", False))
    deadline = given_fields.get("deadline_seconds")
    if deadline is None and not everything:
        return set_node_eligibility(view, ref, Eligibility.DRAINING, caller)
    seconds = fields.number(
        "deadline_seconds", parse_seconds, 0 if deadline is None else deadline, DRAIN_SECONDS_MAX
    )
    text = f" within {seconds:g} s" if seconds else " immediately"
    drain = DrainDeadline(now.ms + round(seconds * 1000), everything, text)
    return set_node_eligibility(view, ref, Eligibility.DRAINING, caller, drain)


def delete_node(view: View, ref: str, caller: Caller) -> Plan[NodeId]:
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    is_down = node.status is None or node.status.state in (NodeState.LOST, NodeState.LEFT)
    # A connected or suspect node may run tasks that nothing could account for once its records are gone.
    if node.connection is Connection.UP or not is_down:
        hint = "stop its agent first; a node is deleted when it is lost or has left"
        raise Conflict(f"node {node.spec.name} is not down", hint=hint)
    _refuse_while_leased(view, node)
    return delete_node_records(node, f"{caller.name} deletes node {node.spec.name}")


def _refuse_while_leased(view: View, node: NodeView) -> None:
    """Refuse while tasks may run there under a lease, whose end is computed from the record of the node."""
    specs = [view.jobs[job].spec for job in dict.fromkeys(job for job, _ in node.assigned)]
    if specs:
        longest_ms = max((spec.lease_ms or 0) + spec.lease_margin_ms for spec in specs)
        hint = f"delete it when their leases have ended, {longest_ms / 1000:g} s after its last message"
        raise Conflict(
            f"node {node.spec.name} may still run {len(node.assigned)} tasks under a lease", hint=hint
        )


def delete_node_records(node: NodeView, why: str) -> Plan[NodeId]:
    event = EventRecord("node.changed", why, node=node.spec.id)
    # A delete wakes no reconciler: the intent is written first, so that tasks placed there are decided again.
    last_intent = node.intent or NodeIntent(node.spec.id)
    return Plan(
        (last_intent,), deletes=keys_of_node(node.spec.id), events=(event,), why=why, answer=node.spec.id
    )


def enroll_node(
    view: View, name: str, labels: Mapping[str, str], cluster: str, now: Instant
) -> Plan[NodeSpec]:
    """Create a node with an id that was never used before, and a name that no other node has."""
    check_enrolling_machine(view, cluster, labels)
    # Ids are never reused: a certificate names one, and an old certificate must not become another node.
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
    """Refuse the certificate of a node from now on.

    `usable_ms` is how long a certificate that is signed now could be shown or renewed. The record is kept for
    that long; after it no certificate of the node is valid, and the record can be deleted.
    """
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    if node.spec.dialled is not None:
        hint = "revoke the token with which its worker registers: rota token revoke"
        raise Conflict(f"node {node.spec.name} is dialled by the server, and has no certificate", hint=hint)
    if node.revoked:
        return Plan(answer=node.spec.id, fenced=True)
    intent = msgspec.structs.replace(
        node.intent or NodeIntent(node.spec.id),
        eligibility=Eligibility.REVOKED,
        drain_by_ms=None,
        drain_all=False,
        revoked_until_ms=now.wall_ms + usable_ms,
    )
    why = f"{caller.name} revokes node {node.spec.name}"
    event = EventRecord("node.revoked", why, node=node.spec.id, state=Eligibility.REVOKED.value)
    return Plan((intent,), events=(event,), why=why, answer=node.spec.id)


def change_node(view: View, ref: str, body: object, caller: Caller) -> Plan[NodeId]:
    given_fields = fields.known_fields(body, (*_TAINT_FIELDS, *_LABEL_FIELDS))
    plans = []
    if not any(name in given_fields for name in _LABEL_FIELDS) or any(
        name in given_fields for name in _TAINT_FIELDS
    ):
        plans.append(
            taint_node(
                view,
                ref,
                {name: given_fields[name] for name in _TAINT_FIELDS if name in given_fields},
                caller,
            )
        )
    if any(name in given_fields for name in _LABEL_FIELDS):
        plans.append(label_node(view, ref, given_fields, caller))
    return Plan(
        tuple(record for plan in plans for record in plan.puts),
        events=tuple(event for plan in plans for event in plan.events),
        why="; ".join(plan.why for plan in plans if plan.why),
        answer=plans[0].answer,
        fenced=True,
    )


def label_node(view: View, ref: str, given_fields: Mapping[str, object], caller: Caller) -> Plan[NodeId]:
    """Change the granted labels of a node: `label` adds or replaces values, `unlabel` removes keys."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    added = fields.granted_labels("label", given_fields.get("label", {}))
    removed = _parse_keys(given_fields.get("unlabel", []))
    if not added and not removed:
        raise BadField("label", "nothing is to change", _LABEL_HINT)
    node = find_node(view, ref)
    before = node.spec.labels
    missing = [key for key in removed if key not in before]
    if missing:
        has = ", ".join(before) or "none"
        reason = f"node {node.spec.name} was not granted the label {missing[0]}"
        raise NotFound(reason, field="unlabel", hint=f"it was granted {has}; its agent declares the others")
    labels = {key: value for key, value in before.items() if key not in removed} | added
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
    keys = [fields.text("unlabel", key, NAME_LENGTH_MAX) for key in value]
    for key in keys:
        fields.require_grantable("unlabel", key)
    return keys


def taint_node(view: View, ref: str, body: object, caller: Caller) -> Plan[NodeId]:
    """Change the taints of a node: `taint` adds or replaces, `untaint` removes by key or by key and value."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    given_fields = fields.known_fields(body, ("taint", "untaint"))
    added, removed = _parse_taints(given_fields, "taint"), _parse_taints(given_fields, "untaint")
    if not added and not removed:
        raise BadField("taint", "nothing is to change", 'write {"taint": ["dedicated=ci"]}')
    node = find_node(view, ref)
    intent = node.intent or NodeIntent(node.spec.id)
    missing = [term for term in removed if not any(_matches(term, taint) for taint in intent.taints)]
    if missing:
        has = ", ".join(intent.taints) or "none"
        raise NotFound(
            f"node {node.spec.name} has no taint {missing[0]}", field="untaint", hint=f"it has {has}"
        )
    kept = {
        _taint_key(taint): taint
        for taint in intent.taints
        if not any(_matches(term, taint) for term in removed)
    }
    taints = tuple(sorted((kept | {_taint_key(taint): taint for taint in added}).values()))
    if len(taints) > TAINTS_MAX:
        raise BadField("taint", f"the node would have {len(taints)}", f"a node has at most {TAINTS_MAX}")
    if taints == intent.taints:
        return Plan(answer=node.spec.id, fenced=True)
    why = f"{caller.name} sets the taints of node {node.spec.name}: {', '.join(taints) or 'none'}"
    event = EventRecord("node.changed", why, node=node.spec.id, state=intent.eligibility.value)
    changed = msgspec.structs.replace(intent, taints=taints)
    return Plan((changed,), events=(event,), why=why, answer=node.spec.id)


def _parse_taints(given_fields: Mapping[str, object], field: str) -> list[str]:
    value = given_fields.get(field, [])
    if not isinstance(value, list) or len(value) > TAINTS_MAX:
        raise BadField(field, "is not a short list", 'write {"taint": ["dedicated=ci"]}')
    return [_parse_taint(field, taint) for taint in value]


def _parse_taint(field: str, value: object) -> str:
    given = fields.text(field, value, NAME_LENGTH_MAX + LABEL_VALUE_MAX)
    key, sign, named = given.partition("=")
    bad_value = sign and LABEL.fullmatch(named) is None
    if not is_label(key) or bad_value:
        raise BadField(field, f"'{fields.printable(given)}' is not a taint", _TAINT_HINT)
    return given


def _taint_key(taint: str) -> str:
    return taint.partition("=")[0]


def _matches(term: str, taint: str) -> bool:
    return term in (taint, _taint_key(taint))


def release_brake(view: View, body: object, caller: Caller, now: Instant) -> Plan[list[str]]:
    """Confirm that silent nodes are lost: those named, or all. Their tasks may then start elsewhere.

    The confirmation carries the time: it does not hold for a node that reports later and is silent again.
    """
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    named = fields.known_fields(body, ("nodes",)).get("nodes")
    chosen = list(view.nodes.values()) if named is None else _find_named_nodes(view, named)
    # Only suspect ones: confirming a node that reports again by now would declare a healthy node lost.
    silent = [node for node in chosen if node.status is not None and node.status.state is NodeState.SUSPECT]
    if not silent:
        raise Conflict("none of these nodes is silent", hint="see rota node ls")
    puts = [
        msgspec.structs.replace(node.intent or NodeIntent(node.spec.id), gone_at_ms=now.ms) for node in silent
    ]
    names = sorted(node.spec.name for node in silent)
    listed = ", ".join(names[:_NODES_NAMED_MAX]) + (", ..." if len(names) > _NODES_NAMED_MAX else "")
    nodes = "these nodes are" if len(names) > 1 else "this node is"
    why = f"{caller.name} confirms that {nodes} lost: {listed}"
    event = EventRecord("cluster.brake", why, state="released")
    return Plan(tuple(puts), events=(event,), why=why, answer=names)


def _find_named_nodes(view: View, value: object) -> list[NodeView]:
    if not isinstance(value, list) or not all(isinstance(ref, str) for ref in value):
        raise BadField("nodes", "is not a list of names", 'write ["a", "b"], or leave it out for all')
    return [find_node(view, ref) for ref in value]


def set_report_interval(
    before: ReportInterval, least_ms: int, most_ms: int, caller: Caller
) -> Plan[ReportInterval]:
    """Set the bounds of the load report interval; 0 for both: as configured."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    hint = f"write {REPORT_LEAST_MS} to {REPORT_MOST_MS}, or 0 for both"
    if (least_ms, most_ms) != (0, 0):
        for field, value in (("least_ms", least_ms), ("most_ms", most_ms)):
            if not REPORT_LEAST_MS <= value <= REPORT_MOST_MS:
                raise BadField(field, f"{value} ms is out of range", hint)
        if least_ms > most_ms:
            raise BadField("least_ms", f"{least_ms} ms is more than most_ms, {most_ms} ms", hint)
    interval = ReportInterval(least_ms, most_ms)
    if interval == before:
        return Plan(answer=interval, fenced=True)
    text = f"every {least_ms / 1000:g} to {most_ms / 1000:g} s" if most_ms else "as configured"
    why = f"{caller.name} sets the load reports of nodes to {text}"
    return Plan((interval,), events=(EventRecord("node.pace", why),), why=why, answer=interval)
