"""Routes of plans: what the scheduler would do with a job or a drain, on a copy of the mirror. [I/O]"""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.access import Caller, can_see
from rota.apiserver.admission.dry_run import DrainPlanRequest, parse_drain_plan_request
from rota.apiserver.dry_run import dry_run_job
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, set_audit_target
from rota.engine.state.mirror import Mirror
from rota.engine.state.what_if import MirrorCopy, WhatIfMirror
from rota.model.outlook import DisplacedTasks


async def plan_job(request: Request) -> Response:
    set_audit_target(request, "plan")
    return json_response(await dry_run_job(api_of(request), caller_of(request), await json_body(request)))


async def plan_drain(request: Request) -> Response:
    """Where the tasks on nodes would go if the nodes were drained now."""
    api, caller, body = api_of(request), caller_of(request), await json_body(request)
    set_audit_target(request, "plan of a drain")

    # The slot is held until the plan is made: it bounds the copies in memory as well as the threads.
    async with api.plan_slots:
        now = api.now()

        def read(mirror: Mirror) -> tuple[DrainPlanRequest, list[str], MirrorCopy]:
            plan = parse_drain_plan_request(mirror, body, caller)
            return plan, [mirror.nodes[node].spec.name for node in plan.nodes], WhatIfMirror.copy_of(mirror)

        plan, names, copy = await api.engine.read(read)
        displaced = await asyncio.to_thread(
            api.preview_drain, copy, plan.nodes, now, everything=plan.everything
        )
    return json_response({"nodes": names, "jobs": [_displaced_json(tasks, caller) for tasks in displaced]})


def _displaced_json(tasks: DisplacedTasks, caller: Caller) -> dict[str, Any]:
    visible = can_see(caller, tasks.namespace)
    return {
        "job": tasks.job if visible else None,
        "fate": tasks.fate.value,
        "tasks": sum(last - first + 1 for first, last in tasks.indices),
        "indices": tasks.indices if visible else None,
        "places": tasks.places,
        "waits": tasks.waits,
        "reasons": () if tasks.why is None else tasks.why.reasons,
        "changes": () if tasks.why is None else tasks.why.changes,
    }


ROUTES = [
    responses.route("POST", "/v1/plan", plan_job),
    responses.route("POST", "/v1/plan/drain", plan_drain),
]
