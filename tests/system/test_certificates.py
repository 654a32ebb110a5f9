"""Certificates that live for seconds: servers and nodes renew them, and nodes keep their identity."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from rota.agent import dial
from rota.identity import authority, certificates
from rota.identity.authority import CertificateAuthority
from rota.identity.node_identity import NodeIdentity, Renewal, load_identity, replace_identity
from rota.testing.cluster import LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from rota.wire.generated import agent_pb2, agent_pb2_grpc
from tests.contracts.processes import ROOT, SOURCE
from tests.machine import needs
from tests.system.test_clock_jumps import WallClock, with_wall_clock
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system
SHORT = "tests.system.short_lives"
LIVES = 4
DAY, MONTH_SECONDS = timedelta(days=1), 30 * 86400
LONG_SECONDS = 600  # on a busy machine processes take long to start


class ShortLived(LocalCluster):
    """One node; its certificates and those of its server live for `server` and `node` seconds."""

    def __init__(
        self, directory: Path, server: int = 3600, node: int = 3600, lost: int = LONG_SECONDS
    ) -> None:
        lifetimes = {"SERVER_LIFE": str(server), "NODE_LIFE": str(node), "ROTA_LOST_SECONDS": str(lost)}
        super().__init__(directory, nodes=1, settings={**lifetimes, "PYTHONPATH": f"{SOURCE}:{ROOT}"})

    def _command(self, *arguments: str | bytes) -> list[str | bytes]:
        return [SHORT if part == "rota.cli.main" else part for part in super()._command(*arguments)]

    @property
    def server_log(self) -> str:
        return (self.directory / "server.log").read_text()

    @property
    def identity(self) -> NodeIdentity:
        identity = load_identity(self.node_directory(1))
        assert identity is not None
        return identity

    def wait_until_expired(self) -> None:
        until(lambda: datetime.now(UTC) > self.identity.period.end, "its certificate has expired")

    def events(self) -> set[str]:
        return {event["kind"] for event in self.call("GET", "/v1/events?limit=1000").body["events"]}


@pytest.fixture
def quick_node(tmp_path: Path) -> Iterator[ShortLived]:
    """A node is lost after a second, and its certificate lives for four."""
    with ShortLived(tmp_path, node=4, lost=1) as running:
        yield running


def test_a_server_renews_its_certificate_while_nodes_reconnect(
    tmp_path: Path, witness: Witness, gate: Gate
) -> None:
    with ShortLived(tmp_path / "cluster", server=4, node=4) as cluster:
        node = cluster.node(1)["id"]
        job = cluster.submit(*witness.script(gate.wait))
        until(
            lambda: cluster.server_log.count("server certificate renewed") >= LIVES, "the server goes on", 120
        )
        calls = cluster.agent_log(1).count("certificate renewed")
        until(lambda: cluster.agent_log(1).count("certificate renewed") > calls + 1, "the node calls again")
        until(lambda: cluster.node(1)["state"] == "ready", "it is ready, once it has called again")
        events = cluster.events()
        gate.open()
        until(lambda: cluster.count(job, "succeeded") == 1, "it ends by itself")

        assert cluster.node(1)["id"] == node
        assert witness.starts() == {0: 1}
        assert "node.lost" not in events
        assert "not connected" not in cluster.agent_log(1)


def test_a_node_whose_server_was_down_beyond_its_certificate_returns_with_its_work(
    tmp_path: Path, witness: Witness, gate: Gate
) -> None:
    with ShortLived(tmp_path / "cluster", node=4) as cluster:
        node, keys = cluster.node(1)["id"], cluster.identity.key_pem
        job = cluster.submit(*witness.script(gate.wait))
        witness.wait_for(1)
        cluster.kill_server()
        cluster.wait_until_expired()
        cluster.start_server()
        until(lambda: cluster.node(1)["state"] == "ready", "the node is back")
        gate.open()
        until(lambda: cluster.count(job, "succeeded") == 1, "its work is known")

        assert cluster.node(1)["id"] == node
        assert cluster.identity.key_pem != keys
        assert witness.starts() == {0: 1}


def test_a_node_that_was_off_beyond_its_certificate_returns_with_its_work(
    tmp_path: Path, witness: Witness, gate: Gate
) -> None:
    with ShortLived(tmp_path / "cluster", node=4) as cluster:
        node = cluster.node(1)["id"]
        job = cluster.submit(*witness.script(gate.wait))
        # An attempt not yet reported when the agent dies is placed again; a reported one is not.
        until(lambda: cluster.count(job, "running") == 1, "the server knows that it runs")
        cluster.kill_agent(1)
        cluster.wait_until_expired()
        cluster.start_agent(1)
        until(lambda: cluster.node(1)["state"] == "ready", "the node is back")
        gate.open()
        until(lambda: cluster.count(job, "succeeded") == 1, "its work is known")

        assert [one["id"] for one in cluster.call("GET", "/v1/nodes").body["nodes"]] == [node]
        assert witness.starts() == {0: 1}


def test_an_old_key_does_not_outlive_its_certificate_once_there_is_a_newer_one(
    quick_node: ShortLived,
) -> None:
    old = quick_node.identity
    old_ms = old.period.end.timestamp() * 1000
    until(lambda: quick_node.node(1)["certificate_expires_at_ms"] > old_ms, "it came with a newer one")
    until(lambda: datetime.now(UTC) > old.period.end, "the old one has expired")

    with pytest.raises(grpc.RpcError) as refused:
        renew(quick_node, old, Renewal(old).request)

    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "has used a newer certificate" in (refused.value.details() or "")


def test_a_task_placed_while_its_node_renews_is_started_once(tmp_path: Path) -> None:
    """A renewal about every second; a job is submitted as soon as the one before it has begun."""
    ran = tmp_path / "ran"
    ran.touch()
    jobs: list[str] = []
    with ShortLived(tmp_path / "cluster", node=2) as cluster:
        while cluster.agent_log(1).count("certificate renewed") < 10:
            jobs.append(cluster.submit("sh", "-c", f"echo $ROTA_JOB_ID >> {ran}; sleep 0.1"))
            until(lambda: jobs[-1] in ran.read_text().split(), "it has begun")
        until(lambda: cluster.count(jobs[-1], "succeeded") == 1, "the last one has ended")

        assert ran.read_text().split() == jobs


def test_a_log_followed_while_its_node_reconnects_is_complete(tmp_path: Path) -> None:
    with ShortLived(tmp_path / "cluster", node=4) as cluster:
        before = cluster.identity.cert_pem
        script = "for i in $(seq 40); do echo line $i; sleep 0.3; done"
        ran = cluster.rota("run", "--quiet", "--no-workdir", "--", "sh", "-c", script)

        assert ran.out.splitlines() == [f"line {number}" for number in range(1, 41)]
        assert cluster.identity.cert_pem != before


def test_an_expired_certificate_of_a_deleted_node_is_refused(quick_node: ShortLived) -> None:
    quick_node.kill_agent(1)
    quick_node.wait_until_expired()
    until(lambda: quick_node.node(1)["state"] == "lost", "it is lost")
    assert quick_node.call("DELETE", "/v1/nodes/node-1").status == 204
    directory = str(quick_node.node_directory(1))

    ended = quick_node.rota("agent", "--data-dir", directory, "--name", "node-1", "--run-as", "self")

    assert ended.code != 0
    assert "is not known here: join it again" in ended.err
    assert "rota node token" in ended.err


def test_a_certificate_that_expired_too_long_ago_is_refused_with_the_remedy(
    quick_node: ShortLived, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_node.kill_agent(1)
    monkeypatch.setattr(authority, "NODE_LIFE", timedelta(seconds=1))
    renewal, now = Renewal(quick_node.identity), datetime.now(UTC)
    signer = CertificateAuthority.open(quick_node.directory / "server" / "ca", now, timedelta(0))
    certificate = signer.sign_node(renewal.request, quick_node.identity.node_id, "node-1", now)
    replace_identity(quick_node.node_directory(1), renewal.accept(certificate, now))
    until(lambda: datetime.now(UTC) > quick_node.identity.renewable_until, "it can no longer be renewed")
    directory = str(quick_node.node_directory(1))

    ended = quick_node.rota("agent", "--data-dir", directory, "--name", "node-1", "--run-as", "self")

    assert ended.code != 0
    assert "could be renewed until" in ended.err
    assert "rota node token" in ended.err


def test_a_shortened_renewal_window_applies_immediately(quick_node: ShortLived) -> None:
    quick_node.kill_server()
    quick_node.kill_agent(1)
    quick_node.wait_until_expired()
    quick_node.environment["ROTA_CERTIFICATES_RENEWAL_WINDOW"] = "0"
    quick_node.start_server()

    with pytest.raises(grpc.RpcError) as refused:
        renew(quick_node, quick_node.identity, Renewal(quick_node.identity).request)

    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "could be renewed until" in (refused.value.details() or "")


def test_an_expired_certificate_is_valid_for_renewal_only_and_with_its_key_only(
    quick_node: ShortLived,
) -> None:
    quick_node.kill_agent(1)
    quick_node.wait_until_expired()
    identity = quick_node.identity
    other_key = certificates.key_to_pem(certificates.new_key())
    forged_identity = NodeIdentity(identity.node_id, other_key, identity.cert_pem, identity.ca_pem)
    with agent_stub(quick_node, identity) as stub, pytest.raises(grpc.RpcError) as working:
        stub.KeepTails(agent_pb2.Tails(), timeout=60)
    with pytest.raises(grpc.RpcError) as odd:
        renew(quick_node, identity, b"rubbish")
    with pytest.raises(grpc.RpcError) as forged:
        renew(quick_node, forged_identity, Renewal(identity).request)
    renewed = renew(quick_node, identity, Renewal(identity).request)

    assert working.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "expired on" in (working.value.details() or "")
    assert odd.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert forged.value.code() is grpc.StatusCode.UNAVAILABLE
    assert renewed.ca == identity.ca_pem


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"rubbish",
        bytes(range(256)),
        b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        b"x" * 20_000,
    ],
)
def test_an_invalid_signing_request_is_refused_with_a_reason(shared: LocalCluster, garbage: bytes) -> None:
    identity = load_identity(shared.node_directory(1))
    assert identity is not None
    with pytest.raises(grpc.RpcError) as refused:
        renew(shared, identity, garbage)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (refused.value.details() or "").startswith("csr: expected ")


def renew(cluster: LocalCluster, identity: NodeIdentity, request: bytes) -> agent_pb2.RenewReply:
    with agent_stub(cluster, identity) as stub:
        reply: agent_pb2.RenewReply = stub.Renew(agent_pb2.RenewRequest(csr=request), timeout=60)
    return reply


@contextmanager
def agent_stub(cluster: LocalCluster, identity: NodeIdentity) -> Iterator[agent_pb2_grpc.AgentStub]:
    """A client that calls as the agent does."""
    credentials = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)
    options = [("grpc.ssl_target_name_override", dial.SERVER_NAME)]
    with grpc.secure_channel(cluster.agent, credentials, options) as channel:
        yield agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated


def test_a_clock_that_was_a_month_ahead_locks_no_node_out(
    tmp_path: Path, witness: Witness, gate: Gate
) -> None:
    """Both clocks jump, as on one machine: certificates signed meanwhile have wrong dates afterwards."""
    server_clock, node_clock = WallClock(tmp_path / "server-clock"), WallClock(tmp_path / "node-clock")
    cluster = ShortLived(tmp_path / "cluster", server=30 * 86400, node=86400)
    cluster.environment |= with_wall_clock(tmp_path, server_clock)
    try:
        cluster.start_server()
        cluster.start_agent(1, WALL_CLOCK=str(node_clock.path))
        cluster.wait_for_nodes()
        node = cluster.node(1)["id"]
        job = cluster.submit(*witness.script(gate.wait))
        witness.wait_for(1)
        for clock in (server_clock, node_clock):
            clock.set_ahead(MONTH_SECONDS)
        until(
            lambda: cluster.identity.period.begin > datetime.now(UTC) + DAY, "it has one of the future", 120
        )
        for clock in (server_clock, node_clock):
            clock.set_ahead(0)
        until(lambda: cluster.identity.period.begin < datetime.now(UTC) + DAY, "it has one of now", 120)
        until(lambda: cluster.node(1)["state"] == "ready", "the node is back")
        gate.open()
        until(lambda: cluster.count(job, "succeeded") == 1, "it ends by itself")

        assert cluster.node(1)["id"] == node
        assert witness.starts() == {0: 1}
    finally:
        cluster.close()


class ShortElected(ElectedCluster):
    """Several servers on etcd, and one node; their certificates live for four seconds."""

    def __init__(self, directory: Path, etcd: LocalEtcd) -> None:
        super().__init__(directory, etcd, servers=2, nodes=1)
        self.environment |= {"SERVER_LIFE": "4", "NODE_LIFE": "4", "PYTHONPATH": f"{SOURCE}:{ROOT}"}
        self.environment["ROTA_LOST_SECONDS"] = str(LONG_SECONDS)

    def _command(self, *arguments: str | bytes) -> list[str | bytes]:
        return [SHORT if part == "rota.cli.main" else part for part in super()._command(*arguments)]

    def renewals(self, number: int) -> int:
        return self.log(number).count("server certificate renewed")


@needs("etcd")
@pytest.mark.timeout(600)
def test_servers_on_etcd_and_standbys_renew_their_certificates(
    tmp_path: Path, witness: Witness, gate: Gate
) -> None:
    with LocalEtcd(tmp_path / "etcd") as etcd, ShortElected(tmp_path / "cluster", etcd) as cluster:
        node = cluster.node(1)["id"]
        job = cluster.submit(*witness.script(gate.wait))
        witness.wait_for(1)
        leader = cluster.wait_for_leader()
        for number in cluster.addresses:
            until(lambda number=number: cluster.renewals(number) >= LIVES, "each server renews", 120)  # type: ignore[misc]
        cluster.kill(leader)
        second = cluster.wait_for_leader(other_than=leader)
        before = cluster.renewals(second)
        until(lambda: cluster.renewals(second) >= before + LIVES, "the next one renews", 120)
        until(lambda: cluster.node(1)["state"] == "ready", "the node has followed")
        gate.open()
        until(lambda: cluster.count(job, "succeeded") == 1, "it ends by itself")

        assert cluster.node(1)["id"] == node
        assert witness.starts() == {0: 1}
