"""Routes of tasks and attempts: one function each, no rules. [I/O]"""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import answers, pages, show, show_tasks, watching
from rota.apiserver.answers import answer, api_of
from rota.apiserver.finding import task_index
from rota.apiserver.openapi.tasks import ATTEMPT_FIELDS, TASK_FIELDS, TASK_LINE_FIELDS
from rota.apiserver.routes_jobs import asked
from rota.apiserver.show_tasks import Wanted
from rota.engine.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.phase import Phase
from rota.model.plan import Event

TASKS_PAGE_MAX = 10_000
STATES = tuple(phase.name.lower() for phase in Phase)


async def list_tasks(request: Request) -> Response:
    """With `Accept: text/event-stream` those that change."""
    api, query = api_of(request), request.query_params
    limit = answers.whole(query, "limit", 1000, 1, TASKS_PAGE_MAX)
    after = answers.whole(query, "after", -1, -1, 10**18)
    wanted = Wanted(pages.one_or_more(query, "state", STATES), query.get("node"), after)
    only = pages.chosen(query, TASK_LINE_FIELDS)
    if answers.wants_events(request):
        job = await api.engine.read(lambda mirror: asked(mirror, request).spec.id)
        return watching.watching(api, request, _watched_tasks(job, wanted), only)
    seq = str(api.changes.now())
    page = await api.engine.read(
        lambda mirror: show_tasks.tasks_page(mirror, asked(mirror, request), wanted, limit)
    )
    return answer({**page, "tasks": [pages.pick(task, only) for task in page["tasks"]], "seq": seq})


async def show_task(request: Request) -> Response:
    only = pages.chosen(request.query_params, TASK_FIELDS)

    def look(mirror: Mirror) -> show.Json:
        entry = asked(mirror, request)
        return show_tasks.task(mirror, entry, task_index(entry, request.path_params["index"]))

    return answer(pages.pick(await api_of(request).engine.read(look), only))


async def list_attempts(request: Request) -> Response:
    """Oldest first: all that are known, of which there are few."""
    only = pages.chosen(request.query_params, ATTEMPT_FIELDS)
    found = await api_of(request).engine.read(lambda mirror: _attempts(mirror, request))
    return answer({"attempts": [pages.pick(attempt, only) for attempt in found]})


async def show_attempt(request: Request) -> Response:
    only, number = pages.chosen(request.query_params, ATTEMPT_FIELDS), request.path_params["attempt"]
    for attempt in await api_of(request).engine.read(lambda mirror: _attempts(mirror, request)):
        if str(attempt["attempt"]) == number:
            return answer(pages.pick(attempt, only))
    raise NotFound(f"there is no attempt '{number[:20]}' of this task, or it is no longer kept")


def _attempts(mirror: Mirror, request: Request) -> list[show.Json]:
    entry = asked(mirror, request)
    return show_tasks.attempts_shown(mirror, entry, task_index(entry, request.path_params["index"]))


def _watched_tasks(job: JobId, wanted: Wanted) -> watching.Watched[int]:
    def about(event: Event) -> Iterator[int]:
        if event.job == job:
            for first, last in event.indices:
                yield from range(first, last + 1)

    def look(mirror: Mirror, index: int) -> show.Json | None:
        entry = mirror.jobs.get(job)
        if entry is None or index >= entry.spec.count:
            return None
        line = show_tasks.task_line(mirror, entry, index)
        states = wanted.states
        fits = (states is None or line["state"] in states) and wanted.node in (None, line["node"])
        return line if fits else None

    return watching.Watched("task", about, look, lambda index: {"job": job, "index": index})


ROUTES = [
    answers.route("GET", "/v1/jobs/{ref}/tasks", list_tasks),
    answers.route("GET", "/v1/jobs/{ref}/tasks/{index}", show_task),
    answers.route("GET", "/v1/jobs/{ref}/tasks/{index}/attempts", list_attempts),
    answers.route("GET", "/v1/jobs/{ref}/tasks/{index}/attempts/{attempt}", show_attempt),
]
