"""Routes of namespaces: what each holds against its quota; one function each, no rules. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, etags, responses
from rota.apiserver.access import Action, can_see
from rota.apiserver.admission import namespaces
from rota.apiserver.openapi.nodes import NAMESPACE_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, no_content, set_audit_target
from rota.apiserver.spec import fields
from rota.apiserver.spec.namespace_bounds import bounds_json, usage_json
from rota.apiserver.spec.quantities import quantities_json
from rota.apiserver.views import pages
from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.namespace import NamespaceRecord, NamespaceUsage
from rota.model.view import View

Json = dict[str, object]
NAMESPACES_PAGE_MAX = 10_000  # as many as there may be


async def list_namespaces(request: Request) -> Response:
    """Those for which something is set, and those that have jobs."""
    caller = caller_of(request)
    access.require_role(caller, Action.READ)
    wanted = pages.parse_page_request(
        request.query_params, NAMESPACE_FIELDS, "name", most=NAMESPACES_PAGE_MAX
    )

    def read(mirror: Mirror) -> Json:
        holding = [name for name, held in mirror.usage.by_namespace.items() if any(held.values())]
        waiting = [line.owner.namespace for line, _ in mirror.pending_queues()]
        known = (*mirror.namespaces, *mirror.usage.usage, *holding, *waiting)
        names = {name for name in known if can_see(caller, name)}
        found, after = pages.paginate(names, str, wanted)
        shown = [pages.pick_fields(_namespace_json(mirror, name), wanted.only) for name in found]
        return {"namespaces": shown, "next": after}

    return json_response(await api_of(request).engine.read(read))


async def show_namespace(request: Request) -> Response:
    caller, name = caller_of(request), fields.name("name", request.path_params["ref"])
    access.require_role(caller, Action.READ)
    if not can_see(caller, name):
        raise NotFound(f"no namespace is called '{name}'", hint="see what there is: rota namespace ls")
    return await _respond(request, name, pages.chosen_fields(request.query_params, NAMESPACE_FIELDS))


async def set_namespace(request: Request) -> Response:
    caller, name, body = caller_of(request), request.path_params["ref"], await json_body(request)
    made = await _ask(request, lambda view, _: namespaces.set_namespace(view, name, body, caller), name)
    return await _respond(request, made)


async def delete_namespace(request: Request) -> Response:
    caller, name = caller_of(request), request.path_params["ref"]
    await _ask(request, lambda view, _: namespaces.delete_namespace(view, name, caller), name)
    return no_content()


async def _ask(request: Request, command: Command[str], name: str) -> str:
    guarded = etags.require_match(request, lambda view: _tag(view, name), command)
    done = await api_of(request).engine.ask("apiserver", guarded)
    set_audit_target(request, f"namespace {done}")
    return done


async def _respond(request: Request, name: str, only: frozenset[str] | None = None) -> Response:
    def read(mirror: Mirror) -> tuple[Json, str]:
        return _namespace_json(mirror, name), _tag(mirror, name)

    shown, tag = await api_of(request).engine.read(read)
    return etags.with_tag(json_response(pages.pick_fields(shown, only)), tag)


def _tag(view: View, name: str) -> str:
    return etags.tag_of(view.namespaces.get(name, NamespaceRecord(name)))


def _namespace_json(mirror: Mirror, name: str) -> Json:
    known = mirror.namespaces.get(name, NamespaceRecord(name))
    held = mirror.usage.by_namespace.get(name, {})
    return {
        "name": name,
        "quota": quantities_json(known.quota),
        "weight": known.weight,
        "defaults": quantities_json(known.defaults),
        "bounds": bounds_json(known.bounds),
        "kept": usage_json(mirror.usage.usage.get(name, NamespaceUsage())),
        "held": quantities_json({resource: amount for resource, amount in held.items() if amount}),
        "waiting": sum(len(jobs) for line, jobs in mirror.pending_queues() if line.owner.namespace == name),
    }


ROUTES = [
    responses.route("GET", "/v1/namespaces", list_namespaces),
    responses.route("GET", "/v1/namespaces/{ref}", show_namespace),
    responses.route("PUT", "/v1/namespaces/{ref}", set_namespace),
    responses.route("DELETE", "/v1/namespaces/{ref}", delete_namespace),
]
