"""Routes of events and of the server itself: one function each, no rules. [I/O]"""

from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.access import Caller
from rota.apiserver.api import Api
from rota.apiserver.list_watch import requested_cursor
from rota.apiserver.lookup import can_see_event, find_job, find_node
from rota.apiserver.openapi.events import EVENT_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_response
from rota.apiserver.streams.event_cursor import BEGINNING, EventCursor, SequencedEvent
from rota.apiserver.views import certificates, jobs, pages
from rota.apiserver.views.events import event_json
from rota.engine.parking import FaultStage, Parked
from rota.engine.run import Engine
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId

EVENTS_PAGE_MAX = 1000
PARKED_SHOWN = 100  # there may be as many as there are jobs

EventFilter = Callable[[SequencedEvent], bool]


async def list_events(request: Request) -> Response:
    api, query = api_of(request), request.query_params
    fits = await api.engine.read(lambda mirror: _filter(api, mirror, request))
    limit = responses.int_parameter(query, "limit", 100, 1, EVENTS_PAGE_MAX)
    only = pages.chosen_fields(query, EVENT_FIELDS)
    position = requested_cursor(api, request)
    if responses.accepts_event_stream(request):
        return _stream(api, position or api.event_hub.latest_cursor(), fits, only)
    page = await _page(api, position, fits, limit)
    return json_response({**page, "events": [pages.pick_fields(event, only) for event in page["events"]]})


async def _page(api: Api, position: EventCursor | None, fits: EventFilter, limit: int) -> jobs.Json:
    if position is None:
        found = await api.event_hub.newest(limit, fits)
        position = found[-1].at if found else BEGINNING
    else:
        found = []
        while len(found) < limit and (some := await api.event_hub.page_after(position)):
            fitting = [happened for happened in some if fits(happened)][: limit - len(found)]
            found += fitting
            position = fitting[-1].at if len(found) == limit else some[-1].at
    return {"events": [_event_json(api, happened) for happened in found], "next": str(position)}


def _stream(api: Api, position: EventCursor, fits: EventFilter, only: frozenset[str] | None) -> Response:
    async def run(write: responses.Write) -> bytes:
        async with aclosing(api.event_hub.events_after(position)) as found:
            async for some in found:
                lines = [
                    responses.sse_event(
                        one.event.kind, pages.pick_fields(_event_json(api, one), only), str(one.at)
                    )
                    for one in some
                    if fits(one)
                ]
                await write(b"".join(lines) or responses.KEEP_ALIVE)
        return b""

    return responses.StreamingResponse(run, responses.EVENT_STREAM, prefix=b"")


def _event_json(api: Api, happened: SequencedEvent) -> jobs.Json:
    return event_json(api.engine.mirror, str(happened.at), happened.wall_ms, happened.event)


def _filter(api: Api, mirror: Mirror, request: Request) -> EventFilter:
    """What was asked for, of what the caller may see."""
    caller, query = caller_of(request), request.query_params
    job = _job_id(mirror, query["job"], caller) if "job" in query else None
    node = find_node(mirror, query["node"]).spec.id if "node" in query else None
    cluster = query.get("cluster")
    kinds = frozenset(query["kind"].split(",")) if "kind" in query else None

    def fits(happened: SequencedEvent) -> bool:
        event = happened.event
        return (
            (job is None or event.job == job)
            and (node is None or event.node == node)
            and (kinds is None or not kinds.isdisjoint((event.kind, event.kind.partition(".")[0])))
            and (cluster is None or (event.cluster == cluster and event.job is None))
            and can_see_event(api.engine.mirror, caller, event)
        )

    return fits


def _job_id(mirror: Mirror, ref: str, caller: Caller) -> JobId:
    try:
        return find_job(mirror, ref, caller).spec.id
    except NotFound:
        if ref.isdecimal() and caller.is_cluster_wide:
            return JobId(ref)  # it was deleted, and what happened to it can still be told
        raise


async def show_server(request: Request) -> Response:
    """Also while its store fails: it says so."""
    api = api_of(request)
    engine, pulse = api.engine, api.engine.commit_stats
    shown = {
        "version": api.version,
        **_leadership(api),
        "revision": engine.revision,
        "store": engine.store.name,
        "store_median_ms": pulse.median_ms,
        "store_worst_ms": pulse.worst_ms,
        "store_problem": pulse.problem,
        "is_short_of_disk": engine.mirror.disk_low,
        "started_at_ms": api.started_at_ms,
        **_cluster_summary(engine.mirror, engine.now_ms()),
        **_faults(engine, caller_of(request)),
        **_certificate_status(api),
        "address": api.addresses.http,
        "agent_address": api.addresses.agent,
        "controller_address": api.addresses.controller,
        "controller_addresses": list(dict.fromkeys((api.addresses.controller, *api.controller_addresses()))),
    }
    return json_response(shown)


def _certificate_status(api: Api) -> jobs.Json:
    expiries, window, now = api.expiries(), api.authority.renewal_window, datetime.now(UTC)
    ending = certificates.expiry_warnings(api.engine.mirror, expiries, window, now)
    return {
        "certificates": certificates.certificates_json(expiries),
        "certificate_warnings": list(ending.values()),
    }


def _cluster_summary(mirror: Mirror, now_ms: int) -> jobs.Json:
    restored = mirror.restored
    refused = {node.spec.name: node.refused for node in mirror.nodes.values() if node.refused is not None}
    return {
        "jobs": len(mirror.jobs),
        "nodes": len(mirror.nodes),
        "adopted_jobs": sum(job.adoption is not None for job in mirror.jobs.values()),
        "waits_for_accept": restored is not None and not restored.accepted,
        "opens_in_ms": max(0, restored.open_at_ms - now_ms) if restored is not None else 0,
        "restored_from_ms": restored.taken_at_ms if restored is not None else None,
        "refused": {name: why.reason for name, why in refused.items()},
    }


def _faults(engine: Engine, caller: Caller) -> jobs.Json:
    """Errors may quote the jobs of others: their text is for callers who may see all jobs."""
    parked = engine.parking.all()
    shown = parked[:PARKED_SHOWN] if caller.is_cluster_wide else []
    return {
        "parked_count": len(parked),
        "parked": [_parked_json(one, engine.now_ms()) for one in shown],
        "faults": {stage: engine.parking.counts[stage] for stage in FaultStage},
    }


def _parked_json(one: Parked, now_ms: int) -> jobs.Json:
    return {
        "reconciler": one.reconciler,
        "key": one.key,
        "error": one.error,
        "since_ms": one.since.wall_ms,
        "times": one.times,
        "retry_in_ms": None if one.retry_at_ms is None else max(0, one.retry_at_ms - now_ms),
    }


def _leadership(api: Api) -> jobs.Json:
    """Who leads has written what it knows; who stands by says how old it may be."""
    stance = api.standby_role
    if stance is not None:
        known = {"leader": stance.leader(), "epoch": stance.epoch(), "lag_ms": stance.age_ms()}
        return {"role": "standby", **known}
    leads = api.engine.healthy
    return {
        "role": "leader" if leads else "none",
        "leader": api.addresses.http if leads else None,
        "epoch": api.engine.epoch,
        "lag_ms": 0,
    }


async def show_health(_: Request) -> Response:
    return json_response({"alive": True})


async def show_readiness(request: Request) -> Response:
    await api_of(request).engine.check()
    return json_response({"ready": True})


ROUTES = [
    responses.route("GET", "/v1/events", list_events),
    responses.route("GET", "/v1/server", show_server),
    responses.route("GET", "/healthz", show_health),
    responses.route("GET", "/readyz", show_readiness),
]
