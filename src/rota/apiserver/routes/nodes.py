"""Routes of nodes: one function each, no rules. [I/O]"""

from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, etags, list_watch, responses
from rota.apiserver.access import Action
from rota.apiserver.admission import brake, node_actions
from rota.apiserver.admission.node_actions import set_node_eligibility
from rota.apiserver.api import Api
from rota.apiserver.lookup import find_node
from rota.apiserver.openapi.nodes import NODE_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, no_content, set_audit_target
from rota.apiserver.spec import fields
from rota.apiserver.views import jobs, pages
from rota.apiserver.views.nodes import brake_json, node_eligibility, node_json, node_labels, node_state
from rota.engine.reconciler import Command
from rota.engine.state.entries import NodeEntry
from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.node import Eligibility
from rota.model.plan import EventRecord
from rota.model.view import View

NODES_PAGE_MAX = 10_000  # as many as a cluster has


async def list_nodes(request: Request) -> Response:
    """With `Accept: text/event-stream` those that change."""
    api, query = api_of(request), request.query_params
    access.require_role(caller_of(request), Action.READ)
    wanted = pages.parse_page_request(query, NODE_FIELDS, "name", most=NODES_PAGE_MAX)
    fits = _node_filter(request)
    if responses.accepts_event_stream(request):
        return list_watch.watch_list(api, request, _watched_nodes(api, fits), wanted.only)
    now_ms, seq = api.engine.now_ms(), str(api.event_hub.latest_cursor())

    def read(mirror: Mirror) -> jobs.Json:
        fitting = filter(fits, mirror.nodes.values())
        found, after = pages.paginate(fitting, lambda entry: entry.spec.name, wanted, _name_rank)
        nodes = [pages.pick_fields(node_json(mirror, entry, now_ms), wanted.only) for entry in found]
        return {"nodes": nodes, "next": after, "brake": brake_json(mirror), "seq": seq}

    return json_response(await api.engine.read(read))


def _name_rank(name: str) -> tuple[int, str]:
    return len(name), name  # n2 before n10


def _node_filter(request: Request) -> Callable[[NodeEntry], bool]:
    query = request.query_params
    states = pages.parse_choices(query, "state", NodeState)
    eligible = pages.parse_choices(query, "eligibility", Eligibility)
    labelled = pages.label_filter(query.getlist("label"))
    cluster = query.get("cluster")
    only_granted = api_of(request).engine.mirror.granted_only_labels

    def fits(entry: NodeEntry) -> bool:
        return (
            (states is None or node_state(entry) in states)
            and (eligible is None or node_eligibility(entry) in eligible)
            and cluster in (None, entry.spec.cluster)
            and labelled(node_labels(entry, only_granted))
        )

    return fits


def _watched_nodes(api: Api, fits: Callable[[NodeEntry], bool]) -> list_watch.WatchedList[NodeId]:
    def about(event: EventRecord) -> Iterator[NodeId]:
        if event.node is not None and event.kind.startswith("node."):
            yield event.node

    def read(mirror: Mirror, node: NodeId) -> jobs.Json | None:
        entry = mirror.nodes.get(node)
        if entry is None or not fits(entry):
            return None
        return node_json(mirror, entry, api.engine.now_ms())

    return list_watch.WatchedList("node", about, read, lambda node: {"id": node})


async def show_brake(request: Request) -> Response:
    access.require_role(caller_of(request), Action.READ)
    return json_response(await api_of(request).engine.read(brake_json))


async def release_brake(request: Request) -> Response:
    api, caller = api_of(request), caller_of(request)
    body = await json_body(request)
    names = await api.engine.ask("apiserver", lambda view, now: brake.release_brake(view, body, caller, now))
    set_audit_target(request, f"nodes {', '.join(names)}")
    return json_response({**await api.engine.read(brake_json), "released": names})


async def show_node(request: Request) -> Response:
    access.require_role(caller_of(request), Action.READ)
    only = pages.chosen_fields(request.query_params, NODE_FIELDS)
    return await _respond(api_of(request), request.path_params["ref"], only=only)


async def drain_node(request: Request) -> Response:
    caller, ref = caller_of(request), request.path_params["ref"]
    body = await json_body(request)
    return await _change(
        request, lambda view, now: node_actions.drain_node(view, ref, body, caller, now), status=202
    )


async def cordon_node(request: Request) -> Response:
    return await _set_eligibility(request, Eligibility.CORDONED)


async def open_node(request: Request) -> Response:
    return await _set_eligibility(request, Eligibility.OPEN)


async def revoke_node(request: Request) -> Response:
    caller, ref = caller_of(request), request.path_params["ref"]
    fields.known_fields(await json_body(request), ())
    usable_ms = round(api_of(request).authority.node_usable.total_seconds() * 1000)
    return await _change(
        request, lambda view, now: node_actions.revoke_node(view, ref, caller, now, usable_ms)
    )


async def change_node(request: Request) -> Response:
    caller, ref, body = caller_of(request), request.path_params["ref"], await json_body(request)
    return await _change(request, lambda view, _: node_actions.change_node(view, ref, body, caller))


async def delete_node(request: Request) -> Response:
    caller, ref = caller_of(request), request.path_params["ref"]
    command = etags.require_match(
        request, lambda view: _tag(view, ref), lambda view, _: node_actions.delete_node(view, ref, caller)
    )
    deleted = await api_of(request).engine.ask("apiserver", command)
    set_audit_target(request, f"node {deleted}")
    return no_content()


async def _set_eligibility(request: Request, eligibility: Eligibility) -> Response:
    caller, ref = caller_of(request), request.path_params["ref"]
    return await _change(request, lambda view, _: set_node_eligibility(view, ref, eligibility, caller))


async def _change(request: Request, command: Command[NodeId], status: int = 200) -> Response:
    """What an operator wishes of a node, and the node thereafter."""
    api, ref = api_of(request), request.path_params["ref"]
    guarded = etags.require_match(request, lambda view: _tag(view, ref), command)
    node = await api.engine.ask("apiserver", guarded)
    set_audit_target(request, f"node {node}")
    return await _respond(api, node, status)


async def _respond(api: Api, ref: str, status: int = 200, *, only: frozenset[str] | None = None) -> Response:
    now_ms = api.engine.now_ms()

    def read(mirror: Mirror) -> tuple[jobs.Json, str]:
        entry = mirror.nodes[NodeId(find_node(mirror, ref).spec.id)]
        return node_json(mirror, entry, now_ms), _tag(mirror, ref)

    shown, tag = await api.engine.read(read)
    return etags.with_tag(json_response(pages.pick_fields(shown, only), status), tag)


def _tag(view: View, ref: str) -> str:
    node = find_node(view, ref)
    return etags.tag_of((node.intent, node.spec.labels))


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
