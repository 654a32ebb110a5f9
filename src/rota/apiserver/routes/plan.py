"""The route of plans: what would become of a job, asked of the scheduler's own code on a copy. [I/O]"""

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
    """Where the work of nodes would go, were they drained now."""
    api, caller, body = api_of(request), caller_of(request), await json_body(request)
    set_audit_target(request, "plan of a drain")

    async with api.plan_slots:
        now = api.now()

        def look(mirror: Mirror) -> tuple[DrainPlanRequest, list[str], MirrorCopy]:
            asked = parse_drain_plan_request(mirror, body, caller)
            return asked, [mirror.nodes[node].spec.name for node in asked.nodes], WhatIfMirror.copy_of(mirror)

        asked, names, taken = await api.engine.read(look)
        jobs = await asyncio.to_thread(
            api.preview_drain, taken, asked.nodes, now, everything=asked.everything
        )
    return json_response({"nodes": names, "jobs": [_displaced_json(one, caller) for one in jobs]})


def _displaced_json(one: DisplacedTasks, caller: Caller) -> dict[str, Any]:
    visible = can_see(caller, one.namespace)
    return {
        "job": one.job if visible else None,
        "fate": one.fate.value,
        "tasks": sum(last - first + 1 for first, last in one.indices),
        "indices": one.indices if visible else None,
        "places": one.places,
        "waits": one.waits,
        "reasons": () if one.why is None else one.why.reasons,
        "changes": () if one.why is None else one.why.changes,
    }


ROUTES = [
    responses.route("POST", "/v1/plan", plan_job),
    responses.route("POST", "/v1/plan/drain", plan_drain),
]
