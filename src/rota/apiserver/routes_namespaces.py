"""Routes of namespaces: what each holds against its quota; one function each, no rules. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, admit_namespaces, answers, etags, fields, pages
from rota.apiserver.access import Action, sees
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted, nothing
from rota.apiserver.bounds import show_bounds, show_kept
from rota.apiserver.openapi.nodes import NAMESPACE_FIELDS
from rota.apiserver.quantities import shown
from rota.engine.mirror import Mirror
from rota.engine.reconciler import Command
from rota.model.accounts import Kept
from rota.model.errors import NotFound
from rota.model.namespace import Namespace
from rota.model.view import View

Json = dict[str, object]
NAMESPACES_PAGE_MAX = 10_000  # as many as there may be


async def list_namespaces(request: Request) -> Response:
    """Those for which something is set, and those that have jobs."""
    caller = caller_of(request)
    access.require_role(caller, Action.LOOK)
    wanted = pages.wish(request.query_params, NAMESPACE_FIELDS, "name", most=NAMESPACES_PAGE_MAX)

    def look(mirror: Mirror) -> Json:
        holding = [name for name, held in mirror.accounts.of_namespace.items() if any(held.values())]
        waiting = [line.owner.namespace for line, _ in mirror.waiting()]
        known = (*mirror.namespaces, *mirror.accounts.kept, *holding, *waiting)
        names = {name for name in known if sees(caller, name)}
        found, after = pages.page(names, str, wanted)
        shown = [pages.pick(_namespace(mirror, name), wanted.only) for name in found]
        return {"namespaces": shown, "next": after}

    return answer(await api_of(request).engine.read(look))


async def show_namespace(request: Request) -> Response:
    caller, name = caller_of(request), fields.name("name", request.path_params["ref"])
    access.require_role(caller, Action.LOOK)
    if not sees(caller, name):
        raise NotFound(f"no namespace is called '{name}'", hint="see what there is: rota namespace ls")
    return await _answered(request, name, pages.chosen(request.query_params, NAMESPACE_FIELDS))


async def set_namespace(request: Request) -> Response:
    caller, name, body = caller_of(request), request.path_params["ref"], await json_body(request)
    made = await _ask(request, lambda view, _: admit_namespaces.set_namespace(view, name, body, caller), name)
    return await _answered(request, made)


async def delete_namespace(request: Request) -> Response:
    caller, name = caller_of(request), request.path_params["ref"]
    await _ask(request, lambda view, _: admit_namespaces.delete_namespace(view, name, caller), name)
    return nothing()


async def _ask(request: Request, command: Command, name: str) -> str:
    guarded = etags.only_if(request, lambda view: _tag(view, name), command)
    done: str = await api_of(request).engine.ask("apiserver", guarded)
    noted(request, f"namespace {done}")
    return done


async def _answered(request: Request, name: str, only: frozenset[str] | None = None) -> Response:
    def look(mirror: Mirror) -> tuple[Json, str]:
        return _namespace(mirror, name), _tag(mirror, name)

    shown, tag = await api_of(request).engine.read(look)
    return etags.tagged(answer(pages.pick(shown, only)), tag)


def _tag(view: View, name: str) -> str:
    return etags.tag_of(view.namespaces.get(name, Namespace(name)))


def _namespace(mirror: Mirror, name: str) -> Json:
    known = mirror.namespaces.get(name, Namespace(name))
    held = mirror.accounts.of_namespace.get(name, {})
    return {
        "name": name,
        "quota": shown(known.quota),
        "weight": known.weight,
        "defaults": shown(known.defaults),
        "bounds": show_bounds(known.bounds),
        "kept": show_kept(mirror.accounts.kept.get(name, Kept())),
        "held": shown({resource: amount for resource, amount in held.items() if amount}),
        "waiting": sum(len(jobs) for line, jobs in mirror.waiting() if line.owner.namespace == name),
    }


ROUTES = [
    answers.route("GET", "/v1/namespaces", list_namespaces),
    answers.route("GET", "/v1/namespaces/{ref}", show_namespace),
    answers.route("PUT", "/v1/namespaces/{ref}", set_namespace),
    answers.route("DELETE", "/v1/namespaces/{ref}", delete_namespace),
]
