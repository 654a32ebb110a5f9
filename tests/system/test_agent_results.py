"""With `results = "agent"` the node's agent reports the results of tasks, over HTTP with its certificate."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import rota
from rota.client.cluster import Cluster, connect
from rota.identity.node_identity import NodeIdentity, load_identity
from rota.identity.signed_requests import sign_request
from rota.model.result import result_path
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
SOURCE = str(Path(rota.__file__).parents[1])
PATIENCE_SECONDS = 60
LEAVE = 'echo \'{"results": {"loss": 0.5}}\' > "$ROTA_RESULT_FILE"; echo model > "$ROTA_OUTPUT_DIR/model.bin"'
REPORTED = {"exit_code": 0, "outputs": [{"path": "model.bin", "bytes": 6}], "results": {"loss": 0.5}}


@pytest.fixture(scope="module")
def client(shared: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{shared.http}", token=shared.token) as opened:
        yield opened


def kinds(cluster: LocalCluster, job: str) -> list[str]:
    """The kinds of a task's events, in order."""
    events = cluster.call("GET", f"/v1/events?job={job}").body["events"]
    return [
        event["kind"] for event in events if event["kind"] in ("task.started", "task.reported", "task.ended")
    ]


def test_exit_code_outputs_and_the_file_are_reported_before_the_end(
    shared: LocalCluster, client: Cluster
) -> None:
    job = client.run("sh", "-c", f"{LEAVE}; env | grep -c -e TOKEN_FILE -e RESULT_URL", results="agent")
    result = job.task(0).result
    audited = (shared.directory / "server" / "audit.log").read_text()

    assert result is not None
    assert (result.results, result.failure) == ({**REPORTED, "exit_code": 1}, "it ended with exit code 1")
    assert job.logs() == "0\n"
    assert kinds(shared, job.id) == ["task.started", "task.reported", "task.ended"]
    assert '"who":"node n1"' in audited


def test_steps_are_reported_and_a_failure_in_the_file_fails_the_task(client: Cluster) -> None:
    script = f"import sys; sys.path.insert(0, {SOURCE!r}); import rota; rota.report(failure='it diverged')"
    steps: list[Mapping[str, Any]] = [{"command": ["true"]}, {"command": [sys.executable, "-c", script]}]
    job = client.submit(steps=steps, results="agent")
    job.wait(timeout_seconds=PATIENCE_SECONDS)
    result = job.task(0).result

    assert result is not None
    assert (result.results, result.failure) == ({"exit_code": 0, "steps": [0, 0]}, "it diverged")
    assert (job.status.state, job.status.reason) == ("failed", "it reported a failure: it diverged")


@pytest.mark.parametrize(
    ("write", "error"),
    [
        ("echo nonsense >", "is not JSON"),
        ("echo '[]' >", "is not an object with results and failure"),
        ("head -c 9000 /dev/zero >", "is no plain file of at most 8192 bytes"),
        ("mkfifo", "is no plain file of at most 8192 bytes"),
        ("ln -s /etc/passwd", "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_harms_nothing_else(
    client: Cluster, write: str, error: str
) -> None:
    job = client.run("sh", "-c", f'{write} "$ROTA_RESULT_FILE"', results="agent")
    result = job.task(0).result

    assert job.status.state == "succeeded"
    assert result is not None
    assert (result.results, result.failure) == ({"exit_code": 0, "result_file": error}, None)


def test_many_outputs_are_listed_as_far_as_they_fit(client: Cluster) -> None:
    job = client.run("sh", "-c", 'for i in $(seq 150); do : > "$ROTA_OUTPUT_DIR/$i"; done', results="agent")
    result = job.task(0).result

    assert result is not None
    assert (len(result.results["outputs"]), result.results["outputs_in_all"]) == (100, 150)


def test_each_task_of_an_array_is_reported(shared: LocalCluster, client: Cluster) -> None:
    job = client.submit("sh", "-c", "exit $ROTA_INDEX", count=20, cpu=0.1, results="agent")
    job.wait(timeout_seconds=PATIENCE_SECONDS)
    codes = [task["result"]["results"]["exit_code"] for task in map(_task(shared, job.id), range(20))]

    assert codes == list(range(20))


def _task(cluster: LocalCluster, job: str) -> Any:
    return lambda index: cluster.call("GET", f"/v1/jobs/{job}/tasks/{index}").body


def test_a_task_that_ends_without_server_and_agent_is_reported_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    witness, gate, done = Witness(tmp_path / "started"), Gate(tmp_path / "gate"), tmp_path / "done"
    script = witness.script(f"{gate.wait}; {LEAVE}; touch {done}")
    jobs = [cluster.submit(*script, results="agent", on=f"node-{number}") for number in (1, 2)]
    witness.wait_for(2)
    cluster.kill_server()
    gate.open()
    until(lambda: done.exists() and not cluster.work(), "the tasks have ended")
    cluster.kill_agent(1)
    cluster.start_agent(1)
    cluster.start_server()
    until(lambda: all(cluster.count(job, "succeeded") for job in jobs), "they are told", PATIENCE_SECONDS)

    for job in jobs:
        attempts = cluster.call("GET", f"/v1/jobs/{job}/tasks/0").body["attempts"]
        assert [attempt["result"]["results"] for attempt in attempts] == [REPORTED]
        assert kinds(cluster, job)[-2:] == ["task.reported", "task.ended"]
        assert kinds(cluster, job).count("task.reported") == 1
    assert len(witness.seen()) == 2


def test_operators_and_the_tasks_node_may_report_and_no_others(three: LocalCluster, tmp_path: Path) -> None:
    witness, gate = Witness(tmp_path / "started"), Gate(tmp_path / "gate")
    job = three.submit(*witness.script(gate.wait), on="node-1")
    witness.wait_for(1)
    path, body = result_path(job, 0, 1), b'{"results": {"loss": 0.5}}'
    own, other = (identity_of(three, number) for number in (1, 2))

    def post(content: bytes, value: str) -> int:
        return three.call("POST", path, content, authorization=value).status

    submitter, operator = (token(three, role) for role in ("submitter", "operator"))
    assert post(body, submitter) == 403
    assert post(body, sign_request(other, "POST", path, body)) == 403
    assert post(body, sign_request(own, "POST", path, b"{}")) == 401
    assert post(body, sign_request(own, "POST", result_path(job, 0, 2), body)) == 401
    assert (
        three.call("GET", "/v1/jobs", authorization=sign_request(own, "GET", "/v1/jobs", b"")).status == 403
    )
    assert post(body, sign_request(own, "POST", path, body)) == 201
    assert post(body, operator) == 200
    assert post(b'{"failure": "no"}', f"Bearer {three.token}") == 409
    gate.open()


def identity_of(cluster: LocalCluster, number: int) -> NodeIdentity:
    identity = load_identity(cluster.node_directory(number))
    assert identity is not None
    return identity


def token(cluster: LocalCluster, role: str) -> str:
    made = cluster.call("POST", "/v1/tokens", {"name": f"a-{role}", "role": role, "namespaces": ["default"]})
    return f"Bearer {made.body['token']}"
