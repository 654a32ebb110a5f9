"""Three servers on three members of etcd, and clients that know a standby only."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.client.cluster import Cluster, connect
from rota.client.errors import Rejected
from rota.model.limits import STANDBY_AGE_MS
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(900)]
PATIENCE_SECONDS = 120
NEVER = 3  # the server that never leads


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElectedCluster]:
    directory = tmp_path_factory.mktemp("standby")
    with (
        LocalEtcd(directory / "etcd", 3) as etcd,
        ElectedCluster(directory / "cluster", etcd, never_lead=(NEVER,)) as running,
    ):
        until(lambda: age_ms(running) is not None, "it knows everything", PATIENCE_SECONDS)
        yield running


def age_ms(cluster: ElectedCluster) -> Any:
    answer = cluster.call_server(NEVER, "GET", "/v1/server")
    return answer.body["lag_ms"] if answer.status == 200 else None


def connected(cluster: ElectedCluster) -> Cluster:
    """A client that knows only the server that never leads."""
    client = connect(f"http://{cluster.addresses[NEVER].http}", token=cluster.token)
    client.transport.patience_seconds = PATIENCE_SECONDS
    return client


class Submitter:
    """Submits one job after the other, each with its own key, and reads it back immediately."""

    def __init__(self, cluster: ElectedCluster) -> None:
        self.submitted: dict[str, str] = {}
        self.not_seen: list[str] = []
        self._cluster = cluster
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Submitter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def go_on(self) -> None:
        known = len(self.submitted)
        until(lambda: len(self.submitted) > known + 2, "submits come through", PATIENCE_SECONDS)

    def _run(self) -> None:
        with connected(self._cluster) as client:
            while not self._stopping.wait(0.01):
                key = f"key-{len(self.submitted)}"
                job = client.submit("true", key=key, name=key)
                if job.id not in [listed.id for listed in client.jobs()]:
                    self.not_seen.append(job.id)
                self.submitted[key] = job.id


def test_a_client_of_a_standby_reads_its_own_writes(cluster: ElectedCluster) -> None:
    with connected(cluster) as client:
        job = client.submit("echo", "hello")
        listed = [job.id for job in client.jobs()]
        ended = job.wait(PATIENCE_SECONDS)
        output = job.logs()
        nodes = sorted((node.name, node.state) for node in client.nodes.list())
        server = client.server.status()

    assert job.id in listed
    assert (ended.state, output) == ("succeeded", "hello\n")
    assert nodes == [("node-1", "ready"), ("node-2", "ready")]
    assert (server.role, server.leader) == ("standby", f"http://{cluster.http}")


def test_a_task_is_moved_through_a_standby(cluster: ElectedCluster, tmp_path: Path) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    with connected(cluster) as client:
        job = client.submit(*witness.script(gate.wait))
        before = witness.wait_for(1)[0].node
        until(lambda: job.refresh().counts["running"] == 1, "it runs", PATIENCE_SECONDS)
        job.move(0, to="node-2" if before == "node-1" else "node-1")
        after = witness.wait_for(2)[1].node
        gate.open()
        ended = job.wait(PATIENCE_SECONDS)

    assert ended.state == "succeeded"
    assert {before, after} == {"node-1", "node-2"}


def test_a_token_is_valid_at_a_standby_from_creation_to_revocation(
    cluster: ElectedCluster,
) -> None:
    job = cluster.submit("true")
    until(lambda: cluster.call_server(NEVER, "GET", f"/v1/jobs/{job}").status == 200, "it is known there")
    made = cluster.call("POST", "/v1/tokens", {"name": "eve", "role": "viewer", "namespaces": ["*"]}).body
    with connect(f"http://{cluster.addresses[NEVER].http}", token=made["token"]) as client:
        seen = [job.id for job in client.jobs()]
        cluster.call("DELETE", f"/v1/tokens/{made['id']}")
        until(lambda: is_refused(client), "it is refused")

    assert job in seen


def is_refused(client: Cluster) -> bool:
    try:
        list(client.jobs())
    except Rejected as refusal:
        return refusal.code == "unauthenticated"
    return False


def test_a_client_of_a_standby_does_not_notice_a_killed_leader(
    cluster: ElectedCluster, tmp_path: Path
) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    with connected(cluster) as client:
        job = client.submit(*witness.script(gate.wait), count=4)
        until(lambda: job.refresh().counts["running"] == 4, "all tasks run", PATIENCE_SECONDS)
        with Submitter(cluster) as submitter:
            submitter.go_on()
            leader = cluster.wait_for_leader()
            cluster.kill(leader)
            read = cluster.call_server(NEVER, "GET", f"/v1/jobs/{job.id}")
            assert cluster.wait_for_leader(other_than=leader) != NEVER
            submitter.go_on()
        cluster.launch(leader)
        # On a busy machine it may lead again by then.
        until(lambda: cluster.status_of(leader) in (200, 503), "it is back", PATIENCE_SECONDS)
        gate.open()
        ended = job.wait(PATIENCE_SECONDS)
        names = Counter(job.name for job in client.jobs() if job.name in submitter.submitted)
        states = {client.job(number).wait(PATIENCE_SECONDS).state for number in submitter.submitted.values()}

    assert (read.status, read.body["counts"]["running"]) == (200, 4)
    assert ended.state == "succeeded"
    assert witness.starts() == dict.fromkeys(range(4), 1)
    assert names == dict.fromkeys(submitter.submitted, 1)
    assert (states, submitter.not_seen) == ({"succeeded"}, [])
    assert "full reload" not in "".join(map(cluster.log, cluster.addresses))


def test_without_a_quorum_a_standby_shows_what_it_knows_and_how_old_it_is(cluster: ElectedCluster) -> None:
    job = cluster.submit("true")
    until(
        lambda: cluster.call_server(NEVER, "GET", f"/v1/jobs/{job}").body.get("state") == "succeeded",
        "it has ended",
    )
    for member in (1, 2):
        cluster.etcd.kill(member)
    try:
        until(lambda: (age_ms(cluster) or 0) > STANDBY_AGE_MS, "it grows old", PATIENCE_SECONDS)
        until(lambda: not cluster.leaders(), "nobody leads", PATIENCE_SECONDS)
        seen = cluster.rota(
            "ls", ROTA_ADDR=f"http://{cluster.addresses[NEVER].http}", ROTA_TOKEN=cluster.token
        )
    finally:
        for member in (1, 2):
            cluster.etcd.launch(member)
        cluster.etcd.wait()
    cluster.wait_for_leader()

    assert (seen.code, job in seen.out) == (0, True)
    assert "old: it comes from a standby server" in seen.err
    until(lambda: (age_ms(cluster) or STANDBY_AGE_MS) < STANDBY_AGE_MS, "it is young again", PATIENCE_SECONDS)
