"""Routes by which an attempt reports what came of it, and others read that. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import admit_results, answers
from rota.apiserver.admit_results import Name, Reported
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted
from rota.apiserver.finding import task_index
from rota.apiserver.routes_jobs import asked
from rota.engine.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.result import Result

PATH = "/v1/jobs/{ref}/tasks/{index}/attempts/{attempt}/result"


async def report_result(request: Request) -> Response:
    """201 the first time, 200 when it is repeated in the same words."""
    api, caller = api_of(request), caller_of(request)
    path, body = request.path_params, await json_body(request)
    name = Name(path["ref"], path["index"], path["attempt"])
    done: Reported = await api.engine.ask(
        "apiserver", lambda view, now: admit_results.report(view, name, body, caller, now)
    )
    noted(request, f"job {done.result.job}")
    return answer(admit_results.shown(done.result), 201 if done.is_new else 200)


async def show_result(request: Request) -> Response:
    return answer(
        admit_results.shown(await api_of(request).engine.read(lambda mirror: _result(mirror, request)))
    )


def _result(mirror: Mirror, request: Request) -> Result:
    entry, path = asked(mirror, request), request.path_params
    index = task_index(entry, path["index"])
    attempt = admit_results.attempt_number(entry, index, path["attempt"])
    result = entry.results.get((index, attempt))
    if result is None:
        raise NotFound(f"attempt {attempt} of task {index} of job {entry.spec.id} has reported nothing")
    return result


ROUTES = [answers.route("POST", PATH, report_result), answers.route("GET", PATH, show_result)]
