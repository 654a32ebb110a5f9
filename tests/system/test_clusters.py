"""Clusters of real processes: jobs stay in theirs; nodes are added and removed with the load."""

import json
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until, with_argument
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system
SECONDS = 100.0
PAUSE_SECONDS = 4.9  # of a provider after its first failure: at least


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=1) as made:
        yield made


def shown(cluster: LocalCluster, name: str) -> Any:
    return cluster.call("GET", f"/v1/clusters/{name}").body


def names(cluster: LocalCluster) -> list[str]:
    return [node["name"] for node in cluster.call("GET", "/v1/nodes").body["nodes"]]


def ledger(cluster: LocalCluster, name: str) -> list[str]:
    events = cluster.call("GET", f"/v1/events?cluster={name}&limit=1000").body["events"]
    return [event["why"] for event in events]


def test_nodes_are_added_and_removed_with_the_load_and_no_attempt_is_lost(
    cluster: LocalCluster, gate: Gate
) -> None:
    made = cluster.rota(
        *(
            "cluster",
            "create",
            "burst",
            "--provider",
            "local",
            "--node",
            "cpu=1",
            "--max",
            "3",
            "--idle",
            "1s",
        )
    )
    job = cluster.submit("sh", "-c", gate.wait, cluster="burst", count=20)
    until(lambda: cluster.count(job, "running") == 3, "each machine is at work", SECONDS)
    gate.open()
    until(lambda: cluster.count(job, "succeeded") == 20, "all have run", SECONDS)
    until(lambda: shown(cluster, "burst")["machines"] == [], "all machines are gone", SECONDS)
    tasks = cluster.call("GET", f"/v1/jobs/{job}/tasks").body["tasks"]
    entries = ledger(cluster, "burst")

    assert made.code == 0, made.err
    assert {task["node"] for task in tasks} == {"n2", "n3", "n4"}  # their names went with them
    assert {task["attempt"] for task in tasks} == {1}
    assert (
        "adding 3 nodes to burst: 20 tasks wait, 3 of them would start; it has 0, its limit is 3" in entries
    )
    assert any(why.startswith("machine burst-1 has joined") for why in entries)
    assert sum(why.startswith("taking ") for why in entries) >= 1
    until(lambda: names(cluster) == ["node-1"], "their nodes went with them")
    until(lambda: not with_argument(str(cluster.machines)), "their processes have ended")


def test_each_job_is_assigned_by_type_region_and_affinity(cluster: LocalCluster, gate: Gate) -> None:
    cluster.rota("cluster", "create", "build", "--type", "ci", "--region", "eu")
    farm = ("--provider", "local", "--node", "cpu=1", "--max", "1")
    cluster.rota("cluster", "create", "farm", "--type", "batch", "--region", "us", *farm)
    line = cluster.call("POST", "/v1/join-tokens", {"local": True, "cluster": "build"}).body["line"]
    cluster.start_agent(2, join=shlex.split(line)[-1])
    cluster.wait_for_nodes()
    data = cluster.submit("sh", "-c", gate.wait, region="eu", labels={"tier": "data"})
    until(lambda: cluster.count(data, "running") == 1, "there is somebody to be near to", SECONDS)
    where: dict[str, dict[str, Any]] = {
        "default": {"cluster": "default"},
        "eu": {"region": "eu"},
        "ci": {"where": ["cluster_type == ci"]},
        "near": {"near": ["tier == data over region"]},
        "us": {"region": "us"},
        "batch": {"where": ["cluster_type == batch", "region == us"]},
    }
    jobs = {name: cluster.submit("true", count=3, **spec) for name, spec in where.items()}
    nowhere = cluster.call("POST", "/v1/jobs", {"command": ["true"], "where": ["cluster_type == gpu"]}).body
    reason = cluster.rota("why", nowhere["id"]).out
    for job in jobs.values():
        until(lambda job=job: cluster.count(job, "succeeded") == 3, "all have run", SECONDS)  # type: ignore[misc]
    gate.open()

    homes = {name: cluster.call("GET", f"/v1/jobs/{job}").body["cluster"] for name, job in jobs.items()}
    tasks = {name: cluster.call("GET", f"/v1/jobs/{job}/tasks").body["tasks"] for name, job in jobs.items()}
    build, grown = ("build", {"node-2"}), ("farm", {"farm-1"})
    assert {name: (homes[name], {task["node"] for task in tasks[name]}) for name in jobs} == {
        "default": ("default", {"node-1"}),
        **dict.fromkeys(("eu", "ci", "near"), build),
        **dict.fromkeys(("us", "batch"), grown),
    }
    (warning,) = nowhere["warnings"]
    assert warning["field"] == "where"
    assert warning["text"].startswith("no node satisfies 'cluster_type == gpu' now: ")
    assert "cluster_type == gpu" in reason


def test_a_failing_provider_is_quoted_to_operators_and_called_with_backoff(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    create = tmp_path / "create"
    create.write_text(f"#!/bin/sh\ndate +%s.%N >> {asked}\necho no quota left >&2\nexit 1\n")
    create.chmod(0o755)
    body = {
        "name": "cloud",
        "provider": "command",
        "settings": {"create": str(create), "list": "true", "remove": "true"},
        "capacity": {"cpu": 2},
        "max_nodes": 2,
    }
    made = cluster.call("POST", "/v1/clusters", body)
    cluster.submit("true", cluster="cloud")
    until(lambda: any("no quota left" in why for why in ledger(cluster, "cloud")), "it is told", SECONDS)
    until(lambda: shown(cluster, "cloud")["machines"] == [], "it is given up", SECONDS)
    why = cluster.rota("cluster", "why", "cloud")
    times = [float(line) for line in asked.read_text().splitlines()]

    assert made.status == 201, made
    assert "its create command ended with 1" in why.out
    assert "the provider of cluster cloud says: no quota left" in why.out
    assert all(later - earlier > PAUSE_SECONDS for earlier, later in pairwise(times))


def test_a_job_that_waits_too_long_gets_a_cluster_that_ends_when_idle(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    sizes = ("--node", "cpu=1", "--max", "1", "--clusters", "1-2", "--wait", "1s", "--idle", "1s")
    made = cluster.rota("cluster", "create", "burst", "--provider", "local", *sizes)
    gate = Gate(tmp_path / "gate")
    first, second = (cluster.submit("sh", "-c", gate.wait, cluster="burst") for _ in range(2))
    for job in (first, second):
        until(lambda job=job: cluster.count(job, "running") == 1, "both run at once", SECONDS)  # type: ignore[misc]
    homes = [cluster.call("GET", f"/v1/jobs/{job}").body["cluster"] for job in (first, second)]
    refused = cluster.rota("cluster", "delete", "burst.2")
    gate.open()
    listed = cluster.rota
    until(lambda: "burst.2" not in listed("cluster", "ls").out, "the second has ended", SECONDS)
    entries = ledger(cluster, "burst")

    assert made.code == 0, made.err
    assert sorted(homes) == ["burst", "burst.2"]  # whichever was asked to change over
    assert "cluster burst.2 was created by cluster group burst" in refused.err
    assert any(why.startswith("cluster burst.2 is asked for: of ") for why in entries), entries
    assert any(why.startswith("cluster burst.2 ends: nothing has run") for why in entries), entries


def test_a_killed_server_finds_the_machines_it_requested(cluster: LocalCluster) -> None:
    cluster.rota(
        *(
            "cluster",
            "create",
            "burst",
            "--provider",
            "local",
            "--node",
            "cpu=1",
            "--max",
            "2",
            "--idle",
            "1h",
        )
    )
    before = cluster.submit("true", cluster="burst")
    until(lambda: cluster.count(before, "succeeded") == 1, "it has run", SECONDS)
    until(lambda: shown(cluster, "burst")["state"] == "ready", "it is settled", SECONDS)
    cluster.kill_server()
    cluster.start_server()
    until(lambda: shown(cluster, "burst")["open_nodes"] == 1, "its node is back", SECONDS)
    after = cluster.submit("true", cluster="burst")
    until(lambda: cluster.count(after, "succeeded") == 1, "it has run", SECONDS)

    assert [machine["name"] for machine in shown(cluster, "burst")["machines"]] == ["burst-1"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("cluster", "create", "x", "--provider", "moon"), "write none, local, command"),
        (("cluster", "create", "x", "--provider", "local", "--max", "2"), "how many cores a machine has"),
        (("cluster", "create", "x", "--max", "2"), "without a provider"),
        (("cluster", "create", "x", "--provider", "local", "--node", "cpu=1"), "max_nodes"),
        (("cluster", "create", "x", "--pause", "0s"), "write 0.1 to 300 seconds"),
        (("cluster", "create", "default", "--type", "a b"), "type"),
        (("cluster", "create", "x", "--clusters", "many"), "write it as 1-3"),
        (
            ("cluster", "create", "x", "--clusters", "1-3"),
            "a cluster without a provider cannot create others",
        ),
        (("cluster", "resize", "default"), "nothing to change"),
        (("cluster", "show", "defualt"), "did you mean default?"),
        (("cluster", "delete", "default"), "cannot be deleted"),
        (("run", "--cluster", "moon", "--", "true"), "there is no cluster 'moon'"),
        (("node", "token", "--local", "--cluster", "moon"), "there is no cluster 'moon'"),
        (("dev", "--elastic", "8-0"), "as 0-8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_impossible_cluster_is_refused_with_a_reason(
    shared: LocalCluster, arguments: tuple[str, ...], expected: str
) -> None:
    ended = shared.rota(*arguments)

    assert ended.code != 0
    assert expected in ended.err
    assert "Traceback" not in ended.err


def test_the_default_cluster_is_listed(shared: LocalCluster) -> None:
    listed = json.loads(shared.rota("cluster", "ls", "-o", "json").out)["clusters"]

    assert [
        (listed_cluster["name"], listed_cluster["state"], listed_cluster["nodes"])
        for listed_cluster in listed
    ] == [("default", "unavailable", 0)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("shared"), nodes=0) as made:
        yield made


def test_a_server_that_cannot_store_a_join_token_retries_later(cluster: LocalCluster, tmp_path: Path) -> None:
    lock = tmp_path / "server" / "vault" / ".vault.lock"
    lock.rename(tmp_path / "lock")
    lock.mkdir()  # nothing can be written there, as on a full disk
    made = cluster.rota("cluster", "create", "burst", "--provider", "local", "--node", "cpu=1", "--max", "1")
    job = cluster.submit("true", cluster="burst")
    server_log = tmp_path / "server.log"
    until(lambda: "provider reconciliation failed" in server_log.read_text(), "it is told", SECONDS)
    lock.rmdir()
    (tmp_path / "lock").rename(lock)
    until(lambda: cluster.count(job, "succeeded") == 1, "it has run", SECONDS)

    assert made.code == 0, made.err
