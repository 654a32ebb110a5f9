"""Routes of jobs: one function each, no rules. [I/O]"""

import asyncio
from collections.abc import Callable, Iterator

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import admission, admit_rerun, answers, etags, pages, show, watching
from rota.apiserver.access import Caller, sees
from rota.apiserver.admit_rerun import Wanted
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted, nothing
from rota.apiserver.api import Api
from rota.apiserver.finding import find_job, may_hear
from rota.apiserver.follow import telling
from rota.apiserver.openapi.jobs import JOB_FIELDS, LINE_FIELDS
from rota.engine.entries import JobEntry
from rota.engine.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.job import Kind
from rota.model.lifecycle import JobState
from rota.model.plan import Event

JOBS_PAGE_MAX = 1000


async def submit_job(request: Request) -> Response:
    api, caller, body = api_of(request), caller_of(request), await json_body(request)
    key = request.headers.get("idempotency-key")
    done: admission.Submitted = await api.engine.ask(
        "apiserver", lambda view, now: admission.submit(view, body, caller, key, now)
    )
    await asyncio.sleep(0)  # orders to nodes are on their way before the answer is: work starts sooner
    noted(request, f"job {done.job}")
    status = 201 if done.new else 200
    warnings = [{"field": one.field, "text": one.text} for one in done.warnings]

    def look(mirror: Mirror) -> tuple[show.Json, show.Json]:
        entry = _entry(mirror, done.job)
        return {**show.job(mirror, entry, caller), "warnings": warnings}, show.job_line(entry)

    job, line = await api.engine.read(look)
    if not answers.wants_events(request):
        return answer(job, status)
    beginning = answers.server_sent("job", job)
    return answers.Stream(telling(api, done.job, line), answers.EVENTS, status=status, beginning=beginning)


async def rerun_job(request: Request) -> Response:
    api, caller, ref = api_of(request), caller_of(request), request.path_params["ref"]
    wanted = Wanted(await json_body(request), request.headers.get("idempotency-key"))
    done: admission.Submitted = await api.engine.ask(
        "apiserver", lambda view, now: admit_rerun.rerun(view, ref, wanted, caller, now)
    )
    noted(request, f"job {done.job}")
    shown = await api.engine.read(lambda mirror: show.job(mirror, _entry(mirror, done.job), caller))
    return answer(shown, 201 if done.new else 200)


async def list_jobs(request: Request) -> Response:
    """With `Accept: text/event-stream` those that change."""
    api, query = api_of(request), _with_before(request.query_params)
    wanted = pages.wish(query, LINE_FIELDS, "-id", most=JOBS_PAGE_MAX, default=100)
    if wanted.after is not None:
        answers.whole(query, "after", 0, 0, 10**18)
    fits = job_filter(request)
    if answers.wants_events(request):
        return watching.watching(api, request, _watched_jobs(api, caller_of(request), fits), wanted.only)
    seq = str(api.changes.now())
    page = await api.engine.read(lambda mirror: show.jobs_page(mirror, wanted, fits))
    return answer({**page, "seq": seq})


async def show_job(request: Request) -> Response:
    only = pages.chosen(request.query_params, JOB_FIELDS)
    caller, engine = caller_of(request), api_of(request).engine
    shown = await engine.read(lambda mirror: show.job(mirror, asked(mirror, request), caller))
    return etags.tagged(answer(pages.pick(shown, only)), etags.numbered(shown["version"]))


async def delete_job(request: Request) -> Response:
    caller, ref = caller_of(request), request.path_params["ref"]
    command = etags.only_if(
        request,
        lambda view: etags.numbered(find_job(view, ref, caller).spec.version),
        lambda view, _: admission.delete(view, ref, caller),
    )
    deleted = await api_of(request).engine.ask("apiserver", command)
    noted(request, f"job {deleted}")
    return nothing()


async def explain_job(request: Request) -> Response:
    api = api_of(request)
    now = api.now()

    def look(mirror: Mirror) -> show.Json:
        job = asked(mirror, request).spec.id
        return show.why(job, api.explain(mirror, job, now))

    return answer(await api.engine.read(look))


async def follow_job(request: Request) -> Response:
    api = api_of(request)
    job = await api.engine.read(lambda mirror: asked(mirror, request).spec.id)
    return answers.Stream(telling(api, job), answers.EVENTS)


def asked(mirror: Mirror, request: Request) -> JobEntry:
    return _entry(mirror, find_job(mirror, request.path_params["ref"], caller_of(request)).spec.id)


def _entry(mirror: Mirror, job: JobId) -> JobEntry:
    entry = mirror.jobs.get(job)
    if entry is None:
        raise NotFound(f"job {job} was deleted")
    return entry


def job_filter(request: Request) -> Callable[[JobEntry], bool]:
    """What was asked for, of what the caller may see."""
    caller, query = caller_of(request), request.query_params
    state = _job_states(query.get("state"))
    kind = pages.one_or_more(query, "kind", Kind)
    labelled = pages.labelled(query.getlist("label")) if "label" in query else None
    name, namespace, user = query.get("name"), query.get("namespace"), query.get("user")
    cluster = query.get("cluster")

    def fits(entry: JobEntry) -> bool:
        spec = entry.spec
        return (
            (state is None or show.state_of(entry) in state)
            and name in (None, spec.name)
            and namespace in (None, spec.namespace)
            and user in (None, spec.user)
            and (kind is None or spec.kind in kind)
            and (cluster is None or (entry.cluster is not None and entry.cluster.cluster == cluster))
            and (labelled is None or labelled(spec.labels))
            and sees(caller, spec.namespace)
        )

    return fits


def _watched_jobs(api: Api, caller: Caller, fits: Callable[[JobEntry], bool]) -> watching.Watched[JobId]:
    def about(event: Event) -> Iterator[JobId]:
        if event.job is not None and may_hear(api.engine.mirror, caller, event):
            yield event.job

    def look(mirror: Mirror, job: JobId) -> show.Json | None:
        entry = mirror.jobs.get(job)
        return show.job_line(entry) if entry is not None and fits(entry) else None

    return watching.Watched("job", about, look, lambda job: {"id": job})


def _with_before(query: QueryParams) -> pages.Query:
    """`before` is what `after` was called while the newest came first always."""
    if "before" not in query or "after" in query:
        return query
    before = answers.whole(query, "before", 0, 0, 10**18)
    return {**query, "after": str(before)} if before else query


def _job_states(text: str | None) -> frozenset[JobState] | None:
    if text is None:
        return None
    groups = {"active": frozenset(JobState) - show.ENDS, "ended": show.ENDS}
    names = pages.one_or_more({"state": text}, "state", (*groups, *JobState)) or ()
    return frozenset().union(*(groups.get(name) or {JobState(name)} for name in names))


ROUTES = [
    answers.route("POST", "/v1/jobs", submit_job),
    answers.route("GET", "/v1/jobs", list_jobs),
    answers.route("GET", "/v1/jobs/{ref}", show_job),
    answers.route("DELETE", "/v1/jobs/{ref}", delete_job),
    answers.route("POST", "/v1/jobs/{ref}/rerun", rerun_job),
    answers.route("GET", "/v1/jobs/{ref}/follow", follow_job),
    answers.route("GET", "/v1/jobs/{ref}/why", explain_job),
]
