"""A server with a store in memory is restarted: nodes reconnect, and what they run is adopted."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
Restart = Callable[[LocalCluster], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes of two cores; jobs are not on disk."""
    with LocalCluster(tmp_path, cpu=2, settings={"ROTA_STORE": "memory"}) as running:
        yield running


def killed(cluster: LocalCluster) -> None:
    cluster.kill_server()
    cluster.start_server()


def ended(cluster: LocalCluster) -> None:
    cluster.end_server()
    cluster.start_server()


@pytest.mark.parametrize("restart", [killed, ended])
def test_running_work_of_all_nodes_is_adopted_into_one_job(
    cluster: LocalCluster, witness: Witness, gate: Gate, restart: Restart
) -> None:
    job = cluster.submit(
        *witness.script(f"echo before; {gate.wait}; echo after"), count=6, name="array", cpu=1
    )
    until(lambda: cluster.count(job, "running") == 6, "all tasks run")
    before = witness.wait_for(6)

    restart(cluster)
    cluster.wait_for_nodes()
    until(lambda: known(cluster, job).get("running") == 6, "all tasks are adopted")

    listed = cluster.call("GET", "/v1/jobs").body["jobs"]
    assert [(listed_job["id"], listed_job["name"], listed_job["count"]) for listed_job in listed] == [
        (job, "array", 6)
    ]
    gate.open()
    assert cluster.rota("wait", job).code == 0
    assert witness.seen() == before
    for index in range(6):
        assert cluster.rota("logs", f"{job}.{index}").out == "before\nafter\n"


def known(cluster: LocalCluster, job: str) -> dict[str, int]:
    answer = cluster.call("GET", f"/v1/jobs/{job}")
    return dict(answer.body["counts"]) if answer.status == 200 else {}


def ends(cluster: LocalCluster, job: str) -> int:
    """The number of tasks that have succeeded or failed."""
    counts = known(cluster, job)
    return counts.get("succeeded", 0) + counts.get("failed", 0)


def test_tasks_that_ended_meanwhile_count_and_pending_jobs_are_reported_lost(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    array = cluster.submit(*witness.script(f"{gate.wait}; exit $ROTA_INDEX"), count=8, cpu=1, name="array")
    until(lambda: cluster.count(array, "running") == 6, "as many tasks run as there is room for")
    waits = cluster.submit("true", cpu=1)
    witness.wait_for(6)
    cluster.kill_agent(1)  # its keeper runs on, and gives the jobs to the next agent
    cluster.kill_server()
    gate.open()
    until(lambda: not cluster.work(), "all work has ended")

    cluster.start_server()
    cluster.start_agent(1)
    cluster.wait_for_nodes()
    # A node is stored as ready before it connects, and each one brings back only its own tasks.
    until(lambda: ends(cluster, array) == 6, "every node has brought its tasks, and their ends are heard")

    found = cluster.call("GET", f"/v1/jobs/{array}").body
    assert (found["counts"]["succeeded"], found["counts"]["failed"]) == (1, 5)
    assert found["adopted"]["missing"] == 2
    assert "adopted from its nodes" in cluster.rota("ls").out
    assert {task["state"] for task in tasks(cluster, array)[6:]} == {"held"}
    assert cluster.call("GET", f"/v1/jobs/{waits}").status == 404
    status = cluster.rota("server", "status").out
    assert "a restart loses waiting jobs" in status
    assert "adopted   1 job" in status
    log = (cluster.directory / "server.log").read_text()
    assert "3 nodes may bring back what they run" in log
    later = cluster.submit("true")
    assert int(later) > int(waits)
    assert cluster.rota("wait", later).code == 0
    assert len(witness.seen()) == 6


def test_output_is_followed_and_a_task_is_retried_after_a_restart(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = cluster.submit(*witness.script(f"echo before; {gate.wait}; echo after; exit 3"), retries=1)
    service = cluster.submit("sh", "-c", "sleep 600", kind="service", name="web")
    until(lambda: cluster.count(service, "running") == 1, "the service runs")
    witness.wait_for(1)

    killed(cluster)
    until(lambda: known(cluster, job).get("running") == 1, "the job is adopted")
    following = cluster.start_rota("logs", "--follow", job)
    assert following.stdout is not None
    assert following.stdout.readline() == b"before\n"
    gate.open()

    assert cluster.rota("wait", job).code == 3
    first, second = witness.seen()
    assert (first.attempt, second.attempt > 100_000) == (1, True)
    assert b"after\n" in following.communicate(timeout=60)[0]
    until(lambda: known(cluster, service).get("running") == 1, "the service is adopted")
    assert cluster.rota("cancel", service).code == 0
    until(lambda: not cluster.work(), "the service has ended")


def test_a_deleted_node_is_refused_despite_its_certificate(cluster: LocalCluster) -> None:
    cluster.kill_agent(3, signal.SIGINT)
    until(lambda: cluster.node(3)["state"] == "left", "the node has left")
    deleted = cluster.call("DELETE", "/v1/nodes/node-3").status
    killed(cluster)
    cluster.start_agent(3)
    until(lambda: "is not known here" in cluster.agent_log(3), "the node is refused")

    names = [node["name"] for node in cluster.call("GET", "/v1/nodes").body["nodes"]]
    assert deleted < 300
    assert names == ["node-1", "node-2"]


def tasks(cluster: LocalCluster, job: str) -> list[dict[str, str]]:
    return list(cluster.call("GET", f"/v1/jobs/{job}/tasks").body["tasks"])
