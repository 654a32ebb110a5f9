"""Drain with a deadline, by real processes: which tasks move, which may end, and the preview."""

import json

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system


def test_at_the_deadline_tasks_move_without_using_a_retry(
    three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    three.rota("node", "cordon", "node-2", "node-3")
    job = three.submit(*witness.script(gate.wait), count=3, retries=0)
    once = three.submit("sh", "-c", gate.wait, run="at_most_once")
    until(lambda: three.count(job, "running") == 3 and three.count(once, "running") == 1, "all run")
    witness.wait_for(3)
    three.rota("node", "open", "node-2", "node-3")

    preview = three.rota("node", "drain", "node-1", "--dry-run")
    assert preview.code == 0, preview
    assert preview.out.startswith("node-1: 3 tasks would move, 1 task may end there\n")
    assert f"job {once}: 1 task started only once: left to end" in preview.out
    assert three.node(1)["eligibility"] == "open"

    drained = three.rota("node", "drain", "node-1", "--deadline", "0.1s")
    assert drained.code == 0
    until(lambda: len(witness.seen()) == 6, "they started elsewhere")
    moved_to = {seen.node for seen in witness.seen()[3:]}
    assert moved_to <= {"node-2", "node-3"}, "on one or both: that depends on how busy the machine is"
    shown = three.node(1)
    assert (shown["eligibility"], shown["running"], shown["drain"]["stays"]) == ("draining", 1, 1)
    assert "1 task is started only once and may end" in three.rota("node", "show", "node-1").out

    gate.open()
    assert three.rota("wait", job, once).code == 0
    assert three.rota("node", "drain", "node-1", "--wait").code == 0
    assert three.node(1)["eligibility"] == "drained"
    events = json.loads(three.rota("event", "ls", "--node", "node-1", "-o", "json").out)["events"]
    assert [event["state"] for event in events if event["kind"] == "node.changed"][-2:] == [
        "draining",
        "drained",
    ]
    assert three.rota("node", "open", "node-1").code == 0


def test_a_deadline_is_kept_by_a_server_that_was_killed_meanwhile(
    three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = three.submit(*witness.script(gate.wait), where=["number != 3"])
    until(lambda: three.count(job, "running") == 1, "it runs")
    first = witness.wait_for(1)[0].node
    assert three.rota("node", "drain", first, "--deadline", "1s").code == 0

    three.kill_server()
    three.start_server()

    until(lambda: len(witness.seen()) == 2, "it was started elsewhere")
    assert witness.seen()[1].node != first
    gate.open()
    assert three.rota("wait", job).code == 0
    assert three.rota("node", "open", first).code == 0


def test_a_forced_drain_evicts_everything_immediately(three: LocalCluster, gate: Gate) -> None:
    once = three.submit("sh", "-c", gate.wait, run="at_most_once", where=["number == 1"])
    until(lambda: three.count(once, "running") == 1, "it runs")

    drained = three.rota("node", "drain", "node-1", "--force", "--wait")

    assert (drained.code, three.node(1)["eligibility"]) == (0, "drained")
    assert three.rota("wait", once).code != 0
    assert three.count(once, "lost") == 1
    until(lambda: not three.work(), "nothing of it is left")
