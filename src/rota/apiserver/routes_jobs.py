"""Routes of jobs and tasks: one function each, no rules. [I/O]"""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import admission, admit_rerun, answers, fields, show, show_tasks
from rota.apiserver.access import sees
from rota.apiserver.admit_rerun import Wanted
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted, nothing
from rota.apiserver.finding import find_job, task_index
from rota.apiserver.follow import telling
from rota.engine.entries import JobEntry
from rota.engine.mirror import Mirror
from rota.model.errors import BadField, NotFound
from rota.model.ids import JobId
from rota.model.lifecycle import JobState
from rota.model.phase import Phase

JOBS_PAGE_MAX = 1000
TASKS_PAGE_MAX = 10_000


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
        return {**show.job(mirror, entry), "warnings": warnings}, show.job_line(entry)

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
    shown = await api.engine.read(lambda mirror: show.job(mirror, _entry(mirror, done.job)))
    return answer(shown, 201 if done.new else 200)


async def list_jobs(request: Request) -> Response:
    caller, query = caller_of(request), request.query_params
    limit = answers.whole(query, "limit", 100, 1, JOBS_PAGE_MAX)
    before = answers.whole(query, "before", 0, 0, 10**18)
    name, namespace, state = query.get("name"), query.get("namespace"), _job_states(query.get("state"))

    def fits(entry: JobEntry) -> bool:
        return (
            (state is None or show.state_of(entry) in state)
            and (name is None or entry.spec.name == name)
            and (namespace is None or entry.spec.namespace == namespace)
            and sees(caller, entry.spec.namespace)
        )

    return answer(
        await api_of(request).engine.read(lambda mirror: show.jobs_page(mirror, before, fits, limit))
    )


async def show_job(request: Request) -> Response:
    return answer(await api_of(request).engine.read(lambda mirror: show.job(mirror, _asked(mirror, request))))


async def delete_job(request: Request) -> Response:
    caller, ref = caller_of(request), request.path_params["ref"]
    deleted = await api_of(request).engine.ask(
        "apiserver", lambda view, _: admission.delete(view, ref, caller)
    )
    noted(request, f"job {deleted}")
    return nothing()


async def list_tasks(request: Request) -> Response:
    query = request.query_params
    limit = answers.whole(query, "limit", 1000, 1, TASKS_PAGE_MAX)
    after = answers.whole(query, "after", -1, -1, 10**18)
    state = _task_state(query.get("state"))
    return answer(
        await api_of(request).engine.read(
            lambda mirror: show_tasks.tasks_page(mirror, _asked(mirror, request), state, after, limit)
        )
    )


async def show_task(request: Request) -> Response:
    def look(mirror: Mirror) -> show.Json:
        entry = _asked(mirror, request)
        return show_tasks.task(mirror, entry, task_index(entry, request.path_params["index"]))

    return answer(await api_of(request).engine.read(look))


async def explain_job(request: Request) -> Response:
    api = api_of(request)
    now = api.now()

    def look(mirror: Mirror) -> show.Json:
        job = _asked(mirror, request).spec.id
        return show.why(job, api.explain(mirror, job, now))

    return answer(await api.engine.read(look))


async def follow_job(request: Request) -> Response:
    api = api_of(request)
    job = await api.engine.read(lambda mirror: _asked(mirror, request).spec.id)
    return answers.Stream(telling(api, job), answers.EVENTS)


def _asked(mirror: Mirror, request: Request) -> JobEntry:
    return _entry(mirror, find_job(mirror, request.path_params["ref"], caller_of(request)).spec.id)


def _entry(mirror: Mirror, job: JobId) -> JobEntry:
    entry = mirror.jobs.get(job)
    if entry is None:
        raise NotFound(f"job {job} was deleted")
    return entry


def _job_states(text: str | None) -> frozenset[JobState] | None:
    match text:
        case None:
            return None
        case "active":
            return frozenset(JobState) - show.ENDS
        case "ended":
            return show.ENDS
        case _:
            return frozenset({fields.one_of("state", text, JobState)})


def _task_state(text: str | None) -> str | None:
    known = [phase.name.lower() for phase in Phase]
    if text is not None and text not in known:
        raise BadField("state", f"'{text[:20]}' is not a task's state", f"write one of: {', '.join(known)}")
    return text


ROUTES = [
    answers.route("POST", "/v1/jobs", submit_job),
    answers.route("GET", "/v1/jobs", list_jobs),
    answers.route("GET", "/v1/jobs/{ref}", show_job),
    answers.route("DELETE", "/v1/jobs/{ref}", delete_job),
    answers.route("POST", "/v1/jobs/{ref}/rerun", rerun_job),
    answers.route("GET", "/v1/jobs/{ref}/follow", follow_job),
    answers.route("GET", "/v1/jobs/{ref}/tasks", list_tasks),
    answers.route("GET", "/v1/jobs/{ref}/tasks/{index}", show_task),
    answers.route("GET", "/v1/jobs/{ref}/why", explain_job),
]
