"""Plans, namespaces and taints from Python."""

from rota.client import AsyncCluster
from rota.client.cluster import Cluster
from tests.client.canned_server import CannedServer, Reply, node

OUTLOOK = {"outcome": "wait", "sentence": "would wait", "position": 2, "starts_at_ms": 7, "changes": ["less"]}


def test_plan_takes_the_same_spec_as_submit(server: CannedServer, cluster: Cluster) -> None:
    server.on("POST /v1/plan", OUTLOOK)

    outlook = cluster.plan("python", "train.py", cpu=2)

    body = server.asked("POST /v1/plan")[0].body
    assert body == {"command": ["python", "train.py"], "cpu": 2, "add_nodes": [], "without": []}
    assert (outlook.outcome, outlook.position, outlook.changes) == ("wait", 2, ("less",))


def test_a_plan_may_add_and_remove_nodes(server: CannedServer, cluster: Cluster) -> None:
    server.on("POST /v1/plan", OUTLOOK)
    more = {"count": 2, "capacity": {"cpu": 8}}

    cluster.plan_spec({"command": ["true"]}, add_nodes=[more], without=["a"])

    body = server.asked("POST /v1/plan")[0].body
    assert (body["add_nodes"], body["without"]) == ([more], ["a"])


def test_namespaces_are_set_and_read(server: CannedServer, cluster: Cluster) -> None:
    team = {"name": "team", "quota": {"cpu": 8.0}, "weight": 2, "held": {"cpu": 1.0}, "waiting": 3}
    server.on("PUT /v1/namespaces/team", team)
    server.on("GET /v1/namespaces", {"namespaces": [team]})
    server.on("DELETE /v1/namespaces/team", Reply(status=204))

    made = cluster.namespaces.set("team", {"cpu": 8}, weight=2)
    cluster.namespaces.delete("team")

    assert server.asked("PUT /v1/namespaces/team")[0].body == {"quota": {"cpu": 8}, "weight": 2}
    assert cluster.namespaces.list() == [made]
    assert (made.held, made.waiting) == ({"cpu": 1.0}, 3)


def test_nodes_are_tainted(server: CannedServer, cluster: Cluster) -> None:
    server.on("PATCH /v1/nodes/laptop", node(taints=["gpu"]), node())

    assert cluster.nodes.taint("laptop", "gpu", "dedicated=ci").taints == ("gpu",)
    assert cluster.nodes.untaint("laptop", "gpu").taints == ()
    bodies = [seen.body for seen in server.asked("PATCH /v1/nodes/laptop")]
    assert bodies == [{"taint": ["gpu", "dedicated=ci"]}, {"untaint": ["gpu"]}]


async def test_the_asyncio_client_has_the_same_calls(server: CannedServer, cluster: Cluster) -> None:
    server.on("POST /v1/plan", OUTLOOK)
    server.on("GET /v1/namespaces/team", {"name": "team"})
    server.on("PATCH /v1/nodes/laptop", node(taints=["gpu"]))
    client = AsyncCluster(cluster)

    assert (await client.plan("true")).outcome == "wait"
    assert (await client.namespaces.get("team")).weight == 1
    assert (await client.nodes.taint("laptop", "gpu")).taints == ("gpu",)
