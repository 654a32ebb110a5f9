"""The body of a plan -> the job it would make, and how the cluster is to be thought of."""

from typing import NamedTuple

from rota.apiserver import access, fields
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission import submit
from rota.apiserver.afters import others_first
from rota.apiserver.finding import find_node
from rota.apiserver.quantities import MACHINE, quantities
from rota.model.amounts import parse_count
from rota.model.errors import BadField
from rota.model.ids import NodeId
from rota.model.job import JobSpec
from rota.model.outlook import NewNode, Outlook, WhatIf
from rota.model.plan import Instant
from rota.model.view import View

NEW_NODES_MAX = 1000  # in one question: its answer takes as long as with that many nodes
WITHOUT_MAX = 1000
_ADD_HINT = 'write [{"count": 2, "capacity": {"cpu": 8, "memory": "32g"}, "labels": {"region": "eu"}}]'


class Asked(NamedTuple):
    spec: JobSpec
    what_if: WhatIf
    before: Outlook | None = None  # what other jobs make certain, whatever the nodes offer


THOUGHT_OF = ("add_nodes", "without", "scale")  # of the body: how the cluster is thought of


class AskedDrain(NamedTuple):
    nodes: tuple[NodeId, ...]
    everything: bool


def planned(view: View, body: object, caller: Caller, now: Instant) -> Asked:
    """As a submit would be understood, with everything it would be refused for."""
    said = body if isinstance(body, dict) else {}
    job = {name: value for name, value in said.items() if name not in THOUGHT_OF}
    plan = submit(view, job if isinstance(body, dict) else body, caller, None, now)
    spec = next(record for record in plan.puts if isinstance(record, JobSpec))
    without = _nodes(view, "without", said.get("without", []))
    scale = fields.flag("scale", said.get("scale", False))
    what_if = WhatIf(_add_nodes(said.get("add_nodes", [])), without, scale)
    return Asked(spec, what_if, others_first(view, spec))


def drained(view: View, body: object, caller: Caller) -> AskedDrain:
    """As the drain itself would be understood, with everything it would be refused for."""
    access.require_everywhere(caller, Action.CHANGE_NODES)
    said = fields.known_fields(body, ("nodes", "force"))
    nodes = _nodes(view, "nodes", said.get("nodes", []))
    if not nodes:
        raise BadField("nodes", "are missing", 'write ["node-1"]')
    return AskedDrain(nodes, everything=fields.flag("force", said.get("force", False)))


def _add_nodes(value: object) -> tuple[NewNode, ...]:
    if not isinstance(value, list) or len(value) > NEW_NODES_MAX:
        raise BadField("add_nodes", "is not a list of nodes", _ADD_HINT)
    found = tuple(_new_node(f"add_nodes.{at}", one) for at, one in enumerate(value))
    if sum(one.count for one in found) > NEW_NODES_MAX:
        raise BadField("add_nodes", "are too many", f"write at most {NEW_NODES_MAX} nodes in all")
    return found


def _new_node(field: str, value: object) -> NewNode:
    if not isinstance(value, dict) or not value.get("capacity"):
        raise BadField(field, "is not a node with a capacity", _ADD_HINT)
    said = fields.known_fields(value, ("count", "capacity", "labels"))
    return NewNode(
        quantities(f"{field}.capacity", said["capacity"], MACHINE),
        fields.labels(f"{field}.labels", said.get("labels", {})),
        fields.number(f"{field}.count", parse_count, said.get("count", 1), 1, NEW_NODES_MAX),
    )


def _nodes(view: View, field: str, value: object) -> tuple[NodeId, ...]:
    if not isinstance(value, list) or len(value) > WITHOUT_MAX:
        raise BadField(field, "is not a list of nodes", 'write ["node-1"]')
    names = dict.fromkeys(find_node(view, fields.text(field, one)).spec.id for one in value)
    return tuple(names)
