"""Jobs with dependencies, system jobs and crons on a real cluster."""

import signal
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system


def state(cluster: LocalCluster, job: str) -> str:
    return str(cluster.call("GET", f"/v1/jobs/{job}").body["state"])


def nodes_of(cluster: LocalCluster, job: str) -> list[str]:
    tasks = cluster.call("GET", f"/v1/jobs/{job}/tasks?state=running").body["tasks"]
    return sorted(task["node"] for task in tasks)


def test_jobs_start_after_their_dependencies_also_across_a_server_kill(
    cluster: LocalCluster, gate: Gate, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    build = cluster.submit("sh", "-c", f"{gate.wait}; echo build >> {marks}", name="build")
    test = cluster.submit("sh", "-c", f"echo test >> {marks}", after=["build"])
    never = cluster.submit("true", after=[f"{build}:failure"])
    last = cluster.submit("sh", "-c", f"echo last >> {marks}", after=[f"{test}:any", f"{never}:any"])
    assert {state(cluster, job) for job in (test, never, last)} == {"waiting"}
    assert f"waits for job {build} to succeed" in cluster.rota("why", test).out
    cluster.kill_server()
    cluster.start_server()
    gate.open()

    until(lambda: state(cluster, last) == "succeeded", "the last job has ended")
    assert marks.read_text().split() == ["build", "test", "last"]
    assert state(cluster, never) == "canceled"


def test_a_system_job_is_on_every_node_as_nodes_come_drain_and_open(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=2) as cluster:
        job = cluster.submit("sleep", "1000", cpu=0.5, kind="system")
        until(lambda: nodes_of(cluster, job) == ["node-1", "node-2"], "it runs on both nodes")
        cluster.start_agent(3)
        until(lambda: nodes_of(cluster, job) == ["node-1", "node-2", "node-3"], "it runs on the new one")
        assert cluster.rota("node", "drain", "node-1").code == 0
        until(lambda: nodes_of(cluster, job) == ["node-2", "node-3"], "the drained node has lost it")
        until(lambda: "not on node-1: it is drained" in cluster.rota("why", job).out, "the node is drained")
        assert cluster.rota("node", "open", "node-1").code == 0
        until(lambda: len(nodes_of(cluster, job)) == 3, "it is back")
        cluster.kill_agent(2, signal.SIGKILL)
        cluster.start_agent(2)
        cluster.kill_server()
        cluster.start_server()
        until(lambda: len(nodes_of(cluster, job)) == 3, "it runs everywhere again")
        attempts = {
            task["index"]: task["attempt"]
            for task in cluster.call("GET", f"/v1/jobs/{job}/tasks").body["tasks"]
        }

        assert sorted(attempts.values()) == [1, 1, 2]  # only the drained one was started again
        assert cluster.rota("cancel", job).code == 0
        until(lambda: state(cluster, job) == "canceled", "it has ended")


def test_a_cron_is_created_run_paused_and_shown(shared: LocalCluster, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    flags = ("--name", "tick", "--schedule", "@yearly", "--zone", "Europe/Zurich")
    made = shared.rota("cron", "create", *flags, "--", "sh", "-c", f"echo $ROTA_JOB_NAME >> {marks}")
    assert made.code == 0, made.err
    ran = shared.rota("cron", "run", "tick")
    assert ran.code == 0, ran.err
    job = ran.out.strip()
    until(lambda: state(shared, job) == "succeeded", "the run has ended")
    assert marks.read_text().startswith("tick@")
    assert f"job {job}  succeeded" in shared.rota("cron", "show", "tick").out
    assert shared.rota("cron", "pause", "tick").code == 0
    assert "paused" in shared.rota("cron", "ls").out
    assert shared.rota("cron", "resume", "tick").code == 0
    refused = shared.rota("cron", "create", *flags, "--", "true")

    assert (refused.code, "cron tick exists already" in refused.err) == (1, True)
    assert shared.rota("cron", "create", "--replace", *flags, "--", "true").code == 0
    assert shared.rota("cron", "delete", "tick").code == 0
    assert shared.rota("cron", "show", "tick").code == 4


def test_a_cron_run_starts_at_its_minute(shared: LocalCluster, tmp_path: Path) -> None:
    """The next minute is awaited, as anybody would."""
    marks = tmp_path / "marks"
    body = {
        "name": "minutely",
        "schedule": "* * * * *",
        "job": {"command": ["sh", "-c", f"echo $ROTA_CRON_INSTANT >> {marks}"]},
    }
    made = shared.call("POST", "/v1/crons", body)
    assert made.status == 201, made.body
    until(lambda: marks.exists() and marks.read_text().endswith("\n"), "the first run has begun", 120)
    instant = marks.read_text().split()[0]

    assert instant.endswith(":00Z")
    runs = shared.call("GET", "/v1/crons/minutely").body["runs"]
    assert made.body["next_at_ms"] in [run["at_ms"] for run in runs]
    assert shared.call("DELETE", "/v1/crons/minutely").status == 204
