"""Every request that changes something is sent twice, as by a client whose first response was lost."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from rota.apiserver.openapi.document import OPERATIONS
from rota.model.lifecycle import JOB_ENDS
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system
SLEEP = {"command": ["sleep", "600"]}
SERVICE = {**SLEEP, "kind": "service", "rollout": {"healthy": "0s"}}
CRON = {"schedule": "0 0 1 1 *", "job": {"command": ["true"]}}


class Case(NamedTuple):
    """A request, and what is compared before and after its repetition."""

    route: str
    prepare: Callable[[LocalCluster], str]  # returns what `{ref}` stands for
    body: Any = None
    again: int | None = None  # the status of the second answer, where it differs from the first
    attempt: int = 1  # that the task of the job comes to


def running(body: dict[str, Any]) -> Callable[[LocalCluster], str]:
    def prepare(cluster: LocalCluster) -> str:
        job = str(cluster.call("POST", "/v1/jobs", body).body["id"])
        until(lambda: cluster.count(job, "running") == 1, "it runs")
        return job

    return prepare


def ended(cluster: LocalCluster) -> str:
    job = cluster.submit("true")
    cluster.rota("wait", job)
    return job


def updated(cluster: LocalCluster) -> str:
    """A service with a version to go back to."""
    job = running(SERVICE)(cluster)
    cluster.call("PATCH", f"/v1/jobs/{job}", {"env": {"A": "1"}})
    return job


def cron(name: str) -> Callable[[LocalCluster], str]:
    def prepare(cluster: LocalCluster) -> str:
        cluster.call("POST", "/v1/crons", {**CRON, "name": name})
        return name

    return prepare


def token(cluster: LocalCluster) -> str:
    return str(cluster.call("POST", "/v1/tokens", {"name": "gone", "role": "viewer"}).body["id"])


def join_token(cluster: LocalCluster) -> str:
    return str(cluster.call("POST", "/v1/join-tokens", {"local": True}).body["id"])


def nothing(_: LocalCluster) -> str:
    return ""


def node(_: LocalCluster) -> str:
    return "node-1"


CASES = [
    Case("POST /v1/jobs", nothing, SLEEP, again=200),
    Case("PATCH /v1/jobs/{ref}", running(SLEEP), {"priority": 60}),
    Case("DELETE /v1/jobs/{ref}", ended, again=404),
    Case("POST /v1/jobs/{ref}/cancel", running(SLEEP), {}),
    Case("POST /v1/jobs/{ref}/kill", running(SERVICE), {"indices": [0]}, attempt=2),
    Case("POST /v1/jobs/{ref}/pause", running(SLEEP), {}),
    Case("POST /v1/jobs/{ref}/resume", running(SLEEP), {}),
    Case("POST /v1/jobs/{ref}/restart", running(SLEEP), {}, attempt=2),
    Case("POST /v1/jobs/{ref}/move", running(SLEEP), {}, attempt=2),
    Case("POST /v1/jobs/{ref}/rollback", updated, {}),
    Case("POST /v1/jobs/{ref}/rerun", ended, {}, again=200),
    Case("PATCH /v1/nodes/{ref}", node, {"taint": ["dedicated=ci"]}),
    Case("POST /v1/nodes/{ref}/drain", node, {}),
    Case("POST /v1/nodes/{ref}/cordon", node, {}),
    Case("POST /v1/nodes/{ref}/open", node, {}),
    Case("PUT /v1/namespaces/{ref}", lambda _: "team", {"weight": 5}),
    Case("DELETE /v1/namespaces/{ref}", lambda _: "team", again=404),
    Case("POST /v1/crons", nothing, {**CRON, "name": "made"}),
    Case("PUT /v1/crons/{ref}", cron("put"), CRON),
    Case("DELETE /v1/crons/{ref}", cron("deleted"), again=404),
    Case("POST /v1/crons/{ref}/pause", cron("paused"), {}),
    Case("POST /v1/crons/{ref}/resume", cron("resumed"), {}),
    Case("POST /v1/crons/{ref}/run", cron("run"), {}, again=200),
    Case("POST /v1/tokens", nothing, {"name": "made", "role": "viewer"}, again=200),
    Case("DELETE /v1/tokens/{ref}", token, again=404),
    Case("DELETE /v1/join-tokens/{ref}", join_token),
]
ELSEWHERE = {
    "POST /v1/plan": "changes nothing",
    "POST /v1/plan/drain": "changes nothing",
    "POST /v1/enroll": "a join token is used once: the second request is refused",
    "POST /v1/join-tokens": "a second token that nobody has expires unused",
    "POST /v1/store/accept": "only after a restore; accepted once, it stays so",
    "POST /v1/jobs/{ref}/release": "names the try that is held; tests/apiserver/test_idempotency.py",
    "POST /v1/jobs/{ref}/resolve": "names the attempt that was lost; tests/apiserver/test_recovery.py",
    "POST /v1/jobs/{ref}/tasks/{index}/attempts/{attempt}/result": "tests/apiserver/test_results.py",
    "POST /v1/ca/rotation": "refused while one is under way; tests/system/test_ca_rotation.py",
    "POST /v1/ca/rotation/finish": "refused where none is under way; tests/system/test_ca_rotation.py",
    "POST /v1/ca/replace": "replaces a CA that nothing trusts yet: nodes have to join again in any case",
    "POST /v1/brake/release": "names the silence that it is about; tests/system/test_brake.py",
    "POST /v1/clusters": "needs a provider; tests/apiserver/test_clusters.py",
    "PATCH /v1/clusters/{ref}": "sets amounts; tests/apiserver/test_clusters.py",
    "DELETE /v1/clusters/{ref}": "drains it; tests/apiserver/test_clusters.py",
    "DELETE /v1/watchers/{ref}": "removed once; tests/apiserver/test_watchers.py",
    "POST /v1/nodes/{ref}/revoke": "it stays revoked; tests/system/test_node_revoked.py",
    "DELETE /v1/nodes/{ref}": "a node must be lost first; tests/system/test_node_lost.py",
}


def test_every_request_that_changes_something_is_here() -> None:
    changing = {
        f"{operation.method} {operation.path}" for operation in OPERATIONS if operation.method != "GET"
    }

    assert changing == {case.route for case in CASES} | ELSEWHERE.keys()


def seen(cluster: LocalCluster, ref: str) -> Any:
    """What a second execution would change: numbers of jobs, attempts, versions, signals."""
    jobs = cluster.call("GET", "/v1/jobs?limit=1000").body["jobs"]
    found: dict[str, Any] = {"jobs": [job["id"] for job in jobs]}
    if ref.isdecimal() and ref in found["jobs"]:
        found["version"] = cluster.call("GET", f"/v1/jobs/{ref}").body["version"]
        found["attempt"] = cluster.call("GET", f"/v1/jobs/{ref}/tasks/0").body["attempt"]
    return found


def is_done(cluster: LocalCluster, ref: str, attempt: int) -> bool:
    """The job has ended, or this attempt of its task runs."""
    if not ref.isdecimal():
        return True
    answer = cluster.call("GET", f"/v1/jobs/{ref}")
    if answer.status == 404 or answer.body["state"] in JOB_ENDS:
        return True
    task = cluster.call("GET", f"/v1/jobs/{ref}/tasks/0").body
    return bool(task["state"] == "running" and task["attempt"] >= attempt)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.route)
def test_a_repeated_request_acts_once(three: LocalCluster, case: Case) -> None:
    method, _, path = case.route.partition(" ")
    ref = case.prepare(three)
    key = {"Idempotency-Key": case.route.replace(" ", "")}
    first = three.call(method, path.format(ref=ref), case.body, **key)
    until(lambda: is_done(three, ref, case.attempt), "what it asked for is done")
    before = seen(three, ref)

    second = three.call(method, path.format(ref=ref), case.body, **key)

    assert first.status < 300, first.body
    assert second.status == (case.again or first.status), second.body
    until(lambda: is_done(three, ref, case.attempt), "nothing is under way")
    assert seen(three, ref) == before
    for job in three.call("GET", "/v1/jobs?state=active").body["jobs"]:
        three.call("POST", f"/v1/jobs/{job['id']}/kill", {})
    three.call("POST", "/v1/nodes/node-1/open")
    three.call("PATCH", "/v1/nodes/node-1", {"untaint": ["dedicated"]})
