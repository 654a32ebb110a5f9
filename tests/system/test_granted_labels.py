"""Labels that jobs can demand only if an operator or a join token has granted them to a node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Node 1 declares pool=prod and tier=gold; node 2 was granted pool=prod by its join token.

    `tier` counts only where it is granted.
    """
    settings = {"ROTA_PLACEMENT_GRANTED_LABELS": "tier"}
    with LocalCluster(tmp_path / "cluster", nodes=0, settings=settings) as running:
        answer = running.call("POST", "/v1/join-tokens", {"local": True, "labels": {"pool": "prod"}})
        running.start_agent(1, labels="pool=prod,tier=gold")
        running.start_agent(2, join=str(answer.body["line"]).split("'")[1])
        running.wait_for_nodes()
        yield running


def ran_on(cluster: LocalCluster, *where: str) -> list[str]:
    """The nodes on which eight tasks with these conditions ran."""
    job = cluster.submit("true", where=list(where), count=8)
    until(lambda: cluster.count(job, "succeeded") == 8, "all have run")
    tasks = cluster.call("GET", f"/v1/jobs/{job}/tasks").body["tasks"]
    return sorted({task["node"] for task in tasks})


def test_only_granted_labels_satisfy_a_demand_for_them(cluster: LocalCluster) -> None:
    first, second = cluster.node(1), cluster.node(2)
    shown = cluster.rota("node", "show", "node-1").out

    assert ran_on(cluster, "granted.pool == prod") == ["node-2"]
    assert first["labels"]["pool"] == "prod"
    assert (first["granted_labels"], second["granted_labels"]) == ({}, {"pool": "prod"})
    assert "tier" not in first["labels"]
    assert first["ignored_labels"] == {"tier": "gold"}
    assert "ignored    tier=gold" in shown


def test_an_operator_grants_and_revokes_a_label(cluster: LocalCluster) -> None:
    given = cluster.rota("node", "label", "node-1", "pool=prod", "tier=gold")
    labelled = cluster.node(1)
    ran = ran_on(cluster, "tier == gold"), ran_on(cluster, "granted.tier == gold", "granted.pool == prod")
    listed = cluster.rota("node", "ls", "-o", "wide").out
    taken = cluster.rota("node", "unlabel", "node-1", "tier")
    missing = cluster.rota("node", "unlabel", "node-1", "tier")
    waiting = cluster.submit("true", where=["tier == gold"])

    assert (given.code, taken.code, missing.code) == (0, 0, 4), (given.err, taken.err)
    assert labelled["granted_labels"] == {"pool": "prod", "tier": "gold"}
    assert labelled["ignored_labels"] == {}
    assert ran == (["node-1"], ["node-1"])
    assert "GRANTED" in listed
    assert "not satisfy tier == gold" in cluster.rota("why", waiting).out


def test_a_granted_label_survives_a_restart_and_labels_declared_by_the_node(cluster: LocalCluster) -> None:
    assert cluster.rota("node", "label", "node-1", "pool=test").code == 0
    cluster.kill_server()
    cluster.start_server()
    until(lambda: cluster.node(1)["state"] == "ready", "it is back, and says pool=prod")
    until(lambda: cluster.node(2)["state"] == "ready", "so is the other")

    assert cluster.node(1)["labels"]["pool"] == "test"
    assert cluster.node(1)["ignored_labels"] == {"pool": "prod", "tier": "gold"}
    assert ran_on(cluster, "pool == prod") == ["node-2"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"label": {"granted.pool": "x"}}, "label"),
        ({"label": {"cluster": "x"}}, "label"),
        ({"label": {"machine": "x"}}, "label"),
        ({"label": ["pool"]}, "label"),
        ({"label": {"pool": 1}}, "label"),
        ({"label": {f"k{number}": "x" for number in range(100)}}, "label"),
        ({"unlabel": "pool"}, "unlabel"),
        ({"unlabel": ["machine"]}, "unlabel"),
    ],
)
def test_an_invalid_grant_is_refused_by_field(
    shared: LocalCluster, body: dict[str, object], field: str
) -> None:
    answer = shared.call("PATCH", "/v1/nodes/node-1", body)

    assert (answer.status, answer.body["field"]) == (400, field), answer


def test_an_agent_cannot_be_configured_with_a_granted_label(shared: LocalCluster) -> None:
    directory = str(shared.directory / "other")
    ended = shared.rota("agent", "--data-dir", directory, "--name", "other", "--label", "granted.pool=prod")

    assert ended.code != 0
    assert "labels.granted.pool" in ended.err
