"""Clusters of real processes: jobs stay in theirs; nodes come and go with the work, none is killed for it."""

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


def test_nodes_come_with_the_work_and_go_after_it_and_no_attempt_is_lost(
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
    told = ledger(cluster, "burst")

    assert made.code == 0, made.err
    assert {task["node"] for task in tasks} == {"n2", "n3", "n4"}  # their names went with them
    assert {task["attempt"] for task in tasks} == {1}
    assert "adding 3 nodes to burst: 20 tasks wait, 3 of them would start; it has 0, its limit is 3" in told
    assert any(why.startswith("machine burst-1 has joined") for why in told)
    assert sum(why.startswith("taking ") for why in told) >= 1
    until(lambda: names(cluster) == ["node-1"], "their nodes went with them")
    until(lambda: not with_argument(str(cluster.machines)), "their processes have ended")


def test_each_job_goes_where_its_type_its_region_and_its_neighbours_let_it(
    cluster: LocalCluster, gate: Gate
) -> None:
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
    told = cluster.rota("why", nowhere["id"]).out
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
    assert "cluster_type == gpu" in told


def test_a_provider_that_fails_is_quoted_to_operators_and_not_asked_in_a_loop(
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


def test_who_waits_too_long_gets_another_cluster_which_ends_when_it_is_idle(
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
    told = ledger(cluster, "burst")

    assert made.code == 0, made.err
    assert sorted(homes) == ["burst", "burst.2"]  # whichever was asked to change over
    assert "cluster burst.2 was made like burst" in refused.err
    assert any(why.startswith("cluster burst.2 is asked for: of ") for why in told), told
    assert any(why.startswith("cluster burst.2 ends: nothing has run") for why in told), told


def test_a_server_that_is_killed_finds_the_machines_it_asked_for(cluster: LocalCluster) -> None:
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

    assert [one["name"] for one in shown(cluster, "burst")["machines"]] == ["burst-1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
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
def test_what_cannot_be_is_refused_in_words(
    shared: LocalCluster, arguments: tuple[str, ...], told: str
) -> None:
    ended = shared.rota(*arguments)

    assert ended.code != 0
    assert told in ended.err
    assert "Traceback" not in ended.err


def test_the_default_cluster_is_listed(shared: LocalCluster) -> None:
    listed = json.loads(shared.rota("cluster", "ls", "-o", "json").out)["clusters"]

    assert [(one["name"], one["state"], one["nodes"]) for one in listed] == [("default", "unavailable", 0)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("shared"), nodes=0) as made:
        yield made


def test_a_server_that_cannot_write_a_token_for_a_machine_goes_on_and_asks_when_it_can(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    lock = tmp_path / "server" / "vault" / ".vault.lock"
    lock.rename(tmp_path / "lock")
    lock.mkdir()  # nothing can be written there, as on a full disk
    made = cluster.rota("cluster", "create", "burst", "--provider", "local", "--node", "cpu=1", "--max", "1")
    job = cluster.submit("true", cluster="burst")
    server_log = tmp_path / "server.log"
    until(lambda: "machines are not looked after" in server_log.read_text(), "it is told", SECONDS)
    lock.rmdir()
    (tmp_path / "lock").rename(lock)
    until(lambda: cluster.count(job, "succeeded") == 1, "it has run", SECONDS)

    assert made.code == 0, made.err
