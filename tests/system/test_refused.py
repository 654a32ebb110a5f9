"""Callers that are refused at each of the three ports, and the reasons they see."""

import asyncio
import signal
import socket
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from rota.agent.dial import SERVER_NAME, diagnose
from rota.identity.authority import CertificateAuthority
from rota.identity.node_identity import NodeIdentity, make_request, store_identity
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wire.generated import agent_pb2, agent_pb2_grpc, controller_pb2, controller_pb2_grpc

pytestmark = pytest.mark.system
ODD_WORDS = (
    "GOAWAY",
    "TaskGroup",
    "Cancelling all calls",
    "Socket closed",
)  # of libraries, not for operators


@pytest.mark.parametrize("header", ["", "Bearer ", "Bearer rota_wrong", "Basic cm90YTpyb3Rh"])
def test_http_without_a_valid_token_is_401(shared: LocalCluster, header: str) -> None:
    answer = shared.call("POST", "/v1/jobs", {"command": ["true"]}, authorization=header)

    assert (answer.status, answer.body["code"]) == (401, "unauthenticated")
    assert "token" in answer.body["detail"]


def test_the_command_line_says_that_a_token_is_wrong(shared: LocalCluster) -> None:
    ran = shared.rota("ls", ROTA_TOKEN="rota_wrong")

    assert (ran.code, ran.out) == (5, "")
    assert "error: unauthenticated:" in ran.err


@pytest.mark.parametrize("header", [(), (("authorization", "Bearer rota_wrong"),)])
def test_a_controller_without_a_valid_token_is_refused(
    shared: LocalCluster, header: tuple[tuple[str, str], ...]
) -> None:
    with grpc.insecure_channel(shared.grpc) as channel:
        stub = controller_pb2_grpc.ControllerStub(channel)  # type: ignore[no-untyped-call]  # generated
        with pytest.raises(grpc.RpcError) as refused:
            stub.Stop(controller_pb2.StopRequest(job="1"), metadata=header, timeout=60)

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "token" in (refused.value.details() or "")


def test_an_agent_without_a_certificate_is_refused(shared: LocalCluster) -> None:
    assert knock(shared, None) == "refused"


def test_an_agent_with_a_certificate_of_another_ca_is_refused(shared: LocalCluster, tmp_path: Path) -> None:
    other = CertificateAuthority.open(tmp_path / "ca", datetime.now(UTC))
    certificate = other.sign_node(make_request(tmp_path), "n1", "node-1", datetime.now(UTC))
    (tmp_path / "both.pem").write_bytes(certificate + (tmp_path / "node.key").read_bytes())

    assert knock(shared, tmp_path / "both.pem") == "refused"
    identity = NodeIdentity("n1", (tmp_path / "node.key").read_bytes(), certificate, ca_of(shared).encode())
    reason = "does not accept this node's certificate"
    until(lambda: reason in asyncio.run(diagnose(shared.agent, identity)), "why is told")


def test_an_agent_with_a_valid_certificate_is_accepted(shared: LocalCluster, tmp_path: Path) -> None:
    del tmp_path

    assert knock(shared, shared.node_directory(1) / "node.pem") == "let in"


def test_a_plain_text_agent_is_refused(shared: LocalCluster) -> None:
    with grpc.insecure_channel(shared.agent) as channel:
        stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
        with pytest.raises(grpc.RpcError) as refused:
            stub.Renew(agent_pb2.RenewRequest(), timeout=60)

    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_an_agent_of_another_cluster_says_why_it_is_not_connected(
    shared: LocalCluster, tmp_path: Path
) -> None:
    stranger = shared.directory / "node-stranger"
    other = CertificateAuthority.open(tmp_path / "ca", datetime.now(UTC))
    request = make_request(stranger)
    store_identity(stranger, other.sign_node(request, "n1", "node-1", datetime.now(UTC)), other.ca_pem)
    (stranger / "server").write_text(shared.agent + "\n")

    agent = shared.start_rota("agent", "--data-dir", str(stranger), "--run-as", "self")

    assert agent.stderr is not None
    # It retries; on a busy machine the first reason may be a timeout.
    line = next(line for line in agent.stderr if b"no answer" not in line)
    assert b"not connected" in line
    assert b"CERTIFICATE_VERIFY_FAILED" in line


def test_a_join_token_is_valid_once(shared: LocalCluster) -> None:
    line = shared.join_line()
    first, second = (shared.directory / f"node-{which}" for which in ("first", "second"))
    agent = shared.start_rota("agent", "--data-dir", str(first), "--join", line, "--run-as", "self")
    assert agent.stderr is not None
    assert b"connected" in agent.stderr.readline()
    agent.send_signal(signal.SIGINT)
    assert agent.wait(60) == 0

    ran = shared.rota("agent", "--data-dir", str(second), "--join", line, "--run-as", "self")

    assert ran.code == 5
    assert "error: not_allowed: join token was already used" in ran.err


def test_an_expired_join_token_is_refused(shared: LocalCluster) -> None:
    line = shared.join_line(valid_seconds=1)
    expired_at = time.monotonic() + 1
    until(lambda: time.monotonic() > expired_at, "its time is over")

    ran = shared.rota("agent", "--data-dir", str(shared.directory / "node-late"), "--join", line)

    assert ran.code == 5
    assert "expired" in ran.err


def test_an_agent_without_a_join_line_says_how_to_get_one(shared: LocalCluster) -> None:
    ran = shared.rota("agent", "--data-dir", str(shared.directory / "node-new"))

    assert ran.code == 2
    assert "rota node token" in ran.err


def test_an_agent_of_a_deleted_node_is_refused(cluster: LocalCluster) -> None:
    assert cluster.kill_agent(2, signal.SIGINT) == 0
    until(lambda: cluster.node(2)["state"] == "left", "it has left")
    assert cluster.rota("node", "delete", "node-2").code == 0

    cluster.start_agent(2)

    until(lambda: "is not known here: join it again" in cluster.agent_log(2), "the reason is told")
    names = {node["name"] for node in cluster.call("GET", "/v1/nodes").body["nodes"]}
    assert names == {"node-1", "node-3"}


def test_an_agent_that_joins_again_says_why(cluster: LocalCluster) -> None:
    line = cluster.join_line()
    directory = cluster.directory / "node-again"
    given = ("agent", "--data-dir", str(directory), "--join", line, "--run-as", "self", "--name", "again")
    agent = cluster.start_rota(*given)
    assert agent.stderr is not None
    assert b"connected" in agent.stderr.readline()
    agent.send_signal(signal.SIGINT)
    assert agent.wait(60) == 0
    until(lambda: cluster.rota("node", "delete", "again").code == 0, "it has left and is deleted")

    ran = cluster.rota(*given)

    assert ran.code == 5
    assert "joining again" in ran.err
    assert "is not known here" in ran.err
    assert "join token was already used" in ran.err
    assert "TaskGroup" not in ran.err


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_whose_server_ends_says_that_the_connection_was_closed(
    cluster: LocalCluster, signum: signal.Signals
) -> None:
    job = cluster.submit("sh", "-c", "while :; do echo; sleep 0.05; done")
    until(lambda: cluster.count(job, "running") == 1, "it runs")
    following = cluster.start_rota("logs", "-f", job)
    assert following.stdout is not None
    following.stdout.read(1)

    cluster.signal_server(signum)

    until(lambda: all("closed the connection" in log for log in logs_of(cluster)), "each agent says so")
    assert not [log for log in logs_of(cluster) for word in ODD_WORDS if word in log]


def logs_of(cluster: LocalCluster) -> list[str]:
    return [cluster.agent_log(number) for number in cluster.numbers]


def knock(cluster: LocalCluster, certificate: Path | None) -> str:
    """How a connection to the agent port ends."""
    context = ssl.create_default_context(cadata=ca_of(cluster))
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate)
    host, _, port = cluster.agent.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=SERVER_NAME) as secure,
    ):
        try:
            # With TLS 1.3 the verdict comes with the first bytes, or as an end without any.
            return "let in" if secure.recv(1) else "refused"
        except (ssl.SSLError, ConnectionError):
            return "refused"


def ca_of(cluster: LocalCluster) -> str:
    return str(cluster.call("GET", "/v1/ca").body["ca"])
