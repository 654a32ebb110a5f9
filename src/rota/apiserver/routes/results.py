"""Routes of results: an attempt reports its own, and clients read it. [I/O]"""

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.admission import results
from rota.apiserver.admission.results import AttemptRef
from rota.apiserver.api import Api
from rota.apiserver.authentication import Unauthenticated
from rota.apiserver.lookup import task_index
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, set_audit_target
from rota.apiserver.routes.jobs import requested_job
from rota.apiserver.views.tasks import result_json
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.result import ResultRecord

PATH = "/v1/jobs/{ref}/tasks/{index}/attempts/{attempt}/result"
START_WAIT_SECONDS = 1.0  # for the start to be reported, before the result is accepted all the same


async def report_result(request: Request) -> Response:
    """201 the first time, 200 if the same result is reported again."""
    api, caller = api_of(request), caller_of(request)
    path, body = request.path_params, await json_body(request)
    if caller.node is not None and not request.state.signed.covers(await request.body()):
        raise Unauthenticated("the body is not the one that the node signed")
    name = AttemptRef(path["ref"], path["index"], path["attempt"])
    await _wait_until_started(api, name)
    done = await api.engine.ask(
        "apiserver", lambda view, now: results.report_result(view, name, body, caller, now)
    )
    set_audit_target(request, f"job {done.result.job}")
    return json_response(result_json(done.result), 201 if done.is_new else 200)


async def _wait_until_started(api: Api, name: AttemptRef) -> None:
    """Wait for the node to report the start of the attempt, for a bounded time.

    The start is reported on the node's own stream, with which the result races over HTTP; `task.started` is
    to be committed before the result.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_WAIT_SECONDS):
            with api.event_hub.follow_job(JobId(name.job)) as changes:
                while await api.engine.read(lambda mirror: results.is_start_unreported(mirror, name)):
                    await changes.wait()


async def show_result(request: Request) -> Response:
    return json_response(
        result_json(await api_of(request).engine.read(lambda mirror: _result(mirror, request)))
    )


def _result(mirror: Mirror, request: Request) -> ResultRecord:
    entry, path = requested_job(mirror, request), request.path_params
    index = task_index(entry, path["index"])
    attempt = results.parse_attempt_number(entry, index, path["attempt"])
    result = entry.results.get((index, attempt))
    if result is None:
        raise NotFound(f"attempt {attempt} of task {index} of job {entry.spec.id} has reported nothing")
    return result


ROUTES = [responses.route("POST", PATH, report_result), responses.route("GET", PATH, show_result)]
