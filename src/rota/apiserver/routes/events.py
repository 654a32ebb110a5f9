"""The route of events: a page of them, or a stream of them as they are committed. [I/O]"""

from collections.abc import Callable
from contextlib import aclosing

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
from rota.apiserver.views import jobs, pages
from rota.apiserver.views.events import event_json
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId

EVENTS_PAGE_MAX = 1000

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
        while len(found) < limit and (page := await api.event_hub.page_after(position)):
            fitting = [happened for happened in page if fits(happened)][: limit - len(found)]
            found += fitting
            # A page with too few hits was read to its end: the next one starts there, not at the last hit.
            position = fitting[-1].at if len(found) == limit else page[-1].at
    return {"events": [_event_json(api, happened) for happened in found], "next": str(position)}


def _stream(api: Api, position: EventCursor, fits: EventFilter, only: frozenset[str] | None) -> Response:
    def encode(happened: SequencedEvent) -> bytes:
        shown = pages.pick_fields(_event_json(api, happened), only)
        return responses.sse_event(happened.event.kind, shown, str(happened.at))

    async def run(write: responses.Write) -> bytes:
        async with aclosing(api.event_hub.events_after(position)) as found:
            async for page in found:
                lines = [encode(happened) for happened in page if fits(happened)]
                await write(b"".join(lines) or responses.KEEP_ALIVE)
        return b""

    return responses.StreamingResponse(run, responses.EVENT_STREAM, prefix=b"")


def _event_json(api: Api, happened: SequencedEvent) -> jobs.Json:
    return event_json(api.engine.mirror, str(happened.at), happened.wall_ms, happened.event)


def _filter(api: Api, mirror: Mirror, request: Request) -> EventFilter:
    """Matches the events that were asked for, as far as the caller may read them."""
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
            return JobId(ref)  # a deleted job: its events are still stored
        raise


ROUTES = [responses.route("GET", "/v1/events", list_events)]
