"""Clusters of real processes: jobs follow clusters that can serve them; a cluster without nodes fails."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
SECONDS = 150.0
LOST_SECONDS = 12  # a beat may come late on a busy machine: half of it makes a node suspect


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """The default cluster has one node."""
    with LocalCluster(tmp_path, nodes=1, settings={"ROTA_LOST_SECONDS": str(LOST_SECONDS)}) as made:
        yield made


def shown(cluster: LocalCluster, name: str) -> Any:
    return cluster.call("GET", f"/v1/clusters/{name}").body


def state_of(cluster: LocalCluster, name: str) -> str:
    return str(shown(cluster, name)["state"])


def job(cluster: LocalCluster, ref: str) -> Any:
    return cluster.call("GET", f"/v1/jobs/{ref}").body


def reasons_of(cluster: LocalCluster, kind: str) -> list[str]:
    events = cluster.call("GET", "/v1/events?limit=1000").body["events"]
    return [event["why"] for event in events if event["kind"] == kind]


def join(cluster: LocalCluster, number: int, name: str) -> None:
    line = cluster.call("POST", "/v1/join-tokens", {"local": True, "cluster": name}).body["line"]
    cluster.start_agent(number, join=shlex.split(line)[-1])
    cluster.wait_for_nodes()


def test_a_job_that_no_cluster_serves_moves_when_one_is_created_or_opened(cluster: LocalCluster) -> None:
    wants = {"where": ["cluster_type == od4"]}
    first = cluster.submit("true", **wants)
    before = job(cluster, first)["cluster"]
    reasons = reasons_of(cluster, "job.unserved")
    farm = ("--provider", "local", "--node", "cpu=1", "--max", "1", "--idle", "1h")
    made = cluster.rota("cluster", "create", "od4", "--type", "od4", *farm)
    until(lambda: cluster.count(first, "succeeded") == 1, "it has run in the new cluster", SECONDS)
    cluster.rota("cluster", "drain", "od4")
    second = cluster.submit("true", **wants)
    drained = job(cluster, second)["cluster"]
    cluster.rota("cluster", "drain", "--undo", "od4")
    until(lambda: cluster.count(second, "succeeded") == 1, "it has run in the opened cluster", SECONDS)

    assert made.code == 0, made.err
    assert (before, drained) == ("default", "default")
    missing = "no node of any cluster satisfies 'cluster_type == od4'"
    assert reasons == [f"no cluster serves job {first}: {missing}; it waits in default"]
    assert reasons_of(cluster, "job.unserved")[-1] == (
        f"no cluster serves job {second}: cluster od4, which could, is draining; it waits in default"
    )
    assert [job(cluster, number)["cluster"] for number in (first, second)] == ["od4", "od4"]


def test_a_job_moves_when_an_update_lets_another_cluster_serve_it(cluster: LocalCluster) -> None:
    cluster.rota("cluster", "create", "lab", "--type", "lab")
    join(cluster, 2, "lab")
    waiting = cluster.submit("true", where=["cluster_type == lob"])
    changed = cluster.call("PATCH", f"/v1/jobs/{waiting}", {"where": ["cluster_type == lab"]})
    assert changed.status == 200, changed
    until(lambda: cluster.count(waiting, "succeeded") == 1, "it has run in the other cluster", SECONDS)

    assert job(cluster, waiting)["cluster"] == "lab"


def test_a_job_submitted_before_the_nodes_are_back_goes_to_their_cluster(cluster: LocalCluster) -> None:
    cluster.rota("cluster", "create", "lab", "--type", "lab")
    join(cluster, 2, "lab")
    cluster.kill_agent(2)
    cluster.kill_server()
    cluster.start_server()
    early = cluster.submit("true", where=["cluster_type == lab"])
    home = job(cluster, early)["cluster"]
    cluster.start_agent(2)
    until(lambda: cluster.count(early, "succeeded") == 1, "it has run", SECONDS)

    assert home == "lab"


def test_a_cluster_whose_nodes_joined_by_hand_fails_when_they_are_lost_and_comes_back(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    cluster.rota("cluster", "create", "lab", "--type", "lab", "--fail-after", "2s")
    empty = state_of(cluster, "lab")
    join(cluster, 2, "lab")
    ready = state_of(cluster, "lab")
    bound = cluster.submit(*witness.script(gate.wait), cluster="lab")
    canceled = cluster.submit("true", where=["cluster_type == lab"], cpu=4, recovery="cancel")
    free = cluster.submit("true", where=["cluster_type == lab"], cpu=4)
    witness.wait_for(1)
    cluster.kill_node(2)
    until(lambda: state_of(cluster, "lab") == "unavailable", "its node is lost", SECONDS)
    reason = shown(cluster, "lab")["reason"]
    until(lambda: state_of(cluster, "lab") == "failed", "it has failed", SECONDS)
    until(lambda: job(cluster, bound)["state"] == "canceled", "what is bound to it ends", SECONDS)
    until(lambda: job(cluster, canceled)["state"] == "canceled", "what is to end does", SECONDS)
    until(lambda: job(cluster, free)["cluster"] == "default", "all else moves", SECONDS)
    refused = cluster.rota("run", "--cluster", "lab", "--", "true")
    cluster.start_agent(2)
    until(lambda: state_of(cluster, "lab") == "ready", "it is back", SECONDS)
    until(lambda: cluster.count(free, "succeeded") == 1, "it has run in the cluster that is back", SECONDS)

    assert (empty, ready, reason) == ("unavailable", "ready", "its only node is lost")
    assert "cluster lab is failed" in refused.err
    assert job(cluster, bound)["reason"].startswith("cluster-failed: lab, without a node for ")
    assert len(reasons_of(cluster, "job.cluster_failed")) == 2
    changes = [why for why in reasons_of(cluster, "cluster.changed") if " has failed" in why]
    assert len(changes) == 1
    assert changes[0].startswith("cluster lab has failed: without a node for ")
    assert state_of(cluster, "default") == "ready"


def test_a_server_killed_during_the_countdown_restarts_it(
    cluster: LocalCluster,
) -> None:
    """A node of the one cluster comes back after the restart, the node of the other one does not."""
    for name, number in (("lab", 2), ("yard", 3)):
        cluster.rota("cluster", "create", name, "--fail-after", "3s")
        join(cluster, number, name)
    cluster.kill_agent(2)
    cluster.kill_agent(3)
    until(lambda: cluster.node(3)["state"] == "lost", "a node is lost", SECONDS)
    cluster.kill_server()
    cluster.start_server()
    cluster.start_agent(2)
    until(lambda: state_of(cluster, "lab") == "ready", "its node is back", SECONDS)
    until(lambda: state_of(cluster, "yard") == "failed", "it has failed", SECONDS)

    assert state_of(cluster, "lab") == "ready"
    assert not any("cluster lab has failed" in why for why in reasons_of(cluster, "cluster.changed"))


def test_the_default_cluster_waits_for_its_nodes_unless_configured_otherwise(cluster: LocalCluster) -> None:
    cluster.rota("cluster", "create", "lab", "--fail-after", "1s")
    cluster.rota("cluster", "create", "farm", "--fail-after", "never")
    join(cluster, 2, "lab")
    limits = {name: shown(cluster, name)["fail_after_seconds"] for name in ("default", "lab", "farm")}
    waiting = cluster.submit("true", cluster="default", cpu=100)
    cluster.kill_agent(1)
    cluster.kill_agent(2)
    until(lambda: state_of(cluster, "lab") == "failed", "the other one fails", SECONDS)
    until(lambda: state_of(cluster, "default") == "unavailable", "its node is lost", SECONDS)
    before = job(cluster, waiting)["state"]
    cluster.rota("cluster", "resize", "default", "--fail-after", "1s")
    until(lambda: state_of(cluster, "default") == "failed", "it fails as well", SECONDS)
    until(lambda: job(cluster, waiting)["state"] == "canceled", "what is bound to it ends", SECONDS)

    assert limits == {"default": None, "lab": 1.0, "farm": None}
    assert before == "active"


@pytest.mark.parametrize(
    ("arguments", "told_why"),
    [
        (("--fail-after", "0s"), "write 1s to 7d, or never"),
        (("--fail-after", "soon"), "fail_after"),
        (("--fail-after", "100d"), "fail_after"),
        (("--provider", "local", "--node", "cpu=1", "--max", "1", "--fail-after", "1m"), "leave it out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_impossible_time_is_refused_with_a_reason(
    shared: LocalCluster, arguments: tuple[str, ...], told_why: str
) -> None:
    ended = shared.rota("cluster", "create", "odd", *arguments)

    assert ended.code != 0
    assert told_why in ended.err
    assert "Traceback" not in ended.err
