"""A job that is not submitted -> what would become of it, for HTTP and gRPC alike. [I/O]"""

import asyncio
from functools import partial
from typing import Any

from rota.apiserver.access import Caller, can_see
from rota.apiserver.admission.dry_run import PlanRequest, parse_plan_request
from rota.apiserver.api import Api
from rota.engine.state.mirror import Mirror
from rota.engine.state.what_if import MirrorCopy, WhatIfMirror
from rota.model.outlook import Explanation, PlannedEviction, PlanResult


async def dry_run_job(api: Api, caller: Caller, body: object) -> dict[str, Any]:
    """The answer of `POST /v1/plan`. Nothing is written.

    The copy of the cluster is taken at once; the rest is done in a thread, beside the server.
    """
    async with api.plan_slots:
        now = api.now()

        def look(mirror: Mirror) -> tuple[PlanRequest, MirrorCopy]:
            return parse_plan_request(mirror, body, caller, now), WhatIfMirror.copy_of(mirror)

        (spec, what_if, before), taken = await api.engine.read(look)
        foresee = partial(api.plan_job, taken, spec, what_if, now)
        outlook = before if before is not None else await asyncio.to_thread(foresee)
    return _plan_json(outlook, spec.count, caller)


def _plan_json(outlook: PlanResult, count: int, caller: Caller) -> dict[str, Any]:
    why = outlook.why or Explanation(waits=False, sentence="")
    return {
        "outcome": outlook.outcome.value,
        "sentence": outlook.sentence,
        "count": count,
        "starts": outlook.starts,
        "places": outlook.places,
        "evicts": [_eviction_json(one, caller) for one in outlook.evicts],
        "reasons": why.reasons,
        "changes": why.changes,
        "misses": why.misses,
        "position": why.position,
        "starts_at_ms": why.starts_at_ms,
        "grows": outlook.grows,
    }


def _eviction_json(one: PlannedEviction, caller: Caller) -> dict[str, Any]:
    """Of a job that the caller may not see only how many tasks."""
    tasks = sum(last - first + 1 for first, last in one.indices)
    if not can_see(caller, one.namespace):
        return {"job": None, "tasks": tasks, "indices": None}
    return {"job": one.job, "tasks": tasks, "indices": one.indices}
