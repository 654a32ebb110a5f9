"""Routes of nodes and of the brake: one function each, no rules. [I/O]"""

from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, list_watch, responses
from rota.apiserver.access import Action
from rota.apiserver.admission import node_actions
from rota.apiserver.api import Api
from rota.apiserver.lookup import find_node
from rota.apiserver.openapi.nodes import NODE_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, no_content, set_audit_target
from rota.apiserver.routes.resource import ReadContext, Representation, Resource, read_context, ref_in_path
from rota.apiserver.spec import fields
from rota.apiserver.views import pages
from rota.apiserver.views.nodes import brake_json, node_eligibility, node_json, node_labels, node_state
from rota.apiserver.views.pages import Json
from rota.engine.state.entries import NodeEntry
from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.node import Eligibility
from rota.model.plan import EventRecord
from rota.model.view import NodeView

NODES_PAGE_MAX = 10_000  # all nodes of a large cluster


async def list_nodes(request: Request) -> Response:
    """A page of nodes; with `Accept: text/event-stream`, nodes as they change."""
    api, page_request, fits = api_of(request), NODES.page_request(request), _node_filter(request)
    if responses.accepts_event_stream(request):
        return list_watch.watch_list(api, request, _watched_nodes(api, fits), page_request.only)
    # Taken before the page is read: a watch from here may repeat a change, and never misses one.
    context, seq = read_context(request), str(api.event_hub.latest_cursor())

    def read(mirror: Mirror) -> Json:
        fitting = (entry for entry in mirror.nodes.values() if fits(entry))
        page = NODES.page(mirror, fitting, page_request, context)
        return {**page, "brake": brake_json(mirror), "seq": seq}

    return json_response(await api.engine.read(read))


def _name_rank(name: str) -> tuple[int, str]:
    return len(name), name  # n2 before n10


def _node_filter(request: Request) -> Callable[[NodeEntry], bool]:
    query = request.query_params
    states = pages.parse_choices(query, "state", NodeState)
    eligibilities = pages.parse_choices(query, "eligibility", Eligibility)
    labelled = pages.label_filter(query.getlist("label"))
    cluster = query.get("cluster")
    only_granted = api_of(request).engine.mirror.granted_only_labels

    def fits(entry: NodeEntry) -> bool:
        return (
            (states is None or node_state(entry) in states)
            and (eligibilities is None or node_eligibility(entry) in eligibilities)
            and cluster in (None, entry.spec.cluster)
            and labelled(node_labels(entry, only_granted))
        )

    return fits


def _watched_nodes(api: Api, fits: Callable[[NodeEntry], bool]) -> list_watch.WatchedList[NodeId]:
    def keys_of(event: EventRecord) -> Iterator[NodeId]:
        if event.node is not None and event.kind.startswith("node."):
            yield event.node

    def read(mirror: Mirror, node: NodeId) -> Json | None:
        entry = mirror.nodes.get(node)
        if entry is None or not fits(entry):
            return None
        return node_json(mirror, entry, api.engine.now_ms())

    return list_watch.WatchedList("node", keys_of, read, lambda node: {"id": node})


async def show_brake(request: Request) -> Response:
    access.require_role(caller_of(request), Action.READ)
    return json_response(await api_of(request).engine.read(brake_json))


async def release_brake(request: Request) -> Response:
    api, caller = api_of(request), caller_of(request)
    body = await json_body(request)
    names = await api.engine.ask(
        "apiserver", lambda view, now: node_actions.release_brake(view, body, caller, now)
    )
    set_audit_target(request, f"nodes {', '.join(names)}")
    return json_response({**await api.engine.read(brake_json), "released": names})


async def show_node(request: Request) -> Response:
    return await NODES.show(request)


async def drain_node(request: Request) -> Response:
    caller, ref, body = caller_of(request), ref_in_path(request), await json_body(request)
    return await NODES.change(
        request, lambda view, now: node_actions.drain_node(view, ref, body, caller, now), 202
    )


async def cordon_node(request: Request) -> Response:
    return await _set_eligibility(request, Eligibility.CORDONED)


async def open_node(request: Request) -> Response:
    return await _set_eligibility(request, Eligibility.OPEN)


async def revoke_node(request: Request) -> Response:
    caller, ref = caller_of(request), ref_in_path(request)
    fields.known_fields(await json_body(request), ())
    usable_ms = round(api_of(request).authority.node_usable.total_seconds() * 1000)
    return await NODES.change(
        request, lambda view, now: node_actions.revoke_node(view, ref, caller, now, usable_ms)
    )


async def change_node(request: Request) -> Response:
    caller, ref, body = caller_of(request), ref_in_path(request), await json_body(request)
    return await NODES.change(request, lambda view, _: node_actions.change_node(view, ref, body, caller))


async def delete_node(request: Request) -> Response:
    caller, ref = caller_of(request), ref_in_path(request)
    await NODES.ask_if_match(request, lambda view, _: node_actions.delete_node(view, ref, caller))
    return no_content()


async def _set_eligibility(request: Request, eligibility: Eligibility) -> Response:
    caller, ref = caller_of(request), ref_in_path(request)
    return await NODES.change(
        request, lambda view, _: node_actions.set_node_eligibility(view, ref, eligibility, caller)
    )


def _node_json(mirror: Mirror, node: NodeView, context: ReadContext) -> Json:
    return node_json(mirror, mirror.nodes[NodeId(node.spec.id)], context.now.ms)


_NODE = Representation(NODE_FIELDS, _node_json)
NODES: Resource[NodeView] = Resource(
    "node",
    find=lambda view, ref, _: find_node(view, ref),
    desired=lambda _, node: (node.intent, node.spec.labels),
    name_of=lambda node: node.spec.name,
    shown=_NODE,
    listed=_NODE,
    page_max=NODES_PAGE_MAX,
    rank=_name_rank,
)

ROUTES = [
    responses.route("GET", "/v1/nodes", list_nodes),
    responses.route("GET", "/v1/brake", show_brake),
    responses.route("POST", "/v1/brake/release", release_brake),
    responses.route("GET", "/v1/nodes/{ref}", show_node),
    responses.route("PATCH", "/v1/nodes/{ref}", change_node),
    responses.route("DELETE", "/v1/nodes/{ref}", delete_node),
    responses.route("POST", "/v1/nodes/{ref}/drain", drain_node),
    responses.route("POST", "/v1/nodes/{ref}/cordon", cordon_node),
    responses.route("POST", "/v1/nodes/{ref}/open", open_node),
    responses.route("POST", "/v1/nodes/{ref}/revoke", revoke_node),
]
