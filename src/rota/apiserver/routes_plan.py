"""The route of plans: what would become of a job, asked of the scheduler's own code on a copy. [I/O]"""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import answers
from rota.apiserver.access import Caller, sees
from rota.apiserver.admit_plan import AskedDrain, drained
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted
from rota.apiserver.planning import foreseen
from rota.engine.mirror import Mirror
from rota.engine.shadow import Shadow, Taken
from rota.model.outlook import Displaced


async def plan_job(request: Request) -> Response:
    noted(request, "plan")
    return answer(await foreseen(api_of(request), caller_of(request), await json_body(request)))


async def plan_drain(request: Request) -> Response:
    """Where the work of nodes would go, were they drained now."""
    api, caller, body = api_of(request), caller_of(request), await json_body(request)
    noted(request, "plan of a drain")

    async with api.planning:
        now = api.now()

        def look(mirror: Mirror) -> tuple[AskedDrain, list[str], Taken]:
            asked = drained(mirror, body, caller)
            return asked, [mirror.nodes[node].spec.name for node in asked.nodes], Shadow.take(mirror)

        asked, names, taken = await api.engine.read(look)
        jobs = await asyncio.to_thread(api.displace, taken, asked.nodes, now, everything=asked.everything)
    return answer({"nodes": names, "jobs": [_displaced(one, caller) for one in jobs]})


def _displaced(one: Displaced, caller: Caller) -> dict[str, Any]:
    visible = sees(caller, one.namespace)
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
    answers.route("POST", "/v1/plan", plan_job),
    answers.route("POST", "/v1/plan/drain", plan_drain),
]
