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
from rota.apiserver.admit_move import mover
from rota.apiserver.admit_once import once
from rota.apiserver.admit_update import Update, Updated
from rota.apiserver.admit_wishes import Admit
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted
from rota.engine.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.ids import JobId
from rota.model.limits import COUNT_MAX


async def cancel_job(request: Request) -> Response:
    return await _wish(request, admit_wishes.cancel)


async def kill_job(request: Request) -> Response:
    return await _wish(request, admit_wishes.kill)


async def restart_tasks(request: Request) -> Response:
    return await _wish(request, admit_restart.restart)


async def move_tasks(request: Request) -> Response:
    return await _wish(request, mover(api_of(request).why_not_moved))


async def release_tasks(request: Request) -> Response:
    return await _wish(request, admit_release.release)


async def resolve_tasks(request: Request) -> Response:
    return await _wish(request, admit_loss.resolve_by_hand)


async def rollback_job(request: Request) -> Response:
    return await _wish(request, admit_rollback.rollback)


async def pause_job(request: Request) -> Response:
    return await _wish(request, admit_wishes.pause)


async def resume_job(request: Request) -> Response:
    return await _wish(request, admit_wishes.resume)


async def update_job(request: Request) -> Response:
    """Only on top of the version in `If-Match`, where there is one."""
    api, caller, ref = api_of(request), caller_of(request), request.path_params["ref"]
    wanted = _wanted(request, await json_body(request))
    done: Updated = await api.engine.ask(
        "apiserver", lambda view, now: admit_update.update(view, ref, wanted, caller, now)
    )
    noted(request, f"job {done.job.id}")
    shown = await api.engine.read(lambda mirror: _shown(mirror, done.job.id, caller))
    changed = {"at_once": done.at_once, "from_next_attempt": done.later}
    return etags.tagged(answer({**shown, "changed": changed}), etags.numbered(shown["version"]))


async def _wish(request: Request, admit: Admit) -> Response:
    api, caller, ref = api_of(request), caller_of(request), request.path_params["ref"]
    body = await json_body(request)
    admit = once(admit, request.headers.get("idempotency-key"))
    job: JobId = await api.engine.ask("apiserver", lambda view, now: admit(view, ref, body, caller, now))
    noted(request, f"job {job}")
    return answer(await api.engine.read(lambda mirror: _shown(mirror, job, caller)), 202)


def _shown(mirror: Mirror, job: JobId, caller: Caller) -> show.Json:
    entry = mirror.jobs.get(job)
    if entry is None:
        raise NotFound(f"job {job} was deleted")
    return show.job(mirror, entry, caller)


def _wanted(request: Request, body: object) -> Update:
    query = request.query_params
    return Update(
        body,
        etags.expected_version(request),
        answers.flag(query, "replace"),
        answers.whole(query, "max_parallel", 0, 1, COUNT_MAX) or None,
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
