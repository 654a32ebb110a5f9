"""Many nodes fall silent at once: their tasks are replaced slowly or not at all, and continue later."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
NODES = 20
LOST_SECONDS = 10
PATIENCE_SECONDS = 180  # twenty agents on few cores


@pytest.fixture
def twenty(tmp_path: Path) -> Iterator[LocalCluster]:
    """Nodes that could each run the tasks of a neighbour, too."""
    settings = {"ROTA_LOST_SECONDS": str(LOST_SECONDS)}
    with LocalCluster(tmp_path, nodes=NODES, cpu=2, settings=settings) as running:
        yield running


def brake(cluster: LocalCluster) -> str:
    return str(cluster.call("GET", "/v1/brake").body["level"])


def levels(cluster: LocalCluster) -> list[str]:
    """The levels of all brake events, oldest first."""
    events = cluster.call("GET", "/v1/events?kind=cluster.brake&limit=1000").body["events"]
    return [event["state"] for event in events]


def nodes(cluster: LocalCluster, state: str) -> dict[str, Any]:
    return {
        node["name"]: node
        for node in cluster.call("GET", "/v1/nodes").body["nodes"]
        if node["state"] == state
    }


def are_all_ready(cluster: LocalCluster) -> bool:
    return len(nodes(cluster, "ready")) == NODES


def signalled(cluster: LocalCluster, count: int, signum: signal.Signals) -> None:
    for number in range(1, count + 1):
        cluster.signal_agent(number, signum)


def test_half_of_the_nodes_are_waited_for_and_of_a_third_a_few_are_declared_lost(
    twenty: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = twenty.submit(*witness.script(gate.wait), count=NODES, spread="node")
    until(lambda: twenty.count(job, "running") == NODES, "all tasks run", PATIENCE_SECONDS)

    signalled(twenty, NODES // 2, signal.SIGSTOP)
    until(lambda: brake(twenty) == "stopped", "the brake is on", PATIENCE_SECONDS)
    until(
        lambda: (
            sum(node["heard_ms_ago"] > 3000 * LOST_SECONDS for node in nodes(twenty, "suspect").values())
            == 10
        ),
        "half of them are silent for three times as long as they may be",
        PATIENCE_SECONDS,
    )
    assert len(witness.seen()) == NODES
    assert "10 of 20 nodes went silent within a minute" in twenty.rota("node", "ls").err
    assert "the brake is stopped" in twenty.rota("why", job).out

    signalled(twenty, NODES // 2, signal.SIGCONT)
    until(lambda: are_all_ready(twenty), "all are back", PATIENCE_SECONDS)
    until(lambda: brake(twenty) == "off", "the brake is off")
    assert len(witness.seen()) == NODES

    signalled(twenty, 6, signal.SIGSTOP)
    until(lambda: brake(twenty) == "slowed", "the brake is on", PATIENCE_SECONDS)
    until(lambda: len(nodes(twenty, "lost")) > 0, "the first is given up", PATIENCE_SECONDS)
    signalled(twenty, 6, signal.SIGCONT)
    until(lambda: are_all_ready(twenty), "all are back", PATIENCE_SECONDS)
    until(lambda: brake(twenty) == levels(twenty)[-1] == "off", "and it is told that the brake is off")
    events = twenty.call("GET", "/v1/events?limit=1000").body["events"]
    lost = [event["node"] for event in events if event["kind"] == "node.lost"]
    assert 1 <= len(lost) < 6

    gate.open()
    assert twenty.rota("wait", job).code == 0
    assert len(witness.seen()) == NODES + len(lost)
    seen_levels = levels(twenty)
    first = seen_levels.index("off")
    assert "stopped" in seen_levels[:first]
    assert set(seen_levels[first:]) == {"slowed", "off"}


def test_an_operator_confirms_that_silent_nodes_are_lost(
    tmp_path: Path, witness: Witness, gate: Gate
) -> None:
    settings = {"ROTA_LOST_SECONDS": str(LOST_SECONDS)}
    with LocalCluster(tmp_path, nodes=5, cpu=3, settings=settings) as five:
        job = five.submit(*witness.script(gate.wait), count=5, spread="node", retries=0)
        until(lambda: five.count(job, "running") == 5, "all tasks run")
        witness.wait_for(5)
        assert five.rota("node", "brake").out == "off: lost nodes are replaced immediately\n"
        refused = five.rota("node", "brake", "--release")
        assert (refused.code, "none of these nodes is silent" in refused.err) == (1, True)
        for number in (1, 2, 3):
            five.kill_agent(number)  # all at once: before the third is silent, the first could be lost
        for number in (1, 2, 3):
            five.kill_node(number)
        until(lambda: brake(five) == "stopped", "the brake is on")

        released = five.rota("node", "brake", "--release")

        assert "confirmed as lost: node-1, node-2, node-3" in released.err
        until(lambda: len(witness.seen()) == 8, "what they ran runs elsewhere")
        until(lambda: brake(five) == "off", "the brake is off")
        gate.open()
        assert five.rota("wait", job).code == 0
