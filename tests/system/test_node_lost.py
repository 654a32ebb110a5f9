"""A lost node is detected, also in an idle cluster, and its tasks run elsewhere."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.model.limits import BEAT_MS
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
LOST_SECONDS = 12  # a beat may come late on a busy machine: half of it makes a node suspect
PATIENT_SECONDS = 16


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that are declared lost early; a test that kills one starts it again."""
    settings = {"ROTA_LOST_SECONDS": str(LOST_SECONDS)}
    with LocalCluster(tmp_path_factory.mktemp("hasty"), settings=settings) as running:
        yield running


def start_again(cluster: LocalCluster, number: int) -> None:
    until(lambda: cluster.node(number)["state"] == "lost", "lost after the grace")
    cluster.start_agent(number)
    cluster.wait_for_nodes()


def test_idle_nodes_are_not_suspect(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, settings={"ROTA_LOST_SECONDS": str(PATIENT_SECONDS)}) as patient:
        since = patient.call("GET", "/v1/server").body["revision"]

        time.sleep(PATIENT_SECONDS + 1)  # the test is that nothing happens

        assert patient.call("GET", "/v1/server").body["revision"] == since


def test_a_lost_nodes_tasks_run_elsewhere_once_each(
    hasty: LocalCluster, witness: Witness, gate: Gate
) -> None:
    """It uses no retry, as they have none."""
    job = hasty.submit(*witness.script(gate.wait), count=6)
    until(lambda: hasty.count(job, "running") == 6, "all tasks run")
    moved = {seen.index for seen in witness.wait_for(6) if seen.node == "node-1"}
    assert moved, "the tasks were spread over all nodes"

    hasty.kill_node(1)

    until(lambda: len(witness.seen()) == 6 + len(moved), "the lost tasks run again")
    gate.open()
    assert hasty.rota("wait", job).code == 0
    assert witness.starts() == {index: 2 if index in moved else 1 for index in range(6)}
    assert {seen.node for seen in witness.seen()[6:]} <= {"node-2", "node-3"}
    start_again(hasty, 1)


def test_an_idle_cluster_notices_a_lost_node(hasty: LocalCluster) -> None:
    since = hasty.call("GET", "/v1/events").body["next"]
    killed_at = time.monotonic()
    hasty.kill_node(2)

    until(lambda: hasty.node(2)["state"] == "lost", "lost after the grace")
    assert time.monotonic() - killed_at > LOST_SECONDS - BEAT_MS / 1000 - 1
    node_events = hasty.call("GET", f"/v1/events?node=node-2&since={since}").body["events"]
    assert [event["kind"] for event in node_events] == ["node.suspect", "node.lost"]
    start_again(hasty, 2)


def test_a_lost_node_that_reconnects_gets_tasks_again(hasty: LocalCluster, witness: Witness) -> None:
    hasty.kill_node(3)

    start_again(hasty, 3)

    ran = hasty.rota("run", "--where", "number == 3", "--", *witness.script())
    assert ran.code == 0, ran.err
    assert [seen.node for seen in witness.seen()] == ["node-3"]
