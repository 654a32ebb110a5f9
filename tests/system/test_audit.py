"""The audit log of a server: a bounded number of refusals, and who read the data of others."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.identity.node_identity import load_identity
from rota.testing.cluster import LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import resident_bytes, until
from rota.wire.generated import agent_pb2
from tests.machine import needs

REFUSED = 3_000
SENT_BYTES = 900
FOREIGN = (("Controller/State", "PERMISSION_DENIED"), ("Watcher/Attach", "UNAUTHENTICATED"))


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with LocalCluster(tmp_path_factory.mktemp("one"), nodes=1) as running:
        yield running


def audit_file(cluster: LocalCluster) -> Path:
    return cluster.directory / "server" / "audit.log"


def audited(cluster: LocalCluster) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit_file(cluster).read_text().splitlines()]


def be_refused(cluster: LocalCluster, times: int) -> None:
    with contextlib.closing(HTTPConnection(cluster.http, timeout=60)) as connection:
        for number in range(times):
            path = f"/v1/jobs/{number}?{'x' * SENT_BYTES}"
            connection.request("GET", path, headers={"authorization": "Bearer rota_wrong"})
            response = connection.getresponse()
            response.read()
            assert response.status in (401, 429)


def test_countless_refusals_are_a_few_lines(shared_cluster: LocalCluster) -> None:
    before = audit_file(shared_cluster).stat().st_size
    be_refused(shared_cluster, REFUSED)  # by now the server holds what it needs for any number of requests
    memory = resident_bytes(shared_cluster.server_pid)

    be_refused(shared_cluster, REFUSED)

    assert (audit_file(shared_cluster).stat().st_size - before) / REFUSED < 10
    assert (resident_bytes(shared_cluster.server_pid) - memory) / (REFUSED * SENT_BYTES) < 1
    assert shared_cluster.call("GET", "/v1/server").status == 200


def test_reading_backups_and_outputs_of_others_is_audited(shared_cluster: LocalCluster) -> None:
    made = shared_cluster.call("POST", "/v1/tokens", {"name": "mona", "role": "viewer", "namespaces": ["*"]})
    mona = f"Bearer {made.body['token']}"
    job = shared_cluster.submit("true")
    shared_cluster.rota("wait", job)
    for reader in (mona, mona, f"Bearer {shared_cluster.token}"):
        with contextlib.closing(HTTPConnection(shared_cluster.http, timeout=60)) as connection:
            connection.request("GET", f"/v1/jobs/{job}/logs", headers={"authorization": reader})
            connection.getresponse().read()
    with contextlib.closing(HTTPConnection(shared_cluster.http, timeout=60)) as connection:
        connection.request(
            "GET", "/v1/store/backup", headers={"authorization": f"Bearer {shared_cluster.token}"}
        )
        connection.getresponse().read()

    lines = [(line["who"], line["action"], line["outcome"]) for line in audited(shared_cluster)]
    assert lines.count(("mona", "read_logs", "200")) == 1  # the second is counted
    assert [action for who, action, _ in lines if who != "mona"].count("read_logs") == 0
    assert [action for _, action, _ in lines].count("back_up") == 1


def test_a_node_that_calls_a_method_for_servers_is_audited(shared_cluster: LocalCluster) -> None:
    identity = load_identity(shared_cluster.node_directory(1))
    assert identity is not None
    credentials = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)
    options = [("grpc.ssl_target_name_override", "rota-server")]
    with grpc.secure_channel(shared_cluster.agent, credentials, options=options) as channel:
        for method, code in FOREIGN:
            call: Any = channel.stream_stream(f"/rota.v1.{method}")
            metadata = (
                ("authorization", f"Bearer {shared_cluster.token}"),
                ("rota-origin", "ipv4:203.0.113.9:1"),
            )
            with pytest.raises(grpc.RpcError) as refused:
                next(call(iter([b""]), metadata=metadata))
            assert refused.value.code().name == code

    found = {(line["action"], line["outcome"]) for line in audited(shared_cluster)}
    assert {("call as a server", "permission_denied"), ("call as a watcher", "unauthenticated")} <= found
    assert (
        "203.0.113.9" not in audit_file(shared_cluster).read_text()
    )  # a node does not forward calls of others


@needs("etcd")
def test_the_leader_audits_the_address_of_a_standbys_caller(tmp_path: Path) -> None:
    """The leader trusts the standby, and no header that a caller writes itself."""
    with (
        LocalEtcd(tmp_path / "etcd") as etcd,
        ElectedCluster(tmp_path / "cluster", etcd, servers=2, nodes=0) as cluster,
    ):
        leader = cluster.wait_for_leader()
        [standby] = [number for number in cluster.addresses if number != leader]
        until(lambda: cluster.status_of(standby) != 0, "the standby answers")
        forged = {"rota-origin": f"203.0.113.9 {'0' * 64}", "rota-forwarded": "1"}
        for number, source, token, headers in (
            (standby, "127.0.0.2", cluster.token, {}),
            (standby, "127.0.0.3", "rota_wrong", {}),
            (leader, "127.0.0.4", cluster.token, forged),
        ):
            host, _, port = cluster.addresses[number].http.rpartition(":")
            with contextlib.closing(
                HTTPConnection(host, int(port), timeout=60, source_address=(source, 0))
            ) as connection:
                body = json.dumps({"name": f"of-{source}", "role": "viewer"})
                connection.request(
                    "POST", "/v1/tokens", body, {"authorization": f"Bearer {token}", **headers}
                )
                connection.getresponse().read()
        log = tmp_path / "cluster" / f"server-{leader}" / "audit.log"
        lines = [json.loads(line) for line in log.read_text().splitlines()]

    found = {(line["from"], line["outcome"]) for line in lines if line["action"] in ("make_token", "POST")}
    assert found == {("127.0.0.2", "201"), ("127.0.0.3", "401 unauthenticated"), ("127.0.0.4", "201")}


def test_a_refusal_at_a_watchers_port_is_in_the_leaders_audit_log(tmp_path: Path) -> None:
    """The entry has the address of the caller and a count, as a refused agent retries."""
    with LocalCluster(tmp_path, nodes=1) as cluster:
        address = cluster.start_watcher(1)
        identity = load_identity(cluster.node_directory(1))
        assert identity is not None
        cluster.kill_agent(1)  # it would be refused as well
        assert cluster.rota("node", "revoke", "node-1").code == 0
        credentials = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)
        options = [("grpc.ssl_target_name_override", "rota-server")]
        with grpc.secure_channel(address, credentials, options=options) as channel:
            connect: Any = channel.stream_stream("/rota.v1.Agent/Connect")
            hello = agent_pb2.FromNode(n=1, hello=agent_pb2.Hello()).SerializeToString()
            codes = [refused_with(connect, hello) for _ in range(50)]
        lines = [line for line in audited(cluster) if line["action"] == "call as a node"]

    assert set(codes) == {"PERMISSION_DENIED"}
    assert {line["outcome"] for line in lines} == {"permission_denied"}
    assert all(line["from"].startswith(("ipv4:127.0.0.1:", "ipv6:")) for line in lines)
    assert 1 <= len(lines) <= 3  # of one address: one, and one more for each interval


def refused_with(connect: Any, hello: bytes) -> str:
    is_over = threading.Event()

    def words() -> Iterator[bytes]:
        yield hello
        is_over.wait()  # the stream stays open: an agent that disconnects is not refused

    with pytest.raises(grpc.RpcError) as refused:
        list(connect(words()))
    is_over.set()
    return str(refused.value.code().name)
