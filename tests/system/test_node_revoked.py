"""A revoked node is disconnected, and its certificate is refused from then on."""

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.agent.join import join
from rota.identity.node_identity import NodeIdentity, Renewal, load_identity
from rota.identity.tokens import JoinLine
from rota.testing.cluster import LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc
from tests.machine import needs
from tests.system.test_certificates import ShortLived
from tests.system.test_forged_readings import as_node
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PATIENCE_SECONDS = 120
REVOKED = "was revoked"


@pytest.fixture(params=["server", "watcher"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes, at the server or at a watcher."""
    with LocalCluster(tmp_path / "cluster", nodes=0, settings={"ROTA_LOST_SECONDS": "2"}) as running:
        address = running.agent if request.param == "server" else running.start_watcher(1)
        for number in (1, 2):
            running.start_agent(number, ROTA_SERVER_ADDR=address)
        running.wait_for_nodes()
        yield running


def entrances(cluster: LocalCluster) -> list[str]:
    """Every address that agents connect to."""
    return [cluster.agent, *cluster.watcher_addresses.values()]


def identity_of(cluster: LocalCluster, number: int) -> NodeIdentity:
    identity = load_identity(cluster.node_directory(number))
    assert identity is not None
    return identity


def refusals(address: str, identity: NodeIdentity) -> dict[str, tuple[grpc.StatusCode, str]]:
    """How each call of agent.proto ends for the holder of this identity."""
    found: dict[str, tuple[grpc.StatusCode, str]] = {}
    with as_node(address, identity) as stub:
        csr = pb.RenewRequest(csr=Renewal(identity).request)
        calls: dict[str, Any] = {
            "Connect": lambda: connect(stub),
            "Renew": lambda: stub.Renew(csr, timeout=60),
            "KeepTails": lambda: stub.KeepTails(pb.Tails(), timeout=60),
            "PushLog": lambda: stub.PushLog(iter([pb.LogChunk(id=1)]), timeout=60),
        }
        for name, call in calls.items():
            try:
                call()
            except grpc.RpcError as error:
                found[name] = (error.code(), error.details() or "")
    return found


def connect(stub: pb_grpc.AgentStub) -> None:
    """Say hello and hold the stream open: one that the caller ends is ended without a refusal."""
    says: queue.Queue[pb.FromNode | None] = queue.Queue()
    says.put(hello())
    try:
        list(stub.Connect(iter(says.get, None), timeout=60))
    finally:
        says.put(None)


def hello(session: int = 1) -> pb.FromNode:
    greeting = pb.Hello(machine_id="m", boot_id="b", version="0", protocol=1, session=session)
    greeting.capacity["cpu"] = 1000
    return pb.FromNode(n=1, hello=greeting)


def assert_shut_out(address: str, identity: NodeIdentity) -> None:
    found: dict[str, tuple[grpc.StatusCode, str]] = {}

    def is_answered() -> bool:
        """By a leader, which a watcher or a standby may not have yet; grpc itself answers with INTERNAL
        where the call has ended before it has sent its chunk."""
        found.update(refusals(address, identity))
        not_yet = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
        return all(code not in not_yet for code, _ in found.values())

    until(is_answered, "a leader answers", PATIENCE_SECONDS)
    assert set(found) == {"Connect", "Renew", "KeepTails", "PushLog"}
    for code, reason in found.values():
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert REVOKED in reason


def test_a_connected_node_is_disconnected_and_its_tasks_run_elsewhere(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = cluster.submit(*witness.script(gate.wait))
    until(lambda: cluster.count(job, "running") == 1, "it runs")
    [placed] = cluster.call("GET", f"/v1/jobs/{job}/tasks").body["tasks"]
    number = int(placed["node"].removeprefix("node-"))
    identity = identity_of(cluster, number)
    revoked = cluster.rota("node", "revoke", f"node-{number}")
    code = cluster.agent_exit(number)
    until(lambda: cluster.node(number)["state"] == "lost", "it counts as lost", PATIENCE_SECONDS)
    witness.wait_for(2)
    gate.open()
    until(lambda: cluster.count(job, "succeeded") == 1, "it has ended on the other node", PATIENCE_SECONDS)

    assert (revoked.code, code) == (0, 5), revoked.err
    assert REVOKED in cluster.agent_log(number)
    assert cluster.node(number)["eligibility"] == "revoked"
    for address in entrances(cluster):
        assert_shut_out(address, identity)
    kinds = [event["kind"] for event in cluster.call("GET", "/v1/events?since=0.0&limit=1000").body["events"]]
    assert "node.revoked" in kinds
    audit = (cluster.directory / "server" / "audit.log").read_text()
    assert '"action":"revoke_node"' in audit


def test_a_revoked_node_is_refused_after_a_restart_of_the_server(cluster: LocalCluster) -> None:
    identity = identity_of(cluster, 1)
    assert cluster.rota("node", "revoke", "node-1").code == 0
    cluster.kill_server()
    cluster.start_server()
    until(lambda: cluster.node(2)["state"] == "ready", "the other is back", PATIENCE_SECONDS)

    for address in entrances(cluster):
        assert_shut_out(address, identity)
    assert cluster.node(1)["state"] != "ready"


class Hostile:
    """A node that keeps its stream and a push open, whatever the server sends."""

    def __init__(self, stub: pb_grpc.AgentStub) -> None:
        self._says: queue.Queue[pb.FromNode | None] = queue.Queue()
        self._pushes: queue.Queue[pb.LogChunk | None] = queue.Queue()
        self._says.put(hello())
        self.stream: Any = stub.Connect(iter(self._says.get, None), timeout=300)
        self.push: Any = stub.PushLog.future(iter(self._pushes.get, None), timeout=300)
        self._n = 1

    def beat(self) -> None:
        self._n += 1
        self._says.put(pb.FromNode(n=self._n, beat=pb.Beat()))

    def beat_until_the_end(self) -> None:
        for _ in self.stream:
            self.beat()

    def close(self) -> None:
        self._says.put(None)
        self._pushes.put(None)


def test_streams_that_a_revoked_node_keeps_open_are_ended(cluster: LocalCluster, tmp_path: Path) -> None:
    identity = join(JoinLine.parse(cluster.join_line()), tmp_path / "hostile", "hostile", {}).identity
    address = entrances(cluster)[-1]
    with as_node(address, identity) as stub, contextlib.closing(Hostile(stub)) as node:
        until(lambda: cluster.call("GET", "/v1/nodes/hostile").body["state"] == "ready", "it is greeted")
        assert cluster.call("POST", "/v1/nodes/hostile/revoke", {}).status == 200
        node.beat()
        with pytest.raises(grpc.RpcError) as stream:
            node.beat_until_the_end()
        with pytest.raises(grpc.RpcError) as push:
            node.push.result()

    assert stream.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert push.value.code() is grpc.StatusCode.PERMISSION_DENIED
    until(lambda: cluster.call("GET", "/v1/nodes/hostile").body["state"] == "lost", "it counts as lost")


def test_a_revoked_node_cannot_be_opened_again_but_can_be_deleted(cluster: LocalCluster) -> None:
    assert cluster.rota("node", "revoke", "node-1").code == 0
    answers = [cluster.call("POST", f"/v1/nodes/node-1/{verb}", {}) for verb in ("open", "cordon", "drain")]
    again = cluster.rota("node", "revoke", "node-1")
    listed = cluster.call("GET", "/v1/nodes?eligibility=revoked").body["nodes"]
    until(lambda: cluster.node(1)["state"] == "lost", "it counts as lost", PATIENCE_SECONDS)
    deleted = cluster.rota("node", "delete", "node-1")

    assert [answer.status for answer in answers] == [409] * 3
    assert all(REVOKED in answer.body["detail"] for answer in answers)
    assert (again.code, deleted.code) == (0, 0)
    assert [node["name"] for node in listed] == ["node-1"]
    assert refusals(cluster.agent, identity_of(cluster, 1))["Connect"][0] is grpc.StatusCode.PERMISSION_DENIED


def test_a_revoked_node_is_deleted_once_its_certificate_cannot_be_renewed(tmp_path: Path) -> None:
    with ShortLived(tmp_path, node=1, lost=1) as cluster:
        cluster.kill_server()
        cluster.environment["ROTA_CERTIFICATES_RENEWAL_WINDOW"] = "2s"
        cluster.start_server()
        until(lambda: cluster.node(1)["state"] == "ready", "it is back")
        assert cluster.call("POST", "/v1/nodes/node-1/revoke", {}).status == 200
        until(
            lambda: cluster.call("GET", "/v1/nodes").body["nodes"] == [], "it is forgotten", PATIENCE_SECONDS
        )


@needs("etcd")
def test_a_revoked_node_is_refused_by_the_next_leader_and_by_standbys(tmp_path: Path) -> None:
    with (
        LocalEtcd(tmp_path / "etcd") as etcd,
        ElectedCluster(tmp_path / "cluster", etcd, servers=2, nodes=2) as cluster,
    ):
        identity = identity_of(cluster, 1)
        leader = cluster.wait_for_leader()
        assert cluster.rota("node", "revoke", "node-1", ROTA_ADDR=cluster.addr).code == 0
        for place in cluster.addresses.values():
            assert_shut_out(place.agent, identity)
        cluster.kill(leader)
        second = cluster.wait_for_leader(other_than=leader)

        assert_shut_out(cluster.addresses[second].agent, identity)
