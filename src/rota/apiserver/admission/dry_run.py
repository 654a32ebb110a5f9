"""The body of a plan -> the job it would make, and how the cluster is to be thought of."""

from typing import NamedTuple

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.submission import submit_job
from rota.apiserver.lookup import find_node
from rota.apiserver.spec import fields
from rota.apiserver.spec.quantities import MACHINE_PARSERS, parse_quantities
from rota.model.amounts import parse_count
from rota.model.errors import BadField
from rota.model.ids import NodeId
from rota.model.job import JobSpec
from rota.model.outlook import NewNode, PlanOutcome, PlanResult, WhatIf
from rota.model.plan import Instant
from rota.model.view import View, state_of

NEW_NODES_MAX = 1000  # in one question: its answer takes as long as with that many nodes
WITHOUT_NODES_MAX = 1000
_ADD_HINT = 'write [{"count": 2, "capacity": {"cpu": 8, "memory": "32g"}, "labels": {"region": "eu"}}]'


class PlanRequest(NamedTuple):
    spec: JobSpec
    what_if: WhatIf
    certain_outcome: PlanResult | None = None  # what other jobs make certain, whatever the nodes offer


WHAT_IF_FIELDS = ("add_nodes", "without", "scale")  # of the body: how the cluster is thought of


class DrainPlanRequest(NamedTuple):
    nodes: tuple[NodeId, ...]
    everything: bool


def parse_plan_request(view: View, body: object, caller: Caller, now: Instant) -> PlanRequest:
    """As a submit would be understood, with everything it would be refused for."""
    said = body if isinstance(body, dict) else {}
    job = {name: value for name, value in said.items() if name not in WHAT_IF_FIELDS}
    plan = submit_job(view, job if isinstance(body, dict) else body, caller, None, now)
    spec = next(record for record in plan.puts if isinstance(record, JobSpec))
    without = _find_nodes(view, "without", said.get("without", []))
    scale = fields.flag("scale", said.get("scale", False))
    what_if = WhatIf(_parse_new_nodes(said.get("add_nodes", [])), without, scale)
    return PlanRequest(spec, what_if, _dependency_outcome(view, spec))


def parse_drain_plan_request(view: View, body: object, caller: Caller) -> DrainPlanRequest:
    """As the drain itself would be understood, with everything it would be refused for."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    said = fields.known_fields(body, ("nodes", "force"))
    nodes = _find_nodes(view, "nodes", said.get("nodes", []))
    if not nodes:
        raise BadField("nodes", "are missing", 'write ["node-1"]')
    return DrainPlanRequest(nodes, everything=fields.flag("force", said.get("force", False)))


def _parse_new_nodes(value: object) -> tuple[NewNode, ...]:
    if not isinstance(value, list) or len(value) > NEW_NODES_MAX:
        raise BadField("add_nodes", "is not a list of nodes", _ADD_HINT)
    found = tuple(_parse_new_node(f"add_nodes.{at}", one) for at, one in enumerate(value))
    if sum(one.count for one in found) > NEW_NODES_MAX:
        raise BadField("add_nodes", "are too many", f"write at most {NEW_NODES_MAX} nodes in all")
    return found


def _parse_new_node(field: str, value: object) -> NewNode:
    if not isinstance(value, dict) or not value.get("capacity"):
        raise BadField(field, "is not a node with a capacity", _ADD_HINT)
    said = fields.known_fields(value, ("count", "capacity", "labels"))
    return NewNode(
        parse_quantities(f"{field}.capacity", said["capacity"], MACHINE_PARSERS),
        fields.labels(f"{field}.labels", said.get("labels", {})),
        fields.number(f"{field}.count", parse_count, said.get("count", 1), 1, NEW_NODES_MAX),
    )


def _find_nodes(view: View, field: str, value: object) -> tuple[NodeId, ...]:
    if not isinstance(value, list) or len(value) > WITHOUT_NODES_MAX:
        raise BadField(field, "is not a list of nodes", 'write ["node-1"]')
    names = dict.fromkeys(find_node(view, fields.text(field, one)).spec.id for one in value)
    return tuple(names)


def _dependency_outcome(view: View, spec: JobSpec) -> PlanResult | None:
    """What would become of it because of those it waits for; None: they do not stand in its way."""
    found = [(one, one.is_met(state_of(view, one.job))) for one in spec.after]
    for after, holds in found:
        if holds is False:
            problem = f"it waits for {after.description}, and that ended otherwise"
            return PlanResult(PlanOutcome.NEVER, f"would never start: {problem}")
    waits = [after for after, holds in found if holds is None]
    if not waits:
        return None
    more = f" and {len(waits) - 1} more" if len(waits) > 1 else ""
    return PlanResult(PlanOutcome.WAIT, f"would wait: for {waits[0].description}{more}")
