"""Quota, weight, defaults and bounds of a namespace: a request + the view -> a Plan, or a refusal."""

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.spec import fields
from rota.apiserver.spec.quantities import QUOTA_PARSERS, TASK_PARSERS, parse_bounds, parse_quantities
from rota.model.amounts import parse_count
from rota.model.errors import NotFound, QueueFull
from rota.model.namespace import NamespaceRecord
from rota.model.plan import EventRecord, Plan
from rota.model.view import View

NAMESPACES_MAX = 10_000  # each is a record that stays until it is deleted
WEIGHT_MAX = 1000  # relative to 1, the default: for more there are quotas


def set_namespace(view: View, name: str, body: object, caller: Caller) -> Plan[str]:
    """Replace quota and weight as a whole: what is left out is no quota, and a weight of 1.

    Defaults and bounds stay when they are left out, since an older client does not know them.
    """
    access.require_cluster_wide(caller, Action.CHANGE_NAMESPACES)
    given = fields.known_fields(body, ("quota", "weight", "defaults", "bounds"))
    weight = fields.number("weight", parse_count, given.get("weight", 1), 1, WEIGHT_MAX)
    quota = parse_quantities("quota", given.get("quota", {}), QUOTA_PARSERS)
    before = view.namespaces.get(name, NamespaceRecord(name))
    defaults = before.defaults if given.get("defaults") is None else _parse_defaults(given["defaults"])
    bounds = before.bounds if given.get("bounds") is None else parse_bounds(given["bounds"])
    namespace = NamespaceRecord(fields.name("name", name), quota, weight, defaults, bounds)
    if namespace.name not in view.namespaces and len(view.namespaces) >= NAMESPACES_MAX:
        raise QueueFull(f"there are {len(view.namespaces)} namespaces already", field="name")
    why = f"{caller.name} sets quota and weight of namespace {namespace.name}"
    if defaults != before.defaults:
        why += " and the defaults of its tasks"
    if bounds != before.bounds:
        why += " and the bounds of its jobs"
    event = EventRecord("namespace.changed", why, namespace=namespace.name)
    return Plan((namespace,), events=(event,), why=why, answer=namespace.name)


def _parse_defaults(value: object) -> dict[str, int]:
    """The default needs; 0 of a resource is dropped, since it is what a job has without a default."""
    return {
        name: amount for name, amount in parse_quantities("defaults", value, TASK_PARSERS).items() if amount
    }


def delete_namespace(view: View, name: str, caller: Caller) -> Plan[str]:
    """Delete the record of a namespace only: its jobs continue, without a quota."""
    access.require_cluster_wide(caller, Action.CHANGE_NAMESPACES)
    if name not in view.namespaces:
        hint = "see what there is: rota namespace ls"
        raise NotFound(f"nothing is set for namespace '{fields.printable(name)}'", hint=hint)
    # A delete wakes no reconciler: an empty record is written first, so that jobs that wait for the quota
    # are decided again.
    empty = NamespaceRecord(name)
    why = f"{caller.name} removes quota, weight, defaults and bounds of namespace {name}"
    event = EventRecord("namespace.changed", why, namespace=name)
    return Plan((empty,), deletes=(empty.key,), events=(event,), why=why, answer=name)
