"""An operator's wish for a namespace's share or a node's taints + the view -> a Plan, or Rejected."""

from collections.abc import Mapping

import msgspec

from rota.apiserver import access, fields
from rota.apiserver.access import Action, Caller
from rota.apiserver.bounds import parse_bounds
from rota.apiserver.finding import find_node
from rota.apiserver.quantities import QUOTA_PARSERS, TASK_PARSERS, parse_quantities
from rota.model.amounts import parse_count
from rota.model.errors import BadField, NotFound, QueueFull
from rota.model.limits import LABEL_VALUE_MAX, NAME_LENGTH_MAX
from rota.model.names import LABEL, is_label
from rota.model.namespace import NamespaceRecord
from rota.model.node import NodeIntent
from rota.model.plan import EventRecord, Plan
from rota.model.view import View

NAMESPACES_MAX = 10_000  # each is one record for ever
WEIGHT_MAX = 1000  # against one that has 1: more is a quota in disguise
TAINTS_MAX = 16  # of a node: each is compared with every shape's tolerations
_TAINT_HINT = "write KEY or KEY=VALUE, as dedicated=ci"


def set_namespace(view: View, name: str, body: object, caller: Caller) -> Plan:
    """The whole of it: a quota that is left out is none, a weight that is left out is 1.

    Not so defaults and bounds, which stay as they are: a client that leaves them out may not know of them.
    """
    access.require_cluster_wide(caller, Action.CHANGE_NAMESPACES)
    said = fields.known_fields(body, ("quota", "weight", "defaults", "bounds"))
    weight = fields.number("weight", parse_count, said.get("weight", 1), 1, WEIGHT_MAX)
    quota = parse_quantities("quota", said.get("quota", {}), QUOTA_PARSERS)
    before = view.namespaces.get(name, NamespaceRecord(name))
    defaults = before.defaults if said.get("defaults") is None else _parse_defaults(said["defaults"])
    bounds = before.bounds if said.get("bounds") is None else parse_bounds(said["bounds"])
    namespace = NamespaceRecord(fields.name("name", name), quota, weight, defaults, bounds)
    if namespace.name not in view.namespaces and len(view.namespaces) >= NAMESPACES_MAX:
        raise QueueFull(f"there are {len(view.namespaces)} namespaces already", field="name")
    why = f"{caller.name} sets what namespace {namespace.name} may hold"
    if defaults != before.defaults:
        why += " and what its tasks ask for by default"
    if bounds != before.bounds:
        why += " and what its jobs are bound to"
    event = EventRecord("namespace.changed", why, namespace=namespace.name)
    return Plan((namespace,), events=(event,), why=why, answer=namespace.name)


def _parse_defaults(value: object) -> dict[str, int]:
    """0 of something is what a job that says nothing asks for anyway."""
    return {name: amount for name, amount in parse_quantities("defaults", value, TASK_PARSERS).items() if amount}


def delete_namespace(view: View, name: str, caller: Caller) -> Plan:
    """Of its record only: its jobs go on, without a quota."""
    access.require_cluster_wide(caller, Action.CHANGE_NAMESPACES)
    if name not in view.namespaces:
        hint = "see what there is: rota namespace ls"
        raise NotFound(f"nothing is set for a namespace '{fields.printable(name)}'", hint=hint)
    free = NamespaceRecord(name)  # written first, so that whoever waits for its quota is looked at
    why = f"{caller.name} takes quota, weight, defaults and bounds off namespace {name}"
    event = EventRecord("namespace.changed", why, namespace=name)
    return Plan((free,), deletes=(free.key,), events=(event,), why=why, answer=name)


def taint_node(view: View, ref: str, body: object, caller: Caller) -> Plan:
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
    kept = {_taint_key(taint): taint for taint in wish.taints if not any(_matches(one, taint) for one in gone)}
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
