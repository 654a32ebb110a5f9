"""The body of a plan -> the job that a submit would create, and the hypothetical changes to the cluster."""

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

NEW_NODES_MAX = 1000  # in one request: planning takes as long as with that many more nodes
WITHOUT_NODES_MAX = 1000
_ADD_HINT = 'write [{"count": 2, "capacity": {"cpu": 8, "memory": "32g"}, "labels": {"region": "eu"}}]'


class PlanRequest(NamedTuple):
    spec: JobSpec
    what_if: WhatIf
    certain_outcome: PlanResult | None = None  # by its dependencies, whatever the nodes offer


WHAT_IF_FIELDS = ("add_nodes", "without", "scale")  # hypothetical changes to the cluster


class DrainPlanRequest(NamedTuple):
    nodes: tuple[NodeId, ...]
    everything: bool


def parse_plan_request(view: View, body: object, caller: Caller, now: Instant) -> PlanRequest:
    """Parse the job exactly as a submit does, and refuse it for the same reasons."""
    given = body if isinstance(body, dict) else {}
    job = {name: value for name, value in given.items() if name not in WHAT_IF_FIELDS}
    # The real admission, whose plan is dropped: a dry run must accept and refuse exactly what a submit does.
    plan = submit_job(view, job if isinstance(body, dict) else body, caller, None, now)
    spec = next(record for record in plan.puts if isinstance(record, JobSpec))
    without = _find_nodes(view, "without", given.get("without", []))
    scale = fields.flag("scale", given.get("scale", False))
    what_if = WhatIf(_parse_new_nodes(given.get("add_nodes", [])), without, scale)
    return PlanRequest(spec, what_if, _dependency_outcome(view, spec))


def parse_drain_plan_request(view: View, body: object, caller: Caller) -> DrainPlanRequest:
    """Parse the request exactly as the drain does, and refuse it for the same reasons."""
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    given = fields.known_fields(body, ("nodes", "force"))
    nodes = _find_nodes(view, "nodes", given.get("nodes", []))
    if not nodes:
        raise BadField("nodes", "are missing", 'write ["node-1"]')
    return DrainPlanRequest(nodes, everything=fields.flag("force", given.get("force", False)))


def _parse_new_nodes(value: object) -> tuple[NewNode, ...]:
    if not isinstance(value, list) or len(value) > NEW_NODES_MAX:
        raise BadField("add_nodes", "is not a list of nodes", _ADD_HINT)
    found = tuple(_parse_new_node(f"add_nodes.{at}", node) for at, node in enumerate(value))
    if sum(node.count for node in found) > NEW_NODES_MAX:
        raise BadField("add_nodes", "are too many", f"write at most {NEW_NODES_MAX} nodes in all")
    return found


def _parse_new_node(field: str, value: object) -> NewNode:
    if not isinstance(value, dict) or not value.get("capacity"):
        raise BadField(field, "is not a node with a capacity", _ADD_HINT)
    given = fields.known_fields(value, ("count", "capacity", "labels"))
    return NewNode(
        parse_quantities(f"{field}.capacity", given["capacity"], MACHINE_PARSERS),
        fields.labels(f"{field}.labels", given.get("labels", {})),
        fields.number(f"{field}.count", parse_count, given.get("count", 1), 1, NEW_NODES_MAX),
    )


def _find_nodes(view: View, field: str, value: object) -> tuple[NodeId, ...]:
    if not isinstance(value, list) or len(value) > WITHOUT_NODES_MAX:
        raise BadField(field, "is not a list of nodes", 'write ["node-1"]')
    names = dict.fromkeys(find_node(view, fields.text(field, name)).spec.id for name in value)
    return tuple(names)


def _dependency_outcome(view: View, spec: JobSpec) -> PlanResult | None:
    """The outcome that its dependencies determine; None: all of them are met."""
    checked = [(dependency, dependency.is_met(state_of(view, dependency.job))) for dependency in spec.after]
    for dependency, is_met in checked:
        if is_met is False:
            problem = f"it waits for {dependency.description}, and that ended otherwise"
            return PlanResult(PlanOutcome.NEVER, f"would never start: {problem}")
    pending = [dependency for dependency, is_met in checked if is_met is None]
    if not pending:
        return None
    more = f" and {len(pending) - 1} more" if len(pending) > 1 else ""
    return PlanResult(PlanOutcome.WAIT, f"would wait: for {pending[0].description}{more}")
