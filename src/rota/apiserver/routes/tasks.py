"""Routes of tasks and attempts: one function each, no rules. [I/O]"""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import list_watch, responses
from rota.apiserver.lookup import task_index
from rota.apiserver.openapi.tasks import ATTEMPT_FIELDS, TASK_FIELDS, TASK_LINE_FIELDS
from rota.apiserver.responses import api_of, json_response
from rota.apiserver.routes.jobs import requested_job
from rota.apiserver.views import jobs, pages, tasks
from rota.apiserver.views.tasks import TaskFilter
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.plan import EventRecord
from rota.rules.phases import Phase

TASKS_PAGE_MAX = 10_000
STATES = tuple(phase.name.lower() for phase in Phase)


async def list_tasks(request: Request) -> Response:
    """A page of tasks; with `Accept: text/event-stream`, tasks as they change."""
    api, query = api_of(request), request.query_params
    limit = responses.int_parameter(query, "limit", 1000, 1, TASKS_PAGE_MAX)
    after = responses.int_parameter(query, "after", -1, -1, 10**18)
    task_filter = TaskFilter(pages.parse_choices(query, "state", STATES), query.get("node"), after)
    only = pages.chosen_fields(query, TASK_LINE_FIELDS)
    if responses.accepts_event_stream(request):
        job = await api.engine.read(lambda mirror: requested_job(mirror, request).spec.id)
        return list_watch.watch_list(api, request, _watched_tasks(job, task_filter), only)
    # Taken before the page is read: a watch from here may repeat a change, and never misses one.
    seq = str(api.event_hub.latest_cursor())
    page = await api.engine.read(
        lambda mirror: tasks.tasks_page(mirror, requested_job(mirror, request), task_filter, limit)
    )
    return json_response(
        {**page, "tasks": [pages.pick_fields(task, only) for task in page["tasks"]], "seq": seq}
    )


async def show_task(request: Request) -> Response:
    only = pages.chosen_fields(request.query_params, TASK_FIELDS)

    def read(mirror: Mirror) -> jobs.Json:
        entry = requested_job(mirror, request)
        return tasks.task_json(mirror, entry, task_index(entry, request.path_params["index"]))

    return json_response(pages.pick_fields(await api_of(request).engine.read(read), only))


async def list_attempts(request: Request) -> Response:
    """All attempts that are known, oldest first; they are few, so there are no pages."""
    only = pages.chosen_fields(request.query_params, ATTEMPT_FIELDS)
    found = await api_of(request).engine.read(lambda mirror: _attempts(mirror, request))
    return json_response({"attempts": [pages.pick_fields(attempt, only) for attempt in found]})


async def show_attempt(request: Request) -> Response:
    only, number = pages.chosen_fields(request.query_params, ATTEMPT_FIELDS), request.path_params["attempt"]
    for attempt in await api_of(request).engine.read(lambda mirror: _attempts(mirror, request)):
        if str(attempt["attempt"]) == number:
            return json_response(pages.pick_fields(attempt, only))
    raise NotFound(f"there is no attempt '{number[:20]}' of this task, or it is no longer kept")


def _attempts(mirror: Mirror, request: Request) -> list[jobs.Json]:
    entry = requested_job(mirror, request)
    return tasks.attempts_json(mirror, entry, task_index(entry, request.path_params["index"]))


def _watched_tasks(job: JobId, task_filter: TaskFilter) -> list_watch.WatchedList[int]:
    def keys_of(event: EventRecord) -> Iterator[int]:
        if event.job == job:
            for first, last in event.indices:
                yield from range(first, last + 1)

    def read(mirror: Mirror, index: int) -> jobs.Json | None:
        entry = mirror.jobs.get(job)
        if entry is None or index >= entry.spec.count:
            return None
        line = tasks.task_line(mirror, entry, index)
        states = task_filter.states
        fits = (states is None or line["state"] in states) and task_filter.node in (None, line["node"])
        return line if fits else None

    return list_watch.WatchedList("task", keys_of, read, lambda index: {"job": job, "index": index})


ROUTES = [
    responses.route("GET", "/v1/jobs/{ref}/tasks", list_tasks),
    responses.route("GET", "/v1/jobs/{ref}/tasks/{index}", show_task),
    responses.route("GET", "/v1/jobs/{ref}/tasks/{index}/attempts", list_attempts),
    responses.route("GET", "/v1/jobs/{ref}/tasks/{index}/attempts/{attempt}", show_attempt),
]
