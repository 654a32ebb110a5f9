"""Routes by which a job that runs is changed: canceled, killed, restarted, paused, updated. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import (
    admit_loss,
    admit_release,
    admit_restart,
    admit_rollback,
    admit_update,
    admit_wishes,
    answers,
    etags,
    show,
)
from rota.apiserver.access import Caller
from rota.apiserver.admit_move import move_admission
from rota.apiserver.admit_once import idempotent
from rota.apiserver.admit_update import UpdateRequest, UpdateResult
from rota.apiserver.admit_wishes import AdmitAction
from rota.apiserver.answers import json_response, api_of, caller_of, json_body, set_audit_target
from rota.engine.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.limits import COUNT_MAX


async def cancel_job(request: Request) -> Response:
    return await _act(request, admit_wishes.cancel)


async def kill_job(request: Request) -> Response:
    return await _act(request, admit_wishes.kill)


async def restart_tasks(request: Request) -> Response:
    return await _act(request, admit_restart.restart_tasks)


async def move_tasks(request: Request) -> Response:
    return await _act(request, move_admission(api_of(request).why_not_moved))


async def release_tasks(request: Request) -> Response:
    return await _act(request, admit_release.release_tasks)


async def resolve_tasks(request: Request) -> Response:
    return await _act(request, admit_loss.resolve_losses_by_user)


async def rollback_job(request: Request) -> Response:
    return await _act(request, admit_rollback.rollback_job)


async def pause_job(request: Request) -> Response:
    return await _act(request, admit_wishes.pause)


async def resume_job(request: Request) -> Response:
    return await _act(request, admit_wishes.resume)


async def update_job(request: Request) -> Response:
    """Only on top of the version in `If-Match`, where there is one."""
    api, caller, ref = api_of(request), caller_of(request), request.path_params["ref"]
    wanted = _parse_update(request, await json_body(request))
    done: UpdateResult = await api.engine.ask(
        "apiserver", lambda view, now: admit_update.update_job(view, ref, wanted, caller, now)
    )
    set_audit_target(request, f"job {done.job.id}")
    shown = await api.engine.read(lambda mirror: _job_json(mirror, done.job.id, caller))
    changed = {"at_once": done.at_once, "from_next_attempt": done.from_next_attempt}
    return etags.with_tag(json_response({**shown, "changed": changed}), etags.version_tag(shown["version"]))


async def _act(request: Request, admit: AdmitAction) -> Response:
    api, caller, ref = api_of(request), caller_of(request), request.path_params["ref"]
    body = await json_body(request)
    admit = idempotent(admit, request.headers.get("idempotency-key"))
    job: JobId = await api.engine.ask("apiserver", lambda view, now: admit(view, ref, body, caller, now))
    set_audit_target(request, f"job {job}")
    return json_response(await api.engine.read(lambda mirror: _job_json(mirror, job, caller)), 202)


def _job_json(mirror: Mirror, job: JobId, caller: Caller) -> show.Json:
    entry = mirror.jobs.get(job)
    if entry is None:
        raise NotFound(f"job {job} was deleted")
    return show.job_json(mirror, entry, caller)


def _parse_update(request: Request, body: object) -> UpdateRequest:
    query = request.query_params
    return UpdateRequest(
        body,
        etags.expected_version(request),
        answers.bool_parameter(query, "replace"),
        answers.int_parameter(query, "max_parallel", 0, 1, COUNT_MAX) or None,
    )


ROUTES = [
    answers.route("PATCH", "/v1/jobs/{ref}", update_job),
    answers.route("POST", "/v1/jobs/{ref}/cancel", cancel_job),
    answers.route("POST", "/v1/jobs/{ref}/kill", kill_job),
    answers.route("POST", "/v1/jobs/{ref}/restart", restart_tasks),
    answers.route("POST", "/v1/jobs/{ref}/move", move_tasks),
    answers.route("POST", "/v1/jobs/{ref}/release", release_tasks),
    answers.route("POST", "/v1/jobs/{ref}/rollback", rollback_job),
    answers.route("POST", "/v1/jobs/{ref}/resolve", resolve_tasks),
    answers.route("POST", "/v1/jobs/{ref}/pause", pause_job),
    answers.route("POST", "/v1/jobs/{ref}/resume", resume_job),
]
