"""Routes of namespaces: one function each, no rules. [I/O]"""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.access import Caller, can_see
from rota.apiserver.admission import namespaces
from rota.apiserver.openapi.nodes import NAMESPACE_FIELDS
from rota.apiserver.responses import caller_of, json_body, no_content
from rota.apiserver.routes.resource import ReadContext, Representation, Resource, ref_in_path
from rota.apiserver.spec import fields
from rota.apiserver.spec.quantities import bounds_json, quantities_json, usage_json
from rota.apiserver.views.pages import Json
from rota.engine.state.mirror import Mirror
from rota.model.errors import NotFound
from rota.model.namespace import NamespaceRecord, NamespaceUsage
from rota.model.view import View

NAMESPACES_PAGE_MAX = 10_000  # all that there may be


async def list_namespaces(request: Request) -> Response:
    caller = caller_of(request)
    return await NAMESPACES.list_page(request, lambda mirror: _known_namespaces(mirror, caller))


async def show_namespace(request: Request) -> Response:
    return await NAMESPACES.show(request)


async def set_namespace(request: Request) -> Response:
    caller, name, body = caller_of(request), ref_in_path(request), await json_body(request)
    return await NAMESPACES.change(
        request, lambda view, _: namespaces.set_namespace(view, name, body, caller)
    )


async def delete_namespace(request: Request) -> Response:
    caller, name = caller_of(request), ref_in_path(request)
    await NAMESPACES.ask_if_match(request, lambda view, _: namespaces.delete_namespace(view, name, caller))
    return no_content()


def _known_namespaces(mirror: Mirror, caller: Caller) -> Iterator[NamespaceRecord]:
    """The namespaces that have settings or jobs, as far as the caller may see them."""
    in_use = [name for name, held in mirror.usage.by_namespace.items() if any(held.values())]
    waiting = [queue.owner.namespace for queue, _ in mirror.pending_queues()]
    for name in {*mirror.namespaces, *mirror.usage.usage, *in_use, *waiting}:
        if can_see(caller, name):
            yield _record(mirror, name)


def _find_namespace(view: View, ref: str, caller: Caller) -> NamespaceRecord:
    """The namespace of that name, which always exists: without a record nothing is set for it."""
    name = fields.name("name", ref)
    if not can_see(caller, name):
        raise NotFound(f"no namespace is called '{name}'", hint="see what there is: rota namespace ls")
    return _record(view, name)


def _record(view: View, name: str) -> NamespaceRecord:
    return view.namespaces.get(name, NamespaceRecord(name))


def _namespace_json(mirror: Mirror, namespace: NamespaceRecord, _: ReadContext) -> Json:
    name = namespace.name
    held = mirror.usage.by_namespace.get(name, {})
    return {
        "name": name,
        "quota": quantities_json(namespace.quota),
        "weight": namespace.weight,
        "defaults": quantities_json(namespace.defaults),
        "bounds": bounds_json(namespace.bounds),
        "kept": usage_json(mirror.usage.usage.get(name, NamespaceUsage())),
        "held": quantities_json({resource: amount for resource, amount in held.items() if amount}),
        "waiting": sum(
            len(ranks) for queue, ranks in mirror.pending_queues() if queue.owner.namespace == name
        ),
    }


_NAMESPACE = Representation(NAMESPACE_FIELDS, _namespace_json)
NAMESPACES: Resource[NamespaceRecord] = Resource(
    "namespace",
    find=_find_namespace,
    desired=lambda _, namespace: namespace,
    name_of=lambda namespace: namespace.name,
    shown=_NAMESPACE,
    listed=_NAMESPACE,
    page_max=NAMESPACES_PAGE_MAX,
)

ROUTES = [
    responses.route("GET", "/v1/namespaces", list_namespaces),
    responses.route("GET", "/v1/namespaces/{ref}", show_namespace),
    responses.route("PUT", "/v1/namespaces/{ref}", set_namespace),
    responses.route("DELETE", "/v1/namespaces/{ref}", delete_namespace),
]
