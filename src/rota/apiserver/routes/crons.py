"""Routes of crons: one function each, no rules. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.access import Caller, can_see
from rota.apiserver.admission import crons
from rota.apiserver.openapi.crons import CRON_FIELDS, CRON_LINE_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, no_content, set_audit_target
from rota.apiserver.routes.resource import ReadContext, Representation, Resource
from rota.apiserver.spec import fields
from rota.apiserver.views import jobs
from rota.apiserver.views.job_spec import readable_spec, spec_json
from rota.apiserver.views.pages import Json
from rota.engine.state.mirror import Mirror
from rota.engine.time_zones import zone
from rota.model.amounts import MINUTE_MS
from rota.model.cron import CronRecord, CronRun
from rota.model.errors import Rejected
from rota.model.view import View
from rota.rules.cron_runs import live_runs, status_of
from rota.rules.cron_schedule import next_after, parse

CRONS_PAGE_MAX = 10_000


async def list_crons(request: Request) -> Response:
    caller, namespace = caller_of(request), request.query_params.get("namespace")
    return await CRONS.list_page(
        request,
        lambda mirror: (
            cron
            for cron in mirror.crons.values()
            if namespace in (None, cron.namespace) and can_see(caller, cron.namespace)
        ),
    )


async def show_cron(request: Request) -> Response:
    return await CRONS.show(request)


async def create_cron(request: Request) -> Response:
    caller, body = caller_of(request), await json_body(request)
    return await CRONS.create(request, lambda view, now: crons.create(view, body, caller, zone, now))


async def change_cron(request: Request) -> Response:
    caller, name, body = caller_of(request), _namespace_and_name(request), await json_body(request)
    return await CRONS.change(
        request, lambda view, now: crons.change(view, name, body, caller, zones=zone, now=now)
    )


async def pause_cron(request: Request) -> Response:
    caller, name = caller_of(request), _namespace_and_name(request)
    return await CRONS.act(request, lambda view, _: crons.pause(view, name, caller))


async def resume_cron(request: Request) -> Response:
    caller, name = caller_of(request), _namespace_and_name(request)
    return await CRONS.act(request, lambda view, now: crons.resume(view, name, caller, now))


async def run_cron(request: Request) -> Response:
    """Submit the cron's job now, besides its schedule, and show that job."""
    caller, name = caller_of(request), _namespace_and_name(request)
    engine, key = api_of(request).engine, request.headers.get("idempotency-key")
    done = await engine.ask("apiserver", lambda view, now: crons.run(view, name, caller, now, key))
    set_audit_target(request, f"job {done.job}")
    shown = await engine.read(lambda mirror: jobs.job_json(mirror, mirror.jobs[done.job], caller))
    return json_response(shown, 201 if done.new else 200)


async def delete_cron(request: Request) -> Response:
    caller, name = caller_of(request), _namespace_and_name(request)
    await CRONS.ask_if_match(request, lambda view, _: crons.delete(view, name, caller))
    return no_content()


def _namespace_and_name(request: Request) -> tuple[str, str]:
    namespace = fields.name("namespace", request.query_params.get("namespace", "default"))
    return namespace, request.path_params["ref"]


def _ref_of(request: Request) -> str:
    return "/".join(_namespace_and_name(request))


def _find_cron(view: View, ref: str, caller: Caller) -> CronRecord:
    namespace, _, name = ref.partition("/")
    return crons.find_cron(view, namespace, name, caller)


def _cron_json(mirror: Mirror, cron: CronRecord, context: ReadContext) -> Json:
    runs = [_run_json(mirror, run) for run in status_of(mirror, cron).runs]
    template = readable_spec(cron.template, context.caller, cron.namespace)
    return {**_cron_line(mirror, cron, context), "runs": runs[::-1], "job": spec_json(template)}


def _cron_line(mirror: Mirror, cron: CronRecord, context: ReadContext) -> Json:
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
        "next_at_ms": None if cron.paused else _next_ms(cron, max(context.now.wall_ms, status.last_ms)),
        "running": live_runs(mirror, status),
        "skipped": status.skipped,
        "reason": status.reason,
    }


def _next_ms(cron: CronRecord, after_ms: int) -> int | None:
    try:
        found = next_after(parse(cron.schedule), zone(cron.zone), after_ms // MINUTE_MS)
    except Rejected:  # the time zone is not installed here any more; the cron's reason says so
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


CRONS: Resource[CronRecord] = Resource(
    "cron",
    find=_find_cron,
    desired=lambda _, cron: cron,
    name_of=lambda cron: cron.ref,
    shown=Representation(CRON_FIELDS, _cron_json),
    listed=Representation(CRON_LINE_FIELDS, _cron_line),
    page_max=CRONS_PAGE_MAX,
    ref_of=_ref_of,
)

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
