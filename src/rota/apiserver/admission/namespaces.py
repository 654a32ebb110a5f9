"""An operator's wish for a namespace's share or a node's taints + the view -> a Plan, or Rejected."""

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.spec import fields
from rota.apiserver.spec.namespace_bounds import parse_bounds
from rota.apiserver.spec.quantities import QUOTA_PARSERS, TASK_PARSERS, parse_quantities
from rota.model.amounts import parse_count
from rota.model.errors import NotFound, QueueFull
from rota.model.namespace import NamespaceRecord
from rota.model.plan import EventRecord, Plan
from rota.model.view import View

NAMESPACES_MAX = 10_000  # each is one record for ever
WEIGHT_MAX = 1000  # against one that has 1: more is a quota in disguise


def set_namespace(view: View, name: str, body: object, caller: Caller) -> Plan[str]:
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
    return {
        name: amount for name, amount in parse_quantities("defaults", value, TASK_PARSERS).items() if amount
    }


def delete_namespace(view: View, name: str, caller: Caller) -> Plan[str]:
    """Of its record only: its jobs go on, without a quota."""
    access.require_cluster_wide(caller, Action.CHANGE_NAMESPACES)
    if name not in view.namespaces:
        hint = "see what there is: rota namespace ls"
        raise NotFound(f"nothing is set for a namespace '{fields.printable(name)}'", hint=hint)
    free = NamespaceRecord(name)  # written first, so that whoever waits for its quota is looked at
    why = f"{caller.name} takes quota, weight, defaults and bounds off namespace {name}"
    event = EventRecord("namespace.changed", why, namespace=name)
    return Plan((free,), deletes=(free.key,), events=(event,), why=why, answer=name)
