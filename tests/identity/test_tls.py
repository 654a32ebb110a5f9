"""The certificates at work: real handshakes, with OpenSSL in memory and with gRPC over loopback."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import grpc
import pytest

from rota.identity import certificates
from rota.identity.authority import SERVER_NAME, CertificateAuthority, KeyPair
from rota.identity.errors import IdentityRefused
from rota.identity.node_identity import NodeIdentity, make_request, store_identity
from tests.identity.handshake import shake


def joined(directory: Path, authority: CertificateAuthority, now: datetime) -> NodeIdentity:
    cert_pem = authority.sign_node(make_request(directory), "n-17", "laptop", now)
    return store_identity(directory, cert_pem, authority.ca_pem)


@pytest.fixture
def server(authority: CertificateAuthority, now: datetime) -> KeyPair:
    return authority.server_identity(["10.0.0.5"], now)


@pytest.fixture
def node(tmp_path: Path, authority: CertificateAuthority, now: datetime) -> NodeIdentity:
    return joined(tmp_path / "node", authority, now)


def test_a_joined_node_is_accepted_under_its_own_id(server: KeyPair, node: NodeIdentity) -> None:
    assert shake(server, node, ca_pem=node.ca_pem).peer_uri == "rota://node/n-17"


def test_every_name_and_address_of_the_server_is_accepted(server: KeyPair, node: NodeIdentity) -> None:
    for host in ("rota-server", "localhost", "127.0.0.1", "::1", "10.0.0.5"):
        assert shake(server, node, ca_pem=node.ca_pem, host=host).accepted, host


def test_a_server_under_a_foreign_name_is_refused(server: KeyPair, node: NodeIdentity) -> None:
    outcome = shake(server, node, ca_pem=node.ca_pem, host="elsewhere.example")

    assert "Hostname mismatch" in outcome.error


def test_a_node_without_a_certificate_is_refused(server: KeyPair) -> None:
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in shake(server, None, ca_pem=server.ca_pem).error


def test_a_node_of_another_cluster_is_refused(server: KeyPair, tmp_path: Path, now: datetime) -> None:
    stranger = joined(tmp_path / "stranger", CertificateAuthority.open(tmp_path / "other-ca", now), now)

    assert "CERTIFICATE_VERIFY_FAILED" in shake(server, stranger, ca_pem=server.ca_pem).error


def test_a_server_of_another_cluster_is_refused(node: NodeIdentity, tmp_path: Path, now: datetime) -> None:
    other = CertificateAuthority.open(tmp_path / "other-ca", now).server_identity([], now)

    assert "CERTIFICATE_VERIFY_FAILED" in shake(other, node, ca_pem=node.ca_pem).error


def test_a_node_certificate_that_cannot_be_renewed_any_more_is_refused(
    server: KeyPair, tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    late = joined(tmp_path / "late", authority, now - timedelta(days=92))

    assert "certificate has expired" in shake(server, late, ca_pem=server.ca_pem).error


def test_an_expired_node_certificate_proves_its_key_while_it_can_be_renewed(
    server: KeyPair, tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    late = joined(tmp_path / "late", authority, now - timedelta(days=90))

    assert late.period.end < now
    assert shake(server, late, ca_pem=server.ca_pem).accepted


def test_a_node_certificate_made_while_the_clock_was_ahead_is_accepted_when_it_is_back(
    server: KeyPair, tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    for ahead in (timedelta(hours=3), timedelta(days=365)):
        early = joined(tmp_path / f"early-{ahead.days}", authority, now + ahead)

        assert shake(server, early, ca_pem=server.ca_pem).accepted
        assert early.period.is_due(now, jitter=1.0), "it is replaced at once by one of now"


def test_a_server_whose_clock_is_ahead_is_accepted_within_the_skew(
    node: NodeIdentity, authority: CertificateAuthority, now: datetime
) -> None:
    slightly = authority.server_identity([], now + timedelta(hours=1))
    far = authority.server_identity([], now + timedelta(hours=3))

    assert shake(slightly, node, ca_pem=node.ca_pem).accepted
    assert "not yet valid" in shake(far, node, ca_pem=node.ca_pem).error
    assert far.period.is_due(now, jitter=1.0), "the server replaces it at its next look"


def test_a_node_cannot_pose_as_the_server(node: NodeIdentity) -> None:
    posing = KeyPair(node.key_pem, node.cert_pem, node.ca_pem)

    assert "CERTIFICATE_VERIFY_FAILED" in shake(posing, node, ca_pem=node.ca_pem).error


def test_a_server_certificate_is_valid_for_a_client_and_names_no_node(server: KeyPair) -> None:
    posing = NodeIdentity("n-17", server.key_pem, server.cert_pem, server.ca_pem)

    assert shake(server, posing, ca_pem=server.ca_pem).error == ""
    with pytest.raises(IdentityRefused, match="not a node's certificate"):
        certificates.node_id_of(server.cert_pem)


def test_grpc_accepts_a_joined_node_and_shows_its_id(server: KeyPair, node: NodeIdentity) -> None:
    with grpc_server(server) as port:
        assert ask(port, node) == b"rota://node/n-17"


def test_grpc_refuses_unknown_and_expired_certificates(
    server: KeyPair, tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    stranger = joined(tmp_path / "stranger", CertificateAuthority.open(tmp_path / "other-ca", now), now)
    trusting_stranger = NodeIdentity("n-17", stranger.key_pem, stranger.cert_pem, authority.ca_pem)
    late = joined(tmp_path / "late", authority, now - timedelta(days=92))

    with grpc_server(server) as port:
        for refused in (trusting_stranger, late):
            with pytest.raises(grpc.RpcError) as caught:
                ask(port, refused)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@contextmanager
def grpc_server(identity: KeyPair) -> Iterator[int]:
    """Answers every call with the names in the caller's certificate."""
    credentials = grpc.ssl_server_credentials(
        [(identity.key_pem, identity.cert_pem)], identity.ca_pem, require_client_auth=True
    )
    answer: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda _, context: b" ".join(context.peer_identities() or ())
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"who": answer})])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(grace=None).wait()


def ask(port: int, node: NodeIdentity) -> bytes:
    credentials = grpc.ssl_channel_credentials(node.ca_pem, node.key_pem, node.cert_pem)
    options = [("grpc.ssl_target_name_override", SERVER_NAME)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        who: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/who")
        return who(b"", timeout=60)
