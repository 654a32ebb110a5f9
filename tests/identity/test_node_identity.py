"""The node's side: the key stays, the certificate must fit it, and the CA must be the one named."""

import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from rota.identity.authority import Authority
from rota.identity.errors import Refused, Unsafe
from rota.identity.node_identity import check_fingerprint, load_identity, make_request, store_identity


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


def join(node: Path, authority: Authority, now: datetime, node_id: str = "n-17") -> None:
    cert_pem = authority.sign_node(make_request(node), node_id, "laptop", now)
    store_identity(node, cert_pem, authority.ca_pem)


def test_a_node_that_has_not_joined_has_no_identity(node: Path) -> None:
    assert load_identity(node) is None
    make_request(node)
    assert load_identity(node) is None


def test_an_identity_survives_a_restart(node: Path, authority: Authority, now: datetime) -> None:
    join(node, authority, now)

    identity = load_identity(node)

    assert identity is not None
    assert identity.node_id == "n-17"
    assert identity.ca_pem == authority.ca_pem
    assert identity.expires_at == now + timedelta(hours=24)
    assert abs(identity.renew_after - (now + timedelta(hours=12))) < timedelta(minutes=5)


def test_key_and_certificate_are_private(node: Path, authority: Authority, now: datetime) -> None:
    join(node, authority, now)

    assert stat.S_IMODE(node.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in node.iterdir()} == {0o600}


def test_renewal_keeps_the_key_and_replaces_the_certificate(
    node: Path, authority: Authority, now: datetime
) -> None:
    join(node, authority, now - timedelta(hours=12))
    old = load_identity(node)
    join(node, authority, now)
    new = load_identity(node)

    assert old is not None
    assert new is not None
    assert new.key_pem == old.key_pem
    assert new.expires_at - old.expires_at == timedelta(hours=12)


def test_a_request_does_not_contain_the_private_key(node: Path) -> None:
    request = make_request(node)

    assert b"PRIVATE" not in request
    assert not list(x509.load_pem_x509_csr(request).subject)


def test_a_certificate_for_another_key_is_refused(
    node: Path, tmp_path: Path, authority: Authority, now: datetime
) -> None:
    join(node, authority, now)
    foreign = authority.sign_node(make_request(tmp_path / "other"), "n-18", "desk", now)

    with pytest.raises(Refused, match="another key"):
        store_identity(node, foreign, authority.ca_pem)
    kept = load_identity(node)
    assert kept is not None
    assert kept.node_id == "n-17"


def test_a_certificate_of_another_ca_is_refused(
    node: Path, tmp_path: Path, authority: Authority, now: datetime
) -> None:
    other = Authority.open(tmp_path / "other-ca", now)
    cert_pem = other.sign_node(make_request(node), "n-17", "laptop", now)

    with pytest.raises(Refused, match="not signed by the CA"):
        store_identity(node, cert_pem, authority.ca_pem)


def test_a_damaged_certificate_file_is_refused_with_the_way_out(
    node: Path, authority: Authority, now: datetime
) -> None:
    join(node, authority, now)
    path = node / "node.pem"
    path.write_bytes(path.read_bytes()[:-200])

    with pytest.raises(Unsafe, match="remove it and join again"):
        load_identity(node)


def test_a_lost_or_damaged_key_is_refused_with_the_way_out(
    node: Path, authority: Authority, now: datetime
) -> None:
    join(node, authority, now)
    (node / "node.key").write_bytes(b"rubbish")
    with pytest.raises(Unsafe, match="is not a key"):
        load_identity(node)
    (node / "node.key").unlink()
    with pytest.raises(Unsafe, match="is missing"):
        load_identity(node)


def test_a_key_that_others_can_read_is_refused(node: Path, authority: Authority, now: datetime) -> None:
    join(node, authority, now)
    (node / "node.key").chmod(0o644)

    with pytest.raises(Unsafe, match="chmod 600"):
        load_identity(node)


def test_the_named_ca_is_known_by_its_fingerprint(
    tmp_path: Path, authority: Authority, now: datetime
) -> None:
    other = Authority.open(tmp_path / "other-ca", now)

    assert check_fingerprint(authority.ca_pem, authority.fingerprint)
    assert check_fingerprint(authority.ca_pem, authority.fingerprint.upper().replace("SHA256", "sha256"))
    assert not check_fingerprint(other.ca_pem, authority.fingerprint)
    assert not check_fingerprint(authority.ca_pem, "")
    assert not check_fingerprint(b"rubbish", authority.fingerprint)


def test_a_second_ca_smuggled_in_behind_the_named_one_is_noticed(
    tmp_path: Path, authority: Authority, now: datetime
) -> None:
    other = Authority.open(tmp_path / "other-ca", now)

    assert not check_fingerprint(authority.ca_pem + other.ca_pem, authority.fingerprint)
    assert not check_fingerprint(other.ca_pem + authority.ca_pem, authority.fingerprint)
