"""Routes of crons: one function each, no rules. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, etags, responses
from rota.apiserver.access import Action, can_see
from rota.apiserver.admission import crons as admit_crons
from rota.apiserver.openapi.crons import CRON_FIELDS, CRON_LINE_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, no_content, set_audit_target
from rota.apiserver.spec import fields
from rota.apiserver.views import jobs, pages
from rota.apiserver.views.job_spec import readable_spec, spec_json
from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.engine.time_zones import zone
from rota.model.amounts import MINUTE_MS
from rota.model.cron import CronRecord, CronRun
from rota.model.errors import NotFound, Rejected
from rota.rules.cron_runs import live_runs, status_of
from rota.rules.cron_schedule import next_after, parse

Json = dict[str, object]
CRONS_PAGE_MAX = 10_000


async def list_crons(request: Request) -> Response:
    caller, api = caller_of(request), api_of(request)
    access.require_role(caller, Action.READ)
    namespace, now_ms = request.query_params.get("namespace"), api.now().wall_ms
    wanted = pages.parse_page_request(request.query_params, CRON_LINE_FIELDS, "name", most=CRONS_PAGE_MAX)

    def read(mirror: Mirror) -> Json:
        crons = (cron for cron in mirror.crons.values() if namespace in (None, cron.namespace))
        seen = (cron for cron in crons if can_see(caller, cron.namespace))
        found, after = pages.paginate(seen, lambda cron: cron.ref, wanted)
        shown = [pages.pick_fields(_cron_line(mirror, cron, now_ms), wanted.only) for cron in found]
        return {"crons": shown, "next": after}

    return json_response(await api.engine.read(read))


async def create_cron(request: Request) -> Response:
    caller, body = caller_of(request), await json_body(request)
    made = await _ask(request, lambda view, now: admit_crons.create(view, body, caller, zone, now))
    return await _respond(request, made, 201)


async def show_cron(request: Request) -> Response:
    caller, (namespace, name) = caller_of(request), _ref(request)
    engine = api_of(request).engine
    only = pages.chosen_fields(request.query_params, CRON_FIELDS)
    cron = await engine.read(lambda mirror: admit_crons.find_cron(mirror, namespace, name, caller))
    return await _respond(request, cron.ref, only=only)


async def change_cron(request: Request) -> Response:
    caller, ref, body = caller_of(request), _ref(request), await json_body(request)
    command = _with_match(
        request, lambda view, now: admit_crons.change(view, ref, body, caller, zones=zone, now=now)
    )
    made = await _ask(request, command)
    return await _respond(request, made)


async def pause_cron(request: Request) -> Response:
    caller, ref = caller_of(request), _ref(request)
    return await _respond(request, await _ask(request, lambda view, _: admit_crons.pause(view, ref, caller)))


async def resume_cron(request: Request) -> Response:
    caller, ref = caller_of(request), _ref(request)
    done = await _ask(request, lambda view, now: admit_crons.resume(view, ref, caller, now))
    return await _respond(request, done)


async def run_cron(request: Request) -> Response:
    caller, ref = caller_of(request), _ref(request)
    engine, key = api_of(request).engine, request.headers.get("idempotency-key")
    done = await engine.ask("apiserver", lambda view, now: admit_crons.run(view, ref, caller, now, key))
    set_audit_target(request, f"job {done.job}")
    shown = await engine.read(lambda mirror: jobs.job_json(mirror, mirror.jobs[done.job], caller))
    return json_response(shown, 201 if done.new else 200)


async def delete_cron(request: Request) -> Response:
    caller, ref = caller_of(request), _ref(request)
    await _ask(request, _with_match(request, lambda view, _: admit_crons.delete(view, ref, caller)))
    return no_content()


def _with_match(request: Request, command: Command[str]) -> Command[str]:
    caller, ref = caller_of(request), _ref(request)
    return etags.require_match(
        request, lambda view: etags.tag_of(admit_crons.find_cron(view, *ref, caller)), command
    )


async def _ask(request: Request, command: Command[str]) -> str:
    done = await api_of(request).engine.ask("apiserver", command)
    set_audit_target(request, f"cron {done}")
    return done


async def _respond(
    request: Request, ref: str, status: int = 200, *, only: frozenset[str] | None = None
) -> Response:
    api, caller = api_of(request), caller_of(request)
    now_ms = api.now().wall_ms

    def read(mirror: Mirror) -> tuple[Json, str]:
        cron = mirror.crons.get(ref)
        if cron is None:
            raise NotFound(f"cron {ref} was deleted")
        runs = [_run_json(mirror, run) for run in status_of(mirror, cron).runs]
        template = readable_spec(cron.template, caller, cron.namespace)
        shown = {**_cron_line(mirror, cron, now_ms), "runs": runs[::-1], "job": spec_json(template)}
        return shown, etags.tag_of(cron)

    shown, tag = await api.engine.read(read)
    return etags.with_tag(json_response(pages.pick_fields(shown, only), status), tag)


def _ref(request: Request) -> tuple[str, str]:
    namespace = fields.name("namespace", request.query_params.get("namespace", "default"))
    return namespace, request.path_params["ref"]


def _cron_line(mirror: Mirror, cron: CronRecord, now_ms: int) -> Json:
    """A cron without its job and its runs."""
    status = status_of(mirror, cron)
    return {
        "name": cron.name,
        "namespace": cron.namespace,
        "schedule": cron.schedule,
        "zone": cron.zone,
        "overlap": cron.overlap.value,
        "missed": cron.missed.value,
        "history": cron.history,
        "paused": cron.paused,
        "user": cron.user,
        "created_at_ms": cron.created_at_ms,
        "last_at_ms": status.runs[-1].instant_ms if status.runs else None,
        "next_at_ms": None if cron.paused else _next_ms(cron, max(now_ms, status.last_ms)),
        "running": live_runs(mirror, status),
        "skipped": status.skipped,
        "reason": status.reason,
    }


def _next_ms(cron: CronRecord, after_ms: int) -> int | None:
    try:
        found = next_after(parse(cron.schedule), zone(cron.zone), after_ms // MINUTE_MS)
    except Rejected:  # the zone is no longer known here, which its reason says
        return None
    return None if found is None else found * MINUTE_MS


def _run_json(mirror: Mirror, run: CronRun) -> Json:
    entry = mirror.jobs.get(run.job)
    return {
        "at_ms": run.instant_ms,
        "job": run.job,
        "name": None if entry is None else entry.spec.name,
        "state": "deleted" if entry is None else jobs.state_of(entry).value,
        "reason": entry.status.reason if entry is not None and entry.status is not None else None,
    }


ROUTES = [
    responses.route("POST", "/v1/crons", create_cron),
    responses.route("GET", "/v1/crons", list_crons),
    responses.route("GET", "/v1/crons/{ref}", show_cron),
    responses.route("PUT", "/v1/crons/{ref}", change_cron),
    responses.route("DELETE", "/v1/crons/{ref}", delete_cron),
    responses.route("POST", "/v1/crons/{ref}/pause", pause_cron),
    responses.route("POST", "/v1/crons/{ref}/resume", resume_cron),
    responses.route("POST", "/v1/crons/{ref}/run", run_cron),
]
