"""Routes of clusters: how each stands, what is wanted of it, and why; one function each, no rules. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, etags, responses
from rota.apiserver.access import ALL_NAMESPACES, Action, Caller
from rota.apiserver.admission import clusters
from rota.apiserver.openapi.clusters import CLUSTER_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, set_audit_target
from rota.apiserver.spec.quantities import quantities_json
from rota.apiserver.views import pages
from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.model.cluster import ClusterIntent, ClusterRecord, why_no_node
from rota.model.ids import JobId
from rota.model.lifecycle import ClusterState
from rota.model.limits import CLUSTERS_MAX
from rota.model.view import View

Json = dict[str, object]


async def list_clusters(request: Request) -> Response:
    caller = caller_of(request)
    access.require_role(caller, Action.READ)
    wanted = pages.parse_page_request(request.query_params, CLUSTER_FIELDS, "name", most=CLUSTERS_MAX)

    def read(mirror: Mirror) -> Json:
        found, after = pages.paginate(mirror.clusters, str, wanted)
        shown = [
            pages.pick_fields(_cluster_json(mirror, mirror.clusters[name], caller), wanted.only)
            for name in found
        ]
        return {"clusters": shown, "next": after}

    return json_response(await api_of(request).engine.read(read))


async def show_cluster(request: Request) -> Response:
    access.require_role(caller_of(request), Action.READ)
    only = pages.chosen_fields(request.query_params, CLUSTER_FIELDS)
    return await _respond(request, request.path_params["ref"], only=only)


async def create_cluster(request: Request) -> Response:
    api, caller = api_of(request), caller_of(request)
    body = await json_body(request)
    name = await api.engine.ask("apiserver", lambda view, _: clusters.create(view, body, caller))
    set_audit_target(request, f"cluster {name}")
    return await _respond(request, name, 201)


async def change_cluster(request: Request) -> Response:
    caller, ref, body = caller_of(request), request.path_params["ref"], await json_body(request)
    name = await _ask(request, lambda view, _: clusters.change(view, ref, body, caller))
    return await _respond(request, name)


async def delete_cluster(request: Request) -> Response:
    """It may take a while: what runs there may end."""
    caller, ref = caller_of(request), request.path_params["ref"]
    name = await _ask(request, lambda view, _: clusters.delete(view, ref, caller))
    return json_response({"name": name}, 202)


async def _ask(request: Request, command: Command[str]) -> str:
    ref = request.path_params["ref"]
    guarded = etags.require_match(request, lambda view: _tag(view, ref), command)
    name = await api_of(request).engine.ask("apiserver", guarded)
    set_audit_target(request, f"cluster {name}")
    return name


async def _respond(
    request: Request, ref: str, status: int = 200, *, only: frozenset[str] | None = None
) -> Response:
    caller = caller_of(request)

    def read(mirror: Mirror) -> tuple[Json, str]:
        return _cluster_json(mirror, clusters.find_cluster(mirror, ref), caller), _tag(mirror, ref)

    shown, tag = await api_of(request).engine.read(read)
    return etags.with_tag(json_response(pages.pick_fields(shown, only), status), tag)


def _tag(view: View, ref: str) -> str:
    return etags.tag_of(clusters.cluster_intent(view, ref))


def _cluster_json(mirror: Mirror, cluster: ClusterRecord, caller: Caller) -> Json:
    name = cluster.name
    wish = mirror.cluster_intents.get(name) or ClusterIntent(name)
    reads_settings = access.is_allowed(caller, Action.READ_SETTINGS, ALL_NAMESPACES)
    nodes = [node for node in mirror.nodes.values() if node.spec.cluster == name]
    machines = [machine for machine in mirror.machines.values() if machine.cluster == name]
    waiting = [
        mirror.jobs[JobId(str(turn[2]))]
        for line, turns in mirror.pending_queues()
        for turn in turns
        if line.shape.cluster == name
    ]
    return {
        "name": name,
        "state": cluster.state.value,
        "reason": _reason(mirror, cluster, caller),
        "type": wish.type,
        "region": wish.region,
        "labels": wish.labels,
        "provider": wish.provider,
        "settings": wish.settings if reads_settings else access.redacted(wish.settings),
        "capacity": quantities_json(wish.capacity),
        "min_nodes": wish.min_nodes,
        "max_nodes": wish.max_nodes,
        "nodes_wanted": wish.nodes,
        "idle_seconds": wish.idle_seconds,
        "join_seconds": wish.join_seconds,
        "pause_seconds": wish.pause_seconds,
        "min_clusters": wish.min_clusters,
        "max_clusters": wish.max_clusters,
        "wait_seconds": wish.wait_seconds,
        "fail_after_seconds": wish.fails_after_seconds,
        "like": cluster.like,
        "drain": wish.drain,
        "nodes": len(nodes),
        "open_nodes": sum(node.open for node in nodes),
        "running": sum(len(node.assigned) for node in nodes),
        "waiting": sum(job.task_counts.pending for job in waiting),
        "failures": cluster.failures,
        "machines": [
            {"name": one.name, "state": one.state.value, "node": one.node, "reason": one.stuck or one.reason}
            for one in machines
        ],
    }


def _reason(mirror: Mirror, cluster: ClusterRecord, caller: Caller) -> str | None:
    if cluster.state is ClusterState.UNAVAILABLE:
        return why_no_node(mirror.nodes_in(cluster.name))
    if cluster.said is not None and access.is_allowed(caller, Action.READ_PROVIDERS, ALL_NAMESPACES):
        return f"{cluster.reason}: {cluster.said}"
    return cluster.reason


ROUTES = [
    responses.route("GET", "/v1/clusters", list_clusters),
    responses.route("POST", "/v1/clusters", create_cluster),
    responses.route("GET", "/v1/clusters/{ref}", show_cluster),
    responses.route("PATCH", "/v1/clusters/{ref}", change_cluster),
    responses.route("DELETE", "/v1/clusters/{ref}", delete_cluster),
]
