"""Placement requested by a user, from the command line to the node that its process runs on."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system

WHERE = ("--no-workdir", "--cpu", "0.1", "--", "sh", "-c", "echo $ROTA_NODE")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Nodes of four cores, each with its number as a label; tests leave them as they found them."""
    with LocalCluster(tmp_path_factory.mktemp("three")) as running:
        yield running


def test_a_task_runs_on_the_requested_node(three: LocalCluster, gate: Gate) -> None:
    db = three.submit("sh", "-c", gate.wait, name="db", cpu=0.1, on="node-3", labels={"tier": "data"})
    until(lambda: three.count(db, "running"), "the neighbour runs")

    def node(*wishes: str) -> str:
        ran = three.rota("run", "-q", *wishes, *WHERE)
        assert (ran.code, ran.err) == (0, "")
        return ran.out.strip()

    assert node("--on", "node-2") == "node-2"
    assert node("--where", "number > 2") == "node-3"
    assert node("--prefer", "number == 2 weight 90") == "node-2"
    assert node("--near", "job == db") == "node-3"
    assert node("--near", "tier == data weight 90") == "node-3"
    assert node("--apart", "tier == data", "--where", "number in 2,3") == "node-2"
    gate.open()


def test_tasks_are_spread_and_a_gang_starts_together(three: LocalCluster, gate: Gate) -> None:
    even = three.submit("sh", "-c", gate.wait, name="even", cpu=0.1, count=6, spread="node", gang=True)
    until(lambda: three.count(even, "running") == 6, "all of it runs")

    tasks = three.call("GET", f"/v1/jobs/{even}/tasks").body["tasks"]
    gate.open()

    assert Counter(task["node"] for task in tasks) == {"node-1": 2, "node-2": 2, "node-3": 2}


def test_the_placement_decision_is_shown(three: LocalCluster) -> None:
    ran = three.rota("run", "-q", "--name", "chosen", "--where", "number in 1,2", *WHERE)
    shown = json.loads(three.rota("show", "chosen", "-o", "json").out)

    placement = shown["placement"]
    assert placement["node"] == ran.out.strip()
    assert {placement["node"], placement["runner_up"]} == {"node-1", "node-2"}
    assert placement["fitting"] == 2
    assert placement["points"] >= placement["runner_up_points"]
    assert placement["why"] in three.rota("show", "chosen").out


def test_a_preempted_task_is_shown_and_runs_again(three: LocalCluster, gate: Gate, tmp_path: Path) -> None:
    second = Gate(tmp_path / "second")
    low = three.submit("sh", "-c", gate.wait, name="low", cpu=4, priority=10, on="node-1", grace=1)
    until(lambda: three.count(low, "running"), "the lesser work runs")
    high = three.submit("sh", "-c", second.wait, name="high", cpu=4, priority=80, on="node-1")
    until(lambda: three.count(high, "running"), "it took its place")

    shown = three.rota("show", f"{low}.0").out
    second.open()
    until(lambda: three.count(low, "running"), "the lesser work runs again")
    first, again = three.call("GET", f"/v1/jobs/{low}/tasks/0").body["attempts"]
    gate.open()

    assert "evicted" in shown
    assert (first["evicted"], first["state"], again["evicted"]) == (True, "stopped", False)
    until(lambda: three.count(low, "succeeded"), "it succeeds, though it has no retries")


def test_impossible_placement_is_refused_and_unlikely_placement_is_warned_of(three: LocalCluster) -> None:
    refused = three.rota("run", "--on", "node-1", "--where", "node == node-2", "--", "true")
    warned = three.rota("run", "-d", "--name", "far", "--on", "node-9", "--", "true")

    assert refused.code != 0
    assert "'node == node-2' and 'node == node-1' cannot both hold" in refused.err
    assert warned.code == 0
    assert warned.err.startswith("warning: on: there is no node node-9 now")
    assert three.rota("cancel", "far").code == 0
