"""Routes of clusters: how each stands, what is wanted of it, and why; one function each, no rules. [I/O]"""

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, admit_clusters, answers, etags, pages
from rota.apiserver.access import EVERYWHERE, Action, Caller
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted
from rota.apiserver.openapi.clusters import CLUSTER_FIELDS
from rota.apiserver.quantities import shown
from rota.engine.mirror import Mirror
from rota.engine.reconciler import Command
from rota.model.cluster import Cluster, ClusterWish, why_no_node
from rota.model.ids import JobId
from rota.model.lifecycle import ClusterState
from rota.model.limits import CLUSTERS_MAX
from rota.model.view import View

Json = dict[str, object]


async def list_clusters(request: Request) -> Response:
    caller = caller_of(request)
    access.require_role(caller, Action.LOOK)
    wanted = pages.wish(request.query_params, CLUSTER_FIELDS, "name", most=CLUSTERS_MAX)

    def look(mirror: Mirror) -> Json:
        found, after = pages.page(mirror.clusters, str, wanted)
        shown = [pages.pick(_cluster(mirror, mirror.clusters[name], caller), wanted.only) for name in found]
        return {"clusters": shown, "next": after}

    return answer(await api_of(request).engine.read(look))


async def show_cluster(request: Request) -> Response:
    access.require_role(caller_of(request), Action.LOOK)
    only = pages.chosen(request.query_params, CLUSTER_FIELDS)
    return await _answered(request, request.path_params["ref"], only=only)


async def create_cluster(request: Request) -> Response:
    api, caller = api_of(request), caller_of(request)
    body = await json_body(request)
    name: str = await api.engine.ask("apiserver", lambda view, _: admit_clusters.create(view, body, caller))
    noted(request, f"cluster {name}")
    return await _answered(request, name, 201)


async def change_cluster(request: Request) -> Response:
    caller, ref, body = caller_of(request), request.path_params["ref"], await json_body(request)
    name = await _ask(request, lambda view, _: admit_clusters.change(view, ref, body, caller))
    return await _answered(request, name)


async def delete_cluster(request: Request) -> Response:
    """It may take a while: what runs there may end."""
    caller, ref = caller_of(request), request.path_params["ref"]
    name = await _ask(request, lambda view, _: admit_clusters.delete(view, ref, caller))
    return answer({"name": name}, 202)


async def _ask(request: Request, command: Command) -> str:
    ref = request.path_params["ref"]
    guarded = etags.only_if(request, lambda view: _tag(view, ref), command)
    name: str = await api_of(request).engine.ask("apiserver", guarded)
    noted(request, f"cluster {name}")
    return name


async def _answered(
    request: Request, ref: str, status: int = 200, *, only: frozenset[str] | None = None
) -> Response:
    caller = caller_of(request)

    def look(mirror: Mirror) -> tuple[Json, str]:
        return _cluster(mirror, admit_clusters.find_cluster(mirror, ref), caller), _tag(mirror, ref)

    shown, tag = await api_of(request).engine.read(look)
    return etags.tagged(answer(pages.pick(shown, only), status), tag)


def _tag(view: View, ref: str) -> str:
    return etags.tag_of(admit_clusters.wish_of(view, ref))


def _cluster(mirror: Mirror, cluster: Cluster, caller: Caller) -> Json:
    name = cluster.name
    wish = mirror.cluster_wishes.get(name) or ClusterWish(name)
    reads_settings = access.may(caller, Action.READ_SETTINGS, EVERYWHERE)
    nodes = [node for node in mirror.nodes.values() if node.spec.cluster == name]
    machines = [machine for machine in mirror.machines.values() if machine.cluster == name]
    waiting = [
        mirror.jobs[JobId(str(turn[2]))]
        for line, turns in mirror.waiting()
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
        "settings": wish.settings if reads_settings else access.hidden(wish.settings),
        "capacity": shown(wish.capacity),
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
        "waiting": sum(job.tally.pending for job in waiting),
        "failures": cluster.failures,
        "machines": [
            {"name": one.name, "state": one.state.value, "node": one.node, "reason": one.stuck or one.reason}
            for one in machines
        ],
    }


def _reason(mirror: Mirror, cluster: Cluster, caller: Caller) -> str | None:
    if cluster.state is ClusterState.UNAVAILABLE:
        return why_no_node(mirror.nodes_in(cluster.name))
    if cluster.said is not None and access.may(caller, Action.READ_PROVIDERS, EVERYWHERE):
        return f"{cluster.reason}: {cluster.said}"
    return cluster.reason


ROUTES = [
    answers.route("GET", "/v1/clusters", list_clusters),
    answers.route("POST", "/v1/clusters", create_cluster),
    answers.route("GET", "/v1/clusters/{ref}", show_cluster),
    answers.route("PATCH", "/v1/clusters/{ref}", change_cluster),
    answers.route("DELETE", "/v1/clusters/{ref}", delete_cluster),
]
