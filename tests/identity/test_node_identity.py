"""The node's side: the key stays, the certificate must fit it, and the CA must be the one named."""

import os
import signal
import stat
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from rota.identity import files
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import IdentityRefused, Unsafe
from rota.identity.node_identity import (
    Renewal,
    check_fingerprint,
    load_identity,
    make_request,
    replace_identity,
    store_identity,
)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


def join(node: Path, authority: CertificateAuthority, now: datetime, node_id: str = "n-17") -> None:
    cert_pem = authority.sign_node(make_request(node), node_id, "laptop", now)
    store_identity(node, cert_pem, authority.ca_pem)


def test_a_node_that_has_not_joined_has_no_identity(node: Path) -> None:
    assert load_identity(node) is None
    make_request(node)
    assert load_identity(node) is None


def test_an_identity_survives_a_restart(node: Path, authority: CertificateAuthority, now: datetime) -> None:
    join(node, authority, now)

    identity = load_identity(node)

    assert identity is not None
    assert identity.node_id == "n-17"
    assert identity.ca_pem == authority.ca_pem
    assert identity.period.end == now + timedelta(hours=24)
    assert identity.period.renew_after(0.0) == now + timedelta(hours=12)
    assert identity.renewable_until == now + timedelta(hours=24) + timedelta(days=90)


def test_key_and_certificate_are_private(node: Path, authority: CertificateAuthority, now: datetime) -> None:
    join(node, authority, now)

    assert stat.S_IMODE(node.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in node.iterdir()} == {0o600}


def test_renewal_replaces_key_and_certificate_together(
    node: Path, authority: CertificateAuthority, now: datetime
) -> None:
    join(node, authority, now - timedelta(hours=12))
    old = load_identity(node)
    assert old is not None
    renewal = Renewal(old)
    before = load_identity(node)

    renewed = renewal.accept(authority.sign_node(renewal.request, "n-17", "laptop", now), now)
    replace_identity(node, renewed)
    new = load_identity(node)

    assert before == old, "until the new one is stored the old one is there"
    assert new == renewed
    assert new is not None
    assert (new.node_id, new.ca_pem) == (old.node_id, old.ca_pem)
    assert new.key_pem != old.key_pem
    assert new.period.end - old.period.end == timedelta(hours=12)
    assert [path.name for path in node.iterdir() if not path.name.startswith(".")] == ["node.pem"]


def test_a_renewal_that_is_not_for_this_node_and_now_changes_nothing(
    node: Path, tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    join(node, authority, now)
    held = load_identity(node)
    assert held is not None
    renewal, other = Renewal(held), CertificateAuthority.open(tmp_path / "other-ca", now)
    year = timedelta(days=365)
    refused = {
        "is for node n-18": authority.sign_node(renewal.request, "n-18", "desk", now),
        "not signed by the CA": other.sign_node(renewal.request, "n-17", "laptop", now),
        "another key": authority.sign_node(Renewal(held).request, "n-17", "laptop", now),
        "clock and this node's differ": authority.sign_node(renewal.request, "n-17", "laptop", now + year),
        "the server's clock": authority.sign_node(renewal.request, "n-17", "laptop", now - year),
    }

    for reason, cert_pem in refused.items():
        with pytest.raises(IdentityRefused, match=reason):
            renewal.accept(cert_pem, now)
    assert load_identity(node) == held


CRASHES = ("os.open", "os.fsync", "os.replace", "pathlib.Path.unlink")


@pytest.mark.parametrize("crashes_at", CRASHES)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_of_a_renewal_leaves_an_identity_that_can_be_used(
    node: Path, authority: CertificateAuthority, now: datetime, crashes_at: str, *, after: bool
) -> None:
    """A child process is killed before or after each call that changes the disk."""
    join(node, authority, now - timedelta(hours=12))
    old = load_identity(node)
    assert old is not None
    renewal = Renewal(old)
    renewed = renewal.accept(authority.sign_node(renewal.request, "n-17", "laptop", now), now)
    child = os.fork()
    if child == 0:
        _die_at(crashes_at, after=after)
        replace_identity(node, renewed)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    found = load_identity(node)

    assert os.WTERMSIG(status) == signal.SIGKILL, "it has come to that call"
    assert found in (old, renewed)
    replace_identity(node, renewed)
    assert load_identity(node) == renewed
    assert not list(node.glob(".node.*.new")), "no key is left behind"


def _die_at(name: str, *, after: bool) -> None:
    owner, _, function = name.rpartition(".")
    module = Path if owner == "pathlib.Path" else os
    real = getattr(module, function)

    def dies(*arguments: Any, **named: Any) -> Any:
        if after:
            real(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, function, dies)


def test_renewals_of_nodes_that_joined_together_are_spread(
    node: Path, authority: CertificateAuthority, now: datetime
) -> None:
    join(node, authority, now)
    identity = load_identity(node)
    assert identity is not None
    period = identity.period

    assert period.renew_after(0.0) == period.begin + period.life / 2
    assert period.renew_after(1.0) - period.renew_after(0.0) > period.life / 20


def test_an_identity_of_an_earlier_release_with_its_key_beside_it_is_read(
    node: Path, authority: CertificateAuthority, now: datetime
) -> None:
    join(node, authority, now)
    identity = load_identity(node)
    assert identity is not None
    (node / "node.pem").write_bytes(identity.cert_pem + identity.ca_pem)
    files.write_private(node / "node.key", identity.key_pem)

    assert load_identity(node) == identity


def test_a_request_does_not_contain_the_private_key(node: Path) -> None:
    request = make_request(node)

    assert b"PRIVATE" not in request
    assert not list(x509.load_pem_x509_csr(request).subject)


def test_a_certificate_for_another_key_is_refused(
    node: Path, tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    join(node, authority, now)
    make_request(node)
    foreign = authority.sign_node(make_request(tmp_path / "other"), "n-18", "desk", now)

    with pytest.raises(IdentityRefused, match="another key"):
        store_identity(node, foreign, authority.ca_pem)
    kept = load_identity(node)
    assert kept is not None
    assert kept.node_id == "n-17"


def test_a_certificate_of_another_ca_is_refused(
    node: Path, tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    other = CertificateAuthority.open(tmp_path / "other-ca", now)
    cert_pem = other.sign_node(make_request(node), "n-17", "laptop", now)

    with pytest.raises(IdentityRefused, match="not signed by the CA"):
        store_identity(node, cert_pem, authority.ca_pem)


def test_a_damaged_certificate_file_is_refused_with_a_remedy(
    node: Path, authority: CertificateAuthority, now: datetime
) -> None:
    join(node, authority, now)
    path = node / "node.pem"
    whole = path.read_bytes()

    for damaged in (whole[:-100], whole[: len(whole) // 2], b"rubbish"):
        path.write_bytes(damaged)
        with pytest.raises(Unsafe, match="remove it and join again"):
            load_identity(node)


def test_a_lost_or_damaged_key_is_refused_with_a_remedy(
    node: Path, authority: CertificateAuthority, now: datetime
) -> None:
    cert_pem = authority.sign_node(make_request(node), "n-17", "laptop", now)
    (node / "node.key").write_bytes(b"rubbish")
    with pytest.raises(Unsafe, match="is not a key"):
        store_identity(node, cert_pem, authority.ca_pem)
    (node / "node.key").unlink()
    with pytest.raises(Unsafe, match="is missing"):
        store_identity(node, cert_pem, authority.ca_pem)


def test_a_key_that_others_can_read_is_refused(
    node: Path, authority: CertificateAuthority, now: datetime
) -> None:
    join(node, authority, now)
    (node / "node.pem").chmod(0o644)

    with pytest.raises(Unsafe, match="chmod 600"):
        load_identity(node)


def test_the_named_ca_is_known_by_its_fingerprint(
    tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    other = CertificateAuthority.open(tmp_path / "other-ca", now)

    assert check_fingerprint(authority.ca_pem, authority.fingerprint)
    assert check_fingerprint(authority.ca_pem, authority.fingerprint.upper().replace("SHA256", "sha256"))
    assert not check_fingerprint(other.ca_pem, authority.fingerprint)
    assert not check_fingerprint(authority.ca_pem, "")
    assert not check_fingerprint(b"rubbish", authority.fingerprint)


def test_a_second_ca_smuggled_in_behind_the_named_one_is_noticed(
    tmp_path: Path, authority: CertificateAuthority, now: datetime
) -> None:
    other = CertificateAuthority.open(tmp_path / "other-ca", now)

    assert not check_fingerprint(authority.ca_pem + other.ca_pem, authority.fingerprint)
    assert not check_fingerprint(other.ca_pem + authority.ca_pem, authority.fingerprint)
