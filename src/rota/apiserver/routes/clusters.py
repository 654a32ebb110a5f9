"""Routes of clusters: one function each, no rules. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, responses
from rota.apiserver.access import ALL_NAMESPACES, Action, Caller
from rota.apiserver.admission import clusters
from rota.apiserver.openapi.clusters import CLUSTER_FIELDS
from rota.apiserver.responses import caller_of, json_body, json_response
from rota.apiserver.routes.resource import ReadContext, Representation, Resource, ref_in_path
from rota.apiserver.spec.quantities import quantities_json
from rota.apiserver.views.pages import Json
from rota.engine.state.mirror import Mirror
from rota.model.cluster import ClusterIntent, ClusterRecord, why_no_node
from rota.model.ids import JobId
from rota.model.lifecycle import ClusterState
from rota.model.limits import CLUSTERS_MAX


async def list_clusters(request: Request) -> Response:
    return await CLUSTERS.list_page(request, lambda mirror: mirror.clusters.values())


async def show_cluster(request: Request) -> Response:
    return await CLUSTERS.show(request)


async def create_cluster(request: Request) -> Response:
    caller, body = caller_of(request), await json_body(request)
    return await CLUSTERS.create(request, lambda view, _: clusters.create(view, body, caller))


async def change_cluster(request: Request) -> Response:
    caller, ref, body = caller_of(request), ref_in_path(request), await json_body(request)
    return await CLUSTERS.change(request, lambda view, _: clusters.change(view, ref, body, caller))


async def delete_cluster(request: Request) -> Response:
    """202: the cluster is drained first, and forgotten when nothing is left of it."""
    caller, ref = caller_of(request), ref_in_path(request)
    name = await CLUSTERS.ask_if_match(request, lambda view, _: clusters.delete(view, ref, caller))
    return json_response({"name": name}, 202)


def _cluster_json(mirror: Mirror, cluster: ClusterRecord, context: ReadContext) -> Json:
    name, caller = cluster.name, context.caller
    intent = mirror.cluster_intents.get(name) or ClusterIntent(name)
    reads_settings = access.is_allowed(caller, Action.READ_SETTINGS, ALL_NAMESPACES)
    nodes = [node for node in mirror.nodes.values() if node.spec.cluster == name]
    machines = [machine for machine in mirror.machines.values() if machine.cluster == name]
    waiting = [
        mirror.jobs[JobId(str(rank[2]))]
        for queue, ranks in mirror.pending_queues()
        for rank in ranks
        if queue.shape.cluster == name
    ]
    return {
        "name": name,
        "state": cluster.state.value,
        "reason": _reason(mirror, cluster, caller),
        "type": intent.type,
        "region": intent.region,
        "labels": intent.labels,
        "provider": intent.provider,
        "settings": intent.settings if reads_settings else access.redacted(intent.settings),
        "capacity": quantities_json(intent.capacity),
        "min_nodes": intent.min_nodes,
        "max_nodes": intent.max_nodes,
        "nodes_wanted": intent.nodes,
        "idle_seconds": intent.idle_seconds,
        "join_seconds": intent.join_seconds,
        "pause_seconds": intent.pause_seconds,
        "min_clusters": intent.min_clusters,
        "max_clusters": intent.max_clusters,
        "wait_seconds": intent.wait_seconds,
        "fail_after_seconds": intent.fails_after_seconds,
        "like": cluster.like,
        "drain": intent.drain,
        "nodes": len(nodes),
        "open_nodes": sum(node.open for node in nodes),
        "running": sum(len(node.assigned) for node in nodes),
        "waiting": sum(job.task_counts.pending for job in waiting),
        "failures": cluster.failures,
        "machines": [
            {
                "name": machine.name,
                "state": machine.state.value,
                "node": machine.node,
                "reason": machine.stuck or machine.reason,
            }
            for machine in machines
        ],
    }


def _reason(mirror: Mirror, cluster: ClusterRecord, caller: Caller) -> str | None:
    """Why the cluster is in its state. Output of its provider may quote secrets: only for operators."""
    if cluster.state is ClusterState.UNAVAILABLE:
        return why_no_node(mirror.nodes_in(cluster.name))
    if cluster.provider_message is not None and access.is_allowed(
        caller, Action.READ_PROVIDERS, ALL_NAMESPACES
    ):
        return f"{cluster.reason}: {cluster.provider_message}"
    return cluster.reason


_CLUSTER = Representation(CLUSTER_FIELDS, _cluster_json)
CLUSTERS: Resource[ClusterRecord] = Resource(
    "cluster",
    find=lambda view, ref, _: clusters.find_cluster(view, ref),
    desired=lambda view, cluster: clusters.cluster_intent(view, cluster.name),
    name_of=lambda cluster: cluster.name,
    shown=_CLUSTER,
    listed=_CLUSTER,
    page_max=CLUSTERS_MAX,
)

ROUTES = [
    responses.route("GET", "/v1/clusters", list_clusters),
    responses.route("POST", "/v1/clusters", create_cluster),
    responses.route("GET", "/v1/clusters/{ref}", show_cluster),
    responses.route("PATCH", "/v1/clusters/{ref}", change_cluster),
    responses.route("DELETE", "/v1/clusters/{ref}", delete_cluster),
]
