"""Drain with a deadline, by real processes: what moves, what may end, what is said before."""

import json

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness import Gate, Witness

pytestmark = pytest.mark.system


def test_at_the_deadline_work_moves_without_spending_a_retry(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    cluster.rota("node", "cordon", "node-2", "node-3")
    job = cluster.submit(*witness.script(gate.wait), count=3, retries=0)
    once = cluster.submit("sh", "-c", gate.wait, run="at_most_once")
    until(lambda: cluster.count(job, "running") == 3 and cluster.count(once, "running") == 1, "all run")
    witness.wait_for(3)
    cluster.rota("node", "open", "node-2", "node-3")

    preview = cluster.rota("node", "drain", "node-1", "--dry-run")
    assert preview.code == 0, preview
    assert preview.out.startswith("node-1: 3 tasks would move, 1 task may end there\n")
    assert f"job {once}: 1 task started only once: left to end" in preview.out
    assert cluster.node(1)["eligibility"] == "open"

    drained = cluster.rota("node", "drain", "node-1", "--deadline", "0.1s")
    assert drained.code == 0
    until(lambda: len(witness.seen()) == 6, "they started elsewhere")
    assert {seen.node for seen in witness.seen()[3:]} == {"node-2", "node-3"}
    shown = cluster.node(1)
    assert (shown["eligibility"], shown["running"], shown["drain"]["stays"]) == ("draining", 1, 1)
    assert "1 task is started only once and may end" in cluster.rota("node", "show", "node-1").out

    gate.open()
    assert cluster.rota("wait", job, once).code == 0
    assert cluster.rota("node", "drain", "node-1", "--wait").code == 0
    assert cluster.node(1)["eligibility"] == "drained"
    events = json.loads(cluster.rota("event", "ls", "--node", "node-1", "-o", "json").out)["events"]
    assert [one["state"] for one in events if one["kind"] == "node.changed"][-2:] == ["draining", "drained"]


def test_a_deadline_is_kept_by_a_server_that_was_killed_meanwhile(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = cluster.submit(*witness.script(gate.wait), where=["number != 3"])
    until(lambda: cluster.count(job, "running") == 1, "it runs")
    first = witness.wait_for(1)[0].node
    assert cluster.rota("node", "drain", first, "--deadline", "1s").code == 0

    cluster.kill_server()
    cluster.start_server()

    until(lambda: len(witness.seen()) == 2, "it was started elsewhere")
    assert witness.seen()[1].node != first
    gate.open()
    assert cluster.rota("wait", job).code == 0


def test_by_force_everything_goes_at_once(cluster: LocalCluster, gate: Gate) -> None:
    once = cluster.submit("sh", "-c", gate.wait, run="at_most_once", where=["number == 1"])
    until(lambda: cluster.count(once, "running") == 1, "it runs")

    drained = cluster.rota("node", "drain", "node-1", "--force", "--wait")

    assert (drained.code, cluster.node(1)["eligibility"]) == (0, "drained")
    assert cluster.rota("wait", once).code != 0
    assert cluster.count(once, "lost") == 1
    until(lambda: not cluster.work(), "nothing of it is left")
