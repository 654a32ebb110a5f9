"""A machine with a termination notice, by real processes: drained in time, replaced, its tasks moved."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
SECONDS = 100.0


class Notices:
    """A file for each node with a termination notice."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()

    @property
    def settings(self) -> dict[str, str]:
        return {"ROTA_NOTICE": f"sh -c 'cat {self._directory}/$ROTA_NODE'"}

    def give(self, node: str, line: str) -> None:
        partial = self._directory / f".{node}"
        partial.write_text(f"{line}\n")
        partial.rename(self._directory / node)

    def withdraw(self, node: str) -> None:
        (self._directory / node).unlink()


@pytest.fixture
def notices(tmp_path: Path) -> Notices:
    return Notices(tmp_path / "notices")


def _node(cluster: LocalCluster, name: str) -> Any:
    return next(node for node in cluster.call("GET", "/v1/nodes").body["nodes"] if node["name"] == name)


def _draining(cluster: LocalCluster, name: str) -> Any:
    return node if (node := _node(cluster, name))["eligibility"] == "draining" else None


def _told(cluster: LocalCluster, *flags: str) -> list[str]:
    events = json.loads(cluster.rota("event", "ls", *flags, "-o", "json").out)["events"]
    return [event["why"] for event in events]


def test_an_elastic_cluster_replaces_a_terminated_machine_and_tasks_move_without_a_retry(
    tmp_path: Path, notices: Notices, witness: Witness, gate: Gate
) -> None:
    with LocalCluster(tmp_path, nodes=1, settings=notices.settings) as cluster:
        flags = ("--provider", "local", "--node", "cpu=1", "--max", "2", "--idle", "1s")
        assert cluster.rota("cluster", "create", "spot", *flags).code == 0
        job = cluster.submit(*witness.script(gate.wait), cluster="spot", retries=0, grace="1s")
        assert [seen.node for seen in witness.wait_for(1)] == ["spot-1"]

        notices.give("spot-1", "25s the price is too high")
        shown = until(lambda: _draining(cluster, "spot-1"), "it drains", SECONDS)
        assert (shown["reason"], shown["running"]) == ("the price is too high", 1)
        assert "the price is too high" in cluster.rota("node", "ls").out
        assert "moves" in cluster.rota("node", "show", "spot-1").out
        until(lambda: len(witness.seen()) == 2, "it started elsewhere", SECONDS)
        assert [(seen.node, seen.attempt) for seen in witness.seen()] == [("spot-1", 1), ("spot-2", 2)]

        gate.open()
        assert cluster.rota("wait", job).code == 0
        asked = "1 task waits or has to move, which would start; it has 1, its limit is 2"
        assert asked in cluster.rota("cluster", "why", "spot").out
        gone = "machine spot-1 is given up: its node leaves: the price is too high"
        until(lambda: gone in cluster.rota("cluster", "why", "spot").out, "its machine goes", SECONDS)
        events = _told(cluster, "--job", job)
        left = f"task 0 of job {job} leaves node spot-1: its machine is taken away: the price is too high"
        assert left in events


def test_a_withdrawn_notice_opens_the_node_but_not_one_drained_by_an_operator(
    tmp_path: Path, notices: Notices
) -> None:
    with LocalCluster(tmp_path, nodes=2, settings=notices.settings) as cluster:
        for node in ("node-1", "node-2"):
            notices.give(node, "1h maintenance")
        for node in ("node-1", "node-2"):
            until(lambda node=node: _node(cluster, node)["reason"] == "maintenance", "it drains", SECONDS)  # type: ignore[misc]
        job = cluster.submit("true")
        assert "about to leave" in cluster.rota("why", job).out
        assert cluster.rota("node", "drain", "node-2").code == 0

        for node in ("node-1", "node-2"):
            notices.withdraw(node)
        until(lambda: _node(cluster, "node-1")["eligibility"] == "open", "it is open again", SECONDS)
        until(lambda: _node(cluster, "node-2")["reason"] is None, "it knows that it stays", SECONDS)
        assert cluster.rota("wait", job).code == 0
        assert _node(cluster, "node-2")["eligibility"] == "drained"
        assert "node node-1 does not leave after all" in _told(cluster, "--node", "node-1")


def test_an_agent_of_a_terminated_machine_leaves_on_sigterm(
    tmp_path: Path, notices: Notices, witness: Witness, gate: Gate
) -> None:
    with LocalCluster(tmp_path, nodes=2, settings=notices.settings) as cluster:
        job = cluster.submit(*witness.script(gate.wait), retries=0)
        first = witness.wait_for(1)[0].node
        notices.give(first, "1h maintenance")
        until(lambda: _draining(cluster, first), "it drains", SECONDS)

        assert cluster.kill_agent(int(first[-1]), signal.SIGTERM) == 0
        assert _node(cluster, first)["state"] == "left"
        until(lambda: len(witness.seen()) == 2, "it started elsewhere", SECONDS)
        assert witness.seen()[1].node != first
        gate.open()
        assert cluster.rota("wait", job).code == 0
