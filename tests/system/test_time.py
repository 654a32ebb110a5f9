"""Time limits and deadlines end tasks, whichever process is down, and are recorded as the reason."""

from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system


def runs(cluster: LocalCluster, **spec: Any) -> str:
    job = cluster.submit("sleep", "600", **spec)
    # On a busy machine its time may be over before the first check.
    until(lambda: cluster.count(job, "running") or cluster.count(job, "timed_out"), "it runs")
    return job


def test_a_time_limit_holds_while_the_server_is_down(shared: LocalCluster) -> None:
    job = runs(shared, timeout="3s")
    shared.kill_server()

    until(lambda: not shared.work(), "the node has ended it by itself")

    shared.start_server()
    assert shared.rota("wait", job).code == 124
    assert shared.call("GET", f"/v1/jobs/{job}").body["state"] == "timed_out"


def test_a_time_limit_holds_while_the_agent_is_down(shared: LocalCluster) -> None:
    job = runs(shared, timeout="3s")
    shared.kill_agent(1)

    until(lambda: not shared.work(), "the keeper has ended it by itself")

    shared.start_agent(1)
    assert shared.rota("wait", job).code == 124
    assert shared.call("GET", f"/v1/jobs/{job}/tasks/0").body["state"] == "timed_out"


def test_a_deadline_ends_running_tasks(shared: LocalCluster) -> None:
    job = runs(shared, deadline="8s", grace="1s")

    assert shared.rota("wait", job).code == 124
    until(lambda: not shared.work(), "its processes are gone")
    shown = shared.rota("show", job).out
    assert "it was not over by its deadline" in shown
    assert shared.call("GET", f"/v1/jobs/{job}/tasks/0").body["state"] == "timed_out"


def test_a_deadline_that_passed_while_the_server_was_down_applies_afterwards(shared: LocalCluster) -> None:
    job = runs(shared, grace="1s")
    assert shared.call("PATCH", f"/v1/jobs/{job}", {"deadline": "1s"}).status == 200
    shared.kill_server()
    shared.start_server()

    assert shared.rota("wait", job).code == 124
    until(lambda: not shared.work(), "its processes are gone")


def test_a_task_that_waits_beyond_its_queue_timeout_is_not_started(shared: LocalCluster) -> None:
    ran = shared.rota("run", "--queue-timeout", "1s", "--cpu", "64", "--", "true")

    assert ran.code == 124, ran
    job = shared.call("GET", "/v1/jobs?limit=1").body["jobs"][0]
    assert (job["state"], job["counts"]["timed_out"]) == ("timed_out", 1)
    assert job["reason"] == "it waited for longer than its queue_timeout of 1 s"
