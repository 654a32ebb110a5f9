"""Routes of jobs: one function each, no rules; and the stream of a job's changes. [I/O]"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import etags, list_watch, responses
from rota.apiserver.access import Caller, can_see
from rota.apiserver.admission import rerun, submission
from rota.apiserver.admission.rerun import RerunSelection
from rota.apiserver.api import Api
from rota.apiserver.lookup import can_see_event, find_job
from rota.apiserver.openapi.jobs import JOB_FIELDS, LINE_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, no_content, set_audit_target
from rota.apiserver.views import jobs, pages
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.job import JobKind
from rota.model.lifecycle import JobState
from rota.model.plan import EventRecord

JOBS_PAGE_MAX = 1000


async def submit_job(request: Request) -> Response:
    api, caller, body = api_of(request), caller_of(request), await json_body(request)
    key = request.headers.get("idempotency-key")
    done = await api.engine.ask(
        "apiserver", lambda view, now: submission.submit_job(view, body, caller, key, now)
    )
    # Let the commit hooks send their orders to nodes before this response is written: work starts sooner.
    await asyncio.sleep(0)
    set_audit_target(request, f"job {done.job}")
    status = 201 if done.new else 200
    warnings = [{"field": warning.field, "text": warning.text} for warning in done.warnings]

    def read(mirror: Mirror) -> tuple[jobs.Json, jobs.Json]:
        entry = _require_entry(mirror, done.job)
        return {**jobs.job_json(mirror, entry, caller), "warnings": warnings}, jobs.job_line(entry)

    job, line = await api.engine.read(read)
    if not responses.accepts_event_stream(request):
        return json_response(job, status)
    prefix = responses.sse_event("job", job)
    return responses.StreamingResponse(
        _job_event_stream(api, done.job, line), responses.EVENT_STREAM, status=status, prefix=prefix
    )


async def rerun_job(request: Request) -> Response:
    api, caller, ref = api_of(request), caller_of(request), request.path_params["ref"]
    selection = RerunSelection(await json_body(request), request.headers.get("idempotency-key"))
    done = await api.engine.ask(
        "apiserver", lambda view, now: rerun.rerun_job(view, ref, selection, caller, now)
    )
    set_audit_target(request, f"job {done.job}")
    shown = await api.engine.read(
        lambda mirror: jobs.job_json(mirror, _require_entry(mirror, done.job), caller)
    )
    return json_response(shown, 201 if done.new else 200)


async def list_jobs(request: Request) -> Response:
    """A page of jobs; with `Accept: text/event-stream`, jobs as they change."""
    api, query = api_of(request), _with_after(request.query_params)
    page_request = pages.parse_page_request(query, LINE_FIELDS, "-id", most=JOBS_PAGE_MAX, default=100)
    if page_request.after is not None:
        responses.int_parameter(query, "after", 0, 0, 10**18)
    fits = job_filter(request)
    if responses.accepts_event_stream(request):
        return list_watch.watch_list(
            api, request, _watched_jobs(api, caller_of(request), fits), page_request.only
        )
    # Taken before the page is read: a watch from here may repeat a change, and never misses one.
    seq = str(api.event_hub.latest_cursor())
    page = await api.engine.read(lambda mirror: jobs.jobs_page(mirror, page_request, fits))
    return json_response({**page, "seq": seq})


async def show_job(request: Request) -> Response:
    only = pages.chosen_fields(request.query_params, JOB_FIELDS)
    caller, engine = caller_of(request), api_of(request).engine
    shown = await engine.read(lambda mirror: jobs.job_json(mirror, requested_job(mirror, request), caller))
    return etags.with_tag(json_response(pages.pick_fields(shown, only)), etags.version_tag(shown["version"]))


async def delete_job(request: Request) -> Response:
    caller, ref = caller_of(request), request.path_params["ref"]
    command = etags.require_match(
        request,
        lambda view: etags.version_tag(find_job(view, ref, caller).spec.version),
        lambda view, _: submission.delete_job(view, ref, caller),
    )
    deleted = await api_of(request).engine.ask("apiserver", command)
    set_audit_target(request, f"job {deleted}")
    return no_content()


async def explain_job(request: Request) -> Response:
    api = api_of(request)
    now = api.now()

    def read(mirror: Mirror) -> jobs.Json:
        job = requested_job(mirror, request).spec.id
        return jobs.why_json(job, api.explain(mirror, job, now))

    return json_response(await api.engine.read(read))


async def follow_job(request: Request) -> Response:
    api = api_of(request)
    job = await api.engine.read(lambda mirror: requested_job(mirror, request).spec.id)
    return responses.StreamingResponse(_job_event_stream(api, job), responses.EVENT_STREAM)


def _job_event_stream(api: Api, job: JobId, last_sent: jobs.Json | None = None) -> responses.StreamBody:
    """Each change of a job as a server-sent event; the stream ends with the job."""

    async def run(write: responses.Write) -> bytes:
        async with aclosing(_job_changes(api, job, last_sent)) as lines:
            async for line in lines:
                data = responses.KEEP_ALIVE if line is None else responses.sse_event("status", line)
                # Returned, not written: the last bytes end the response in the same write.
                if line is not None and _is_ended(line):
                    return data
                await write(data)
        return b""

    return run


async def _job_changes(
    api: Api, job: JobId, last_sent: jobs.Json | None
) -> AsyncGenerator[jobs.Json | None, None]:
    """The job without its spec, immediately unless it equals `last_sent`, then after each change.

    None says that nothing changed for a while, and that the connection is to be kept alive.
    """

    def read(mirror: Mirror) -> jobs.Json | None:
        entry = mirror.jobs.get(job)
        return None if entry is None else jobs.job_line(entry)

    # Followed before the first read: a change between read and wait sets the signal.
    with api.event_hub.follow_job(job) as changes:
        while (line := await api.engine.read(read)) is not None:
            if line != last_sent:
                yield line
                last_sent = line
            if _is_ended(line):
                return
            while not await changes.wait():
                yield None


def _is_ended(line: jobs.Json) -> bool:
    return JobState(line["state"]) in jobs.ENDS


def requested_job(mirror: Mirror, request: Request) -> JobEntry:
    return _require_entry(mirror, find_job(mirror, request.path_params["ref"], caller_of(request)).spec.id)


def _require_entry(mirror: Mirror, job: JobId) -> JobEntry:
    entry = mirror.jobs.get(job)
    if entry is None:
        raise NotFound(f"job {job} was deleted")
    return entry


def job_filter(request: Request) -> Callable[[JobEntry], bool]:
    """Matches the jobs that were asked for, as far as the caller may see them."""
    caller, query = caller_of(request), request.query_params
    states = _parse_states(query.get("state"))
    kinds = pages.parse_choices(query, "kind", JobKind)
    labelled = pages.label_filter(query.getlist("label")) if "label" in query else None
    name, namespace, user = query.get("name"), query.get("namespace"), query.get("user")
    cluster = query.get("cluster")

    def fits(entry: JobEntry) -> bool:
        spec = entry.spec
        return (
            (states is None or jobs.state_of(entry) in states)
            and name in (None, spec.name)
            and namespace in (None, spec.namespace)
            and user in (None, spec.user)
            and (kinds is None or spec.kind in kinds)
            and (cluster is None or (entry.cluster is not None and entry.cluster.cluster == cluster))
            and (labelled is None or labelled(spec.labels))
            and can_see(caller, spec.namespace)
        )

    return fits


def _watched_jobs(
    api: Api, caller: Caller, fits: Callable[[JobEntry], bool]
) -> list_watch.WatchedList[JobId]:
    def keys_of(event: EventRecord) -> Iterator[JobId]:
        if event.job is not None and can_see_event(api.engine.mirror, caller, event):
            yield event.job

    def read(mirror: Mirror, job: JobId) -> jobs.Json | None:
        entry = mirror.jobs.get(job)
        return jobs.job_line(entry) if entry is not None and fits(entry) else None

    return list_watch.WatchedList("job", keys_of, read, lambda job: {"id": job})


def _with_after(query: QueryParams) -> pages.Query:
    """The query with `before`, an older name, as `after`."""
    if "before" not in query or "after" in query:
        return query
    before = responses.int_parameter(query, "before", 0, 0, 10**18)
    return {**query, "after": str(before)} if before else query


def _parse_states(text: str | None) -> frozenset[JobState] | None:
    if text is None:
        return None
    groups = {"active": frozenset(JobState) - jobs.ENDS, "ended": jobs.ENDS}
    names = pages.parse_choices({"state": text}, "state", (*groups, *JobState)) or ()
    return frozenset().union(*(groups.get(name) or {JobState(name)} for name in names))


ROUTES = [
    responses.route("POST", "/v1/jobs", submit_job),
    responses.route("GET", "/v1/jobs", list_jobs),
    responses.route("GET", "/v1/jobs/{ref}", show_job),
    responses.route("DELETE", "/v1/jobs/{ref}", delete_job),
    responses.route("POST", "/v1/jobs/{ref}/rerun", rerun_job),
    responses.route("GET", "/v1/jobs/{ref}/follow", follow_job),
    responses.route("GET", "/v1/jobs/{ref}/why", explain_job),
]
