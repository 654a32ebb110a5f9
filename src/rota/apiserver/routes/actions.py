"""Routes of user actions on a job: cancel, kill, restart, move, pause, update and others. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import etags, responses
from rota.apiserver.access import Caller
from rota.apiserver.admission import actions, recovery, restart, update
from rota.apiserver.admission.actions import AdmitAction
from rota.apiserver.admission.idempotency import idempotent
from rota.apiserver.admission.move import move_admission
from rota.apiserver.admission.update import UpdateRequest
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, set_audit_target
from rota.apiserver.views import jobs
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.limits import COUNT_MAX


async def cancel_job(request: Request) -> Response:
    return await _act(request, actions.cancel)


async def kill_job(request: Request) -> Response:
    return await _act(request, actions.kill)


async def restart_tasks(request: Request) -> Response:
    return await _act(request, restart.restart_tasks)


async def move_tasks(request: Request) -> Response:
    return await _act(request, move_admission(api_of(request).why_not_moved))


async def release_tasks(request: Request) -> Response:
    return await _act(request, restart.release_tasks)


async def resolve_tasks(request: Request) -> Response:
    return await _act(request, recovery.resolve_losses_by_user)


async def rollback_job(request: Request) -> Response:
    return await _act(request, update.rollback_job)


async def pause_job(request: Request) -> Response:
    return await _act(request, actions.pause)


async def resume_job(request: Request) -> Response:
    return await _act(request, actions.resume)


async def update_job(request: Request) -> Response:
    """Change the spec, on top of the version in If-Match if there is one."""
    api, caller, ref = api_of(request), caller_of(request), request.path_params["ref"]
    update_request = _parse_update(request, await json_body(request))
    done = await api.engine.ask(
        "apiserver", lambda view, now: update.update_job(view, ref, update_request, caller, now)
    )
    set_audit_target(request, f"job {done.job.id}")
    shown = await api.engine.read(lambda mirror: _job_json(mirror, done.job.id, caller))
    changed = {"at_once": done.at_once, "from_next_attempt": done.from_next_attempt}
    return etags.with_tag(json_response({**shown, "changed": changed}), etags.version_tag(shown["version"]))


async def _act(request: Request, admit: AdmitAction) -> Response:
    api, caller, ref = api_of(request), caller_of(request), request.path_params["ref"]
    body = await json_body(request)
    admit = idempotent(admit, request.headers.get("idempotency-key"))
    job = await api.engine.ask("apiserver", lambda view, now: admit(view, ref, body, caller, now))
    set_audit_target(request, f"job {job}")
    return json_response(await api.engine.read(lambda mirror: _job_json(mirror, job, caller)), 202)


def _job_json(mirror: Mirror, job: JobId, caller: Caller) -> jobs.Json:
    entry = mirror.jobs.get(job)
    if entry is None:
        raise NotFound(f"job {job} was deleted")
    return jobs.job_json(mirror, entry, caller)


def _parse_update(request: Request, body: object) -> UpdateRequest:
    query = request.query_params
    return UpdateRequest(
        body,
        etags.expected_version(request),
        responses.bool_parameter(query, "replace"),
        responses.int_parameter(query, "max_parallel", 0, 1, COUNT_MAX) or None,
    )


ROUTES = [
    responses.route("PATCH", "/v1/jobs/{ref}", update_job),
    responses.route("POST", "/v1/jobs/{ref}/cancel", cancel_job),
    responses.route("POST", "/v1/jobs/{ref}/kill", kill_job),
    responses.route("POST", "/v1/jobs/{ref}/restart", restart_tasks),
    responses.route("POST", "/v1/jobs/{ref}/move", move_tasks),
    responses.route("POST", "/v1/jobs/{ref}/release", release_tasks),
    responses.route("POST", "/v1/jobs/{ref}/rollback", rollback_job),
    responses.route("POST", "/v1/jobs/{ref}/resolve", resolve_tasks),
    responses.route("POST", "/v1/jobs/{ref}/pause", pause_job),
    responses.route("POST", "/v1/jobs/{ref}/resume", resume_job),
]
