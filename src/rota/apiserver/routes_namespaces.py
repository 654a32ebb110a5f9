"""Routes of namespaces: what each holds against its quota; one function each, no rules. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, admit_namespaces, answers, fields
from rota.apiserver.access import Action, sees
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted, nothing
from rota.apiserver.quantities import shown
from rota.engine.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.namespace import Namespace

Json = dict[str, object]


async def list_namespaces(request: Request) -> Response:
    """Those for which something is set, and those whose jobs hold something or wait."""
    caller = caller_of(request)
    access.require_role(caller, Action.LOOK)

    def look(mirror: Mirror) -> Json:
        holding = [name for name, held in mirror.accounts.of_namespace.items() if any(held.values())]
        waiting = [line.owner.namespace for line, _ in mirror.waiting()]
        names = sorted({*mirror.namespaces, *holding, *waiting})
        return {"namespaces": [_namespace(mirror, name) for name in names if sees(caller, name)]}

    return answer(await api_of(request).engine.read(look))


async def show_namespace(request: Request) -> Response:
    caller, name = caller_of(request), fields.name("name", request.path_params["ref"])
    access.require_role(caller, Action.LOOK)
    if not sees(caller, name):
        raise NotFound(f"no namespace is called '{name}'", hint="see what there is: rota namespace ls")
    return answer(await api_of(request).engine.read(lambda mirror: _namespace(mirror, name)))


async def set_namespace(request: Request) -> Response:
    api, caller, name = api_of(request), caller_of(request), request.path_params["ref"]
    body = await json_body(request)
    made: str = await api.engine.ask(
        "apiserver", lambda view, _: admit_namespaces.set_namespace(view, name, body, caller)
    )
    noted(request, f"namespace {made}")
    return answer(await api.engine.read(lambda mirror: _namespace(mirror, made)))


async def delete_namespace(request: Request) -> Response:
    caller, name = caller_of(request), request.path_params["ref"]
    gone = await api_of(request).engine.ask(
        "apiserver", lambda view, _: admit_namespaces.delete_namespace(view, name, caller)
    )
    noted(request, f"namespace {gone}")
    return nothing()


def _namespace(mirror: Mirror, name: str) -> Json:
    known = mirror.namespaces.get(name, Namespace(name))
    held = mirror.accounts.of_namespace.get(name, {})
    return {
        "name": name,
        "quota": shown(known.quota),
        "weight": known.weight,
        "held": shown({resource: amount for resource, amount in held.items() if amount}),
        "waiting": sum(len(jobs) for line, jobs in mirror.waiting() if line.owner.namespace == name),
    }


ROUTES = [
    answers.route("GET", "/v1/namespaces", list_namespaces),
    answers.route("GET", "/v1/namespaces/{ref}", show_namespace),
    answers.route("PUT", "/v1/namespaces/{ref}", set_namespace),
    answers.route("DELETE", "/v1/namespaces/{ref}", delete_namespace),
]
