"""A dry run: what would become of a job if it was submitted now, for HTTP and gRPC. [I/O]"""

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

    The mirror is copied on the event loop, so that the copy is of one revision; planning runs in a thread.
    """
    # The slot is held until the plan is made: it bounds the copies in memory as well as the threads.
    async with api.plan_slots:
        now = api.now()

        def read(mirror: Mirror) -> tuple[PlanRequest, MirrorCopy]:
            return parse_plan_request(mirror, body, caller, now), WhatIfMirror.copy_of(mirror)

        (spec, what_if, known), copy = await api.engine.read(read)
        plan = partial(api.plan_job, copy, spec, what_if, now)
        result = known if known is not None else await asyncio.to_thread(plan)
    return _plan_json(result, spec.count, caller)


def _plan_json(result: PlanResult, count: int, caller: Caller) -> dict[str, Any]:
    why = result.why or Explanation(waits=False, sentence="")
    return {
        "outcome": result.outcome.value,
        "sentence": result.sentence,
        "count": count,
        "starts": result.starts,
        "places": result.places,
        "evicts": [_eviction_json(eviction, caller) for eviction in result.evicts],
        "reasons": why.reasons,
        "changes": why.changes,
        "misses": why.misses,
        "position": why.position,
        "starts_at_ms": why.starts_at_ms,
        "grows": result.grows,
    }


def _eviction_json(eviction: PlannedEviction, caller: Caller) -> dict[str, Any]:
    """The tasks that would be evicted; of a job that the caller may not see, only their number."""
    tasks = sum(last - first + 1 for first, last in eviction.indices)
    if not can_see(caller, eviction.namespace):
        return {"job": None, "tasks": tasks, "indices": None}
    return {"job": eviction.job, "tasks": tasks, "indices": eviction.indices}
