"""An agent that is killed, upgraded or asked to leave: what happens to the work under its keeper."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.client.cluster import connect
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until, with_argument
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
TASKS = 50
KEEP_WORK = {"ROTA_KEEP_WORK": "true"}


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node with resources for all tasks at once."""
    with LocalCluster(tmp_path, nodes=1, cpu=TASKS) as running:
        yield running


def test_a_restarted_agent_finds_its_work_again(
    wide: LocalCluster, witness: Witness, gate: Gate, tmp_path: Path
) -> None:
    away = Gate(tmp_path / "away")
    # Even tasks end while the agent is down, one after the other; odd ones run until it is back.
    wait = f"if [ $((ROTA_INDEX % 2)) = 0 ]; then {away.wait}; sleep 0.$ROTA_INDEX; else {gate.wait}; fi"
    script = witness.script(f"{wait}; echo $ROTA_INDEX >> {tmp_path}/ended; exit $((ROTA_INDEX % 5))")
    job = wide.submit(*script, count=TASKS)
    until(lambda: wide.count(job, "running") == TASKS, "all tasks run")

    wide.kill_agent(1)
    away.open()
    ended = tmp_path / "ended"
    until(lambda: ended.exists() and len(ended.read_text().split()) == TASKS // 2, "half of them ended")
    until(lambda: wide.node(1)["state"] == "suspect", "the agent is missed")
    wide.start_agent(1)
    wide.wait_for_nodes()

    with connect(f"http://{wide.http}", token=wide.token) as client:
        until(lambda: client.job(job).status.tasks_ended == TASKS // 2, "what ended meanwhile is reported")
        gate.open()
        client.job(job).wait(60)
        tasks = list(client.job(job).tasks())
    assert witness.starts() == dict.fromkeys(range(TASKS), 1)
    assert [task.exit_code for task in tasks] == [index % 5 for index in range(TASKS)]
    assert {task.attempt for task in tasks} == {1}
    assert times_ended(wide, job) == dict.fromkeys(range(TASKS), 1)


def test_a_followed_log_continues_from_the_next_agent(wide: LocalCluster, gate: Gate, tmp_path: Path) -> None:
    more = Gate(tmp_path / "more")
    job = wide.submit("sh", "-c", f"echo one; {more.wait}; echo two; {gate.wait}; echo three")
    following = wide.start_rota("logs", "-f", job)
    assert following.stdout is not None
    assert following.stdout.readline() == b"one\n"
    more.open()
    assert following.stdout.readline() == b"two\n"  # as it came: the agent sends it in a call that stays open

    wide.kill_agent(1)
    wide.start_agent(1)
    gate.open()

    out, err = following.communicate(timeout=120)
    assert (following.returncode, out) == (0, b"three\n"), err


def test_an_upgraded_agent_takes_over_its_work(tmp_path: Path, witness: Witness, gate: Gate) -> None:
    with LocalCluster(tmp_path / "c", nodes=1, cpu=TASKS, settings=KEEP_WORK) as cluster:
        job = cluster.submit(*witness.script(gate.wait), count=10)
        until(lambda: cluster.count(job, "running") == 10, "all tasks run")

        assert cluster.kill_agent(1, signal.SIGTERM) == 0
        assert len(with_argument(str(gate.path))) >= 10, "the work goes on without an agent"
        until(lambda: cluster.node(1)["state"] == "suspect", "the agent is missed")
        reason = "its agent was stopped; its work goes on under the keeper"
        assert reason in cluster.rota("node", "ls").out
        assert "its work goes on under the keeper" in cluster.agent_log(1)
        cluster.start_agent(1)
        cluster.wait_for_nodes()
        gate.open()

        assert cluster.rota("wait", job).code == 0
        assert witness.starts() == dict.fromkeys(range(10), 1)


def test_by_default_sigterm_makes_the_node_leave_and_its_tasks_run_once_elsewhere(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = cluster.submit(*witness.script(gate.wait), grace="1s", retries=0)
    first = int(witness.wait_for(1)[0].node.removeprefix("node-"))

    assert cluster.kill_agent(first, signal.SIGTERM) == 0

    assert cluster.node(first)["state"] == "left"
    assert "it was told to leave, and has stopped its work" in cluster.rota("node", "ls").out
    assert "its work is stopped, and recovered as each job's recovery says" in cluster.agent_log(first)
    witness.wait_for(2)
    until(lambda: len(with_argument(str(gate.path))) == 1, "one of it runs")
    gate.open()
    assert cluster.rota("wait", job).code == 0
    assert [seen.attempt for seen in witness.seen()] == [1, 2]
    events = cluster.call("GET", f"/v1/events?job={job}&limit=1000").body["events"]
    assert not [event for event in events if event["state"] == "refused"], "nothing is offered to who leaves"


def test_a_task_that_stops_slowly_is_not_run_elsewhere_meanwhile(
    cluster: LocalCluster, witness: Witness, gate: Gate, tmp_path: Path
) -> None:
    """Also when its grace is longer than the time after which a silent node is lost."""
    asked = tmp_path / "asked"
    trap = f"trap 'touch {asked}; {gate.wait}; exit' TERM; while :; do sleep 0.05; done"
    job = cluster.submit(*witness.script(trap), grace="1h")
    first = int(witness.wait_for(1)[0].node.removeprefix("node-"))

    cluster.signal_agent(first, signal.SIGTERM)

    until(asked.exists, "it is asked to end")
    until(lambda: cluster.node(first)["eligibility"] == "draining", "the server knows that the node leaves")
    assert cluster.node(first)["state"] == "ready"
    assert cluster.count(job, "pending") == 0
    gate.open()
    until(lambda: cluster.node(first)["state"] == "left", "it has left")
    witness.wait_for(2)
    assert witness.seen()[0].node == f"node-{first}"
    assert cluster.rota("cancel", job).code == 0


def test_an_agent_that_leaves_gives_its_work_to_others(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = cluster.submit(*witness.script(gate.wait), count=6, grace="1s")
    until(lambda: cluster.count(job, "running") == 6, "all tasks run")
    moved = {seen.index for seen in witness.wait_for(6) if seen.node == "node-1"}

    assert cluster.kill_agent(1, signal.SIGINT) == 0

    until(lambda: cluster.node(1)["state"] == "left", "it has left")
    until(lambda: len(witness.seen()) == 6 + len(moved), "its tasks run elsewhere")
    gate.open()
    assert cluster.rota("wait", job).code == 0
    assert witness.starts() == {index: 2 if index in moved else 1 for index in range(6)}


def test_an_agent_leaves_also_without_a_reachable_server(wide: LocalCluster) -> None:
    wide.kill_server()
    until(lambda: "not connected" in wide.agent_log(1), "the agent has noticed")

    assert wide.kill_agent(1, signal.SIGINT) == 0
    until(lambda: not wide.keepers(), "its keeper has gone, too")


def test_the_work_of_a_killed_keeper_is_run_again(wide: LocalCluster, witness: Witness, gate: Gate) -> None:
    job = wide.submit(*witness.script(gate.wait), count=4)
    until(lambda: wide.count(job, "running") == 4, "all tasks run")
    witness.wait_for(4)

    (keeper,) = wide.keepers()
    os.kill(keeper, signal.SIGKILL)

    until(lambda: len(witness.seen()) == 8, "all tasks run again")
    assert len(wide.keepers()) == 1
    until(lambda: len(with_argument(str(gate.path))) == 4, "the first ones were ended")
    gate.open()
    assert wide.rota("wait", job).code == 0
    assert witness.starts() == dict.fromkeys(range(4), 2)


def times_ended(cluster: LocalCluster, job: str) -> Counter[int]:
    """How often the end of each task was reported."""
    events = cluster.call("GET", f"/v1/events?job={job}&kind=task.ended&limit=1000").body["events"]
    ranges = [(first, last) for event in events for first, last in event["indices"]]
    return Counter(index for first, last in ranges for index in range(first, last + 1))


def test_with_a_drain_time_sigterm_lets_tasks_end_and_takes_no_new_ones(
    tmp_path: Path, witness: Witness, gate: Gate
) -> None:
    with LocalCluster(tmp_path / "c", nodes=2, settings={"ROTA_DRAIN": "10m"}) as cluster:
        job = cluster.submit(*witness.script(gate.wait), where=["number == 1"])
        until(lambda: cluster.count(job, "running") == 1, "it runs")

        cluster.signal_agent(1, signal.SIGTERM)
        until(lambda: cluster.node(1)["eligibility"] == "draining", "the server knows")
        elsewhere = cluster.rota("run", "-q", "--", "sh", "-c", "echo $ROTA_NODE")
        gate.open()

        assert elsewhere.out == "node-2\n"
        assert cluster.rota("wait", job).code == 0
        until(lambda: cluster.node(1)["state"] == "left", "it has left")
        assert witness.starts() == {0: 1}


def test_a_second_sigterm_does_not_wait_for_tasks(tmp_path: Path, witness: Witness, gate: Gate) -> None:
    with LocalCluster(tmp_path / "c", nodes=2, settings={"ROTA_DRAIN": "10m"}) as cluster:
        job = cluster.submit(*witness.script(gate.wait), grace=0.1, retries=0)
        until(lambda: cluster.count(job, "running") == 1, "it runs")
        first = int(witness.wait_for(1)[0].node.removeprefix("node-"))
        cluster.signal_agent(first, signal.SIGTERM)
        until(lambda: cluster.node(first)["eligibility"] == "draining", "the server knows")

        assert cluster.kill_agent(first, signal.SIGTERM) == 0

        until(lambda: len(witness.seen()) == 2, "it runs elsewhere, without a retry")
        gate.open()
        assert cluster.rota("wait", job).code == 0
        until(lambda: cluster.node(first)["state"] == "left", "it has left")
