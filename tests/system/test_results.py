"""Tasks report results with a token of their own, which users and controllers can read."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rota
from rota.client.cluster import Cluster, connect
from rota.client.controller import Controller
from rota.testing.cluster import LocalCluster

pytestmark = pytest.mark.system
SOURCE = str(Path(rota.__file__).parents[1])
# By the standard library alone: as any program could.
REPORT = """
import json, os, stat, sys, urllib.error, urllib.request
token = os.environ["ROTA_TOKEN_FILE"]
assert stat.S_IMODE(os.stat(token).st_mode) == 0o400 and os.stat(token).st_uid == os.getuid()
def post(body):
    head = {"Authorization": "Bearer " + open(token).read().strip(), "Content-Type": "application/json"}
    asked = urllib.request.Request(os.environ["ROTA_RESULT_URL"], json.dumps(body).encode(), head)
    try:
        return urllib.request.urlopen(asked).status
    except urllib.error.HTTPError as error:
        return error.code
print([post(json.loads(said)) for said in sys.argv[2:]], flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def client(shared: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{shared.http}", token=shared.token) as opened:
        yield opened


def test_results_are_shown_to_users_and_carried_to_controllers(shared: LocalCluster, client: Cluster) -> None:
    good, other = {"results": {"loss": 0.5, "model": "small"}}, {"failure": "no"}
    reports = [json.dumps(report) for report in (good, good, other)]
    spec = {"command": [sys.executable, "-c", REPORT, "0", *reports], "results": True}
    with Controller(shared.grpc, shared.token, "ci") as controller:
        stages = list(controller.schedule(spec, "once"))
    job = client.job(stages[0].job)
    task = job.task(0)
    shown = shared.rota("show", job.id).out

    assert job.status.state == "succeeded", job.status
    assert job.logs() == "[201, 200, 409]\n"
    assert task.result is not None
    assert (task.result.results, task.result.failure) == (good["results"], None)
    assert "reported   success" in shown
    assert "loss       0.5" in shown
    (reported,) = [stage.task.result_json for stage in stages if stage.task.kind == "task.reported"]
    assert json.loads(reported) == {**good, "failure": None}


def test_the_start_event_precedes_the_result_event(cluster: LocalCluster) -> None:
    agent = cluster.processes()[1]  # of node-1: stopped by the task before it has reported the start
    report = f"{sys.executable} -c '{REPORT}' 0 '{{}}'"
    script = f"kill -STOP {agent}; (sleep 1; kill -CONT {agent}) & {report}; wait"
    job = cluster.submit("sh", "-c", script, results=True, where=["node == node-1"])

    assert cluster.rota("wait", job).code == 0

    events = cluster.call("GET", f"/v1/events?job={job}").body["events"]
    kinds = [event["kind"] for event in events]
    assert kinds.index("task.started") < kinds.index("task.reported")


def test_a_reported_failure_fails_the_task_and_a_retry_reports_again(
    shared: LocalCluster, client: Cluster
) -> None:
    script = (
        f"import sys, os; sys.path.insert(0, {SOURCE!r}); import rota\n"
        "rota.report({'try': int(os.environ['ROTA_ATTEMPT'])}, failure='it diverged')"
    )
    job = client.run(sys.executable, "-c", script, results=True, retries=1, retry={"delay": "1ms"})
    ran = shared.rota("run", "-q", "--results", "--", sys.executable, "-c", script)
    attempts = job.task(0).attempts

    assert (job.status.state, job.status.reason) == ("failed", "it reported a failure: it diverged")
    assert [(attempt.state, attempt.exit_code) for attempt in attempts] == [("failed", 0), ("failed", 0)]
    assert [attempt.result and attempt.result.results["try"] for attempt in attempts] == [1, 2]
    assert ran.code == 1
    assert "it reported a failure: it diverged" in shared.rota("show", "last").out


def test_a_reported_success_does_not_override_a_failed_exit(
    client: Cluster,
) -> None:
    bad = client.run(sys.executable, "-c", REPORT, "7", "{}", results=True)
    plain = client.run("sh", "-c", "env | grep -c -e ROTA_TOKEN -e ROTA_RESULT")

    assert (bad.status.state, bad.status.exit_code) == ("failed", 7)
    assert plain.logs() == "0\n"
