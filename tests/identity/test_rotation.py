"""A rotation of the CA: what is trusted in each phase, by whom, and what a crash leaves."""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rota.identity import certificates, keyring
from rota.identity.authority import CertificateAuthority
from rota.identity.bundles import Bundle
from rota.identity.errors import IdentityRefused, NotRotating, Rotating, Unsafe
from rota.identity.node_identity import (
    NodeIdentity,
    Renewal,
    load_identity,
    make_request,
    replace_identity,
    store_identity,
    trusting,
)
from rota.identity.tokens import JoinedWatcher
from rota.identity.vault import Vault
from rota.identity.watcher_identity import WatcherRequest
from tests.identity.handshake import shake

OVERLAP = timedelta(days=91)


def joined(authority: CertificateAuthority, directory: Path, now: datetime) -> NodeIdentity:
    cert_pem = authority.sign_node(make_request(directory), "n-17", "laptop", now)
    return store_identity(directory, cert_pem, authority.bundle.pem)


def renewed(authority: CertificateAuthority, held: NodeIdentity, now: datetime) -> NodeIdentity:
    renewal = Renewal(held)
    certificate = authority.sign_node(renewal.request, held.node_id, "laptop", now)
    return renewal.accept(certificate, now, authority.bundle.pem)


def test_in_the_overlap_every_node_and_every_server_accept_each_other_whichever_ca_they_know(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    old_server, old_node = authority.server_identity([], now), joined(authority, tmp_path / "node", now)
    authority.rotate(now, OVERLAP)
    new_server, new_node = authority.server_identity([], now), renewed(authority, old_node, now)

    for server in (old_server, new_server):
        for node in (old_node, new_node):
            assert shake(server, node, ca_pem=node.ca_pem).accepted
    assert new_node.is_current


def test_after_the_end_a_certificate_of_the_old_ca_is_refused_and_one_of_the_new_is_not(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    old_server, old_node = authority.server_identity([], now), joined(authority, tmp_path / "node", now)
    authority.rotate(now, OVERLAP)
    new_node = renewed(authority, old_node, now)
    authority.finish(now)
    server = authority.server_identity([], now)
    last_node = renewed(authority, new_node, now)

    assert not shake(server, old_node, ca_pem=old_node.ca_pem).accepted
    assert shake(server, new_node, ca_pem=new_node.ca_pem).accepted
    assert not shake(old_server, last_node, ca_pem=last_node.ca_pem).accepted
    assert not authority.vouches_for(old_node.cert_pem)
    assert authority.is_retired(old_node.cert_pem)
    assert not authority.is_retired(new_node.cert_pem)


def test_a_client_that_knows_the_old_ca_alone_trusts_the_server_until_the_next_rotation_is_finished(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    known = authority.ca_pem

    def is_trusted() -> bool:
        node = joined(authority, tmp_path / "node", now)
        return shake(authority.server_identity([], now), node, ca_pem=known).accepted

    steps = [is_trusted()]
    for _ in range(2):
        authority.rotate(now, OVERLAP)
        steps.append(is_trusted())
        authority.finish(now)
        steps.append(is_trusted())

    assert steps == [True, True, True, True, False]


def test_after_a_replacement_nothing_signed_before_is_trusted(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    node, known = joined(authority, tmp_path / "node", now), authority.ca_pem
    sealed, secrets = authority.seals().seal("n1", b"spec"), authority.api_secrets("ci", "key")
    authority.rotate(now, OVERLAP)
    in_overlap = renewed(authority, node, now)
    authority.replace(now)
    server = authority.server_identity([], now)
    fresh = joined(authority, tmp_path / "fresh", now)

    assert not shake(server, node, ca_pem=node.ca_pem).accepted
    assert not shake(server, in_overlap, ca_pem=in_overlap.ca_pem).accepted
    assert not shake(server, fresh, ca_pem=known).accepted
    assert shake(server, fresh, ca_pem=fresh.ca_pem).accepted
    assert authority.seals().unseal("n1", sealed) is None
    assert not set(secrets) & set(authority.api_secrets("ci", "key"))
    with pytest.raises(IdentityRefused, match="no trusted one vouches"):
        trusting(node, authority.bundle.pem)


def test_a_signature_is_accepted_until_the_next_rotation_is_finished(
    authority: CertificateAuthority, now: datetime
) -> None:
    tokens, seals = authority.task_tokens(), authority.seals()
    key, sealed = tokens.key_for("7", "n1"), seals.seal("n1", b"spec")
    mark, (made, *_) = authority.sign_origin("10.0.0.1", b"body"), authority.api_secrets("ci", "key")
    accepted = []
    steps: list[Callable[[], object]] = [
        lambda: authority.rotate(now, OVERLAP),
        lambda: authority.finish(now),
    ]
    for step in steps * 2:
        step()
        accepted.append(seals.unseal("n1", sealed) == b"spec")
        assert authority.verify_origin("10.0.0.1", b"body", mark) is accepted[-1]
        assert (made in authority.api_secrets("ci", "key")) is accepted[-1]
        assert tokens.key_for("7", "n1") != key

    assert accepted == [True, True, True, False]


def test_secrets_of_a_ca_that_was_never_rotated_are_those_of_releases_before_rotation(
    tmp_path: Path, now: datetime
) -> None:
    """Servers of both releases may lead, one after the other: each must accept what the other has signed."""
    authority = CertificateAuthority.open(tmp_path / "ca", now)
    key = (tmp_path / "ca" / "ca.key").read_bytes()

    assert authority._secrets(b"rota seals") == [hashlib.sha256(b"rota seals\0" + key).digest()]
    assert not (tmp_path / "ca" / "ca.json").exists()


def test_a_node_accepts_no_ca_that_no_trusted_one_vouches_for(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    node = joined(authority, tmp_path / "node", now)
    other = CertificateAuthority.open(tmp_path / "other", now)
    other.rotate(now, OVERLAP)
    forged = authority.bundle.roots_pem + other.bundle.pem

    for bundle in (other.bundle.pem, forged):
        with pytest.raises(IdentityRefused, match="no trusted one vouches"):
            trusting(node, bundle)
        renewal = Renewal(node)
        certificate = other.sign_node(renewal.request, "n-17", "laptop", now)
        with pytest.raises(IdentityRefused, match="not signed by the CA"):
            renewal.accept(certificate, now, bundle)
        own = authority.sign_node(renewal.request, "n-17", "laptop", now)
        assert renewal.accept(own, now, bundle).ca_pem == node.ca_pem


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAA\n", b"\xff" * 99])
def test_an_invalid_bundle_is_refused(rubbish: bytes) -> None:
    with pytest.raises(IdentityRefused):
        Bundle.parse(rubbish)


def test_a_bundle_holds_only_a_few_certificates_of_authorities(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    node = joined(authority, tmp_path / "node", now)

    for pem in (authority.ca_pem + node.cert_pem, authority.ca_pem * 9):
        with pytest.raises(IdentityRefused):
            Bundle.parse(pem)


def test_a_node_stores_the_cas_it_follows(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    directory = tmp_path / "node"
    node = joined(authority, directory, now)
    authority.rotate(now, OVERLAP)
    replace_identity(directory, trusting(node, authority.bundle.pem))
    learned = load_identity(directory)
    assert learned is not None
    replace_identity(directory, renewed(authority, learned, now))
    last = load_identity(directory)

    assert (len(learned.bundle.roots), learned.is_current) == (2, False)
    assert last is not None
    assert (len(last.bundle.roots), len(last.bundle.links), last.is_current) == (2, 1, True)


def test_a_watcher_follows_a_rotation_like_a_node(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    asked = WatcherRequest()
    held = asked.accept(authority.sign_watcher(asked.request, "w1", now), authority.bundle.pem, now)
    other = CertificateAuthority.open(tmp_path / "other", now)
    authority.rotate(now, OVERLAP)
    learned = held.trusting(authority.bundle.pem)

    assert (held.is_current, learned.is_current) == (True, False)
    with pytest.raises(IdentityRefused, match="no trusted one vouches"):
        held.trusting(other.bundle.pem)


def test_only_one_rotation_is_in_progress_at_a_time(authority: CertificateAuthority, now: datetime) -> None:
    with pytest.raises(NotRotating):
        authority.finish(now)
    authority.rotate(now, OVERLAP)
    with pytest.raises(Rotating):
        authority.rotate(now, OVERLAP)

    assert authority.overlap is not None
    assert authority.overlap.end - authority.overlap.begin == OVERLAP


Step = Callable[[CertificateAuthority, datetime], object]


@pytest.mark.parametrize(
    "step",
    [
        lambda authority, now: authority.rotate(now, OVERLAP),
        lambda authority, now: (authority.rotate(now, OVERLAP), authority.finish(now)),
        lambda authority, now: authority.replace(now),
    ],
)
def test_a_crash_between_the_files_is_repaired_at_the_next_start(
    tmp_path: Path, now: datetime, step: Step
) -> None:
    """`ca.json` counts; the two files beside it are copies, which an earlier crash has left as they were."""
    directory = tmp_path / "ca"
    authority = CertificateAuthority.open(directory, now)
    before = {name: (directory / name).read_bytes() for name in ("ca.key", "ca.pem")}
    step(authority, now)
    for name, content in before.items():
        (directory / name).write_bytes(content)

    again = CertificateAuthority.open(directory, now)

    assert again.ring == authority.ring
    assert (directory / "ca.pem").read_bytes() == authority.ca_pem
    assert (directory / "ca.key").read_bytes() != before["ca.key"]


def test_a_partial_file_left_by_a_crash_is_removed(tmp_path: Path, now: datetime) -> None:
    """It may hold keys. Nothing of the rotation has happened."""
    directory = tmp_path / "ca"
    authority = CertificateAuthority.open(directory, now)
    (directory / ".ca.json.0123456789abcdef.new").write_text('{"current": {"key":')

    again = CertificateAuthority.open(directory, now)

    assert again.ring == authority.ring
    assert not list(directory.glob("*.new")) + list(directory.glob(".*.new"))


def test_a_change_that_cannot_be_published_has_no_effect(
    authority: CertificateAuthority, now: datetime
) -> None:
    def refuse(_: keyring.Keyring) -> None:
        raise TimeoutError

    authority.publish_by(refuse)
    with pytest.raises(TimeoutError):
        authority.rotate(now, OVERLAP)

    assert authority.overlap is None
    assert not authority.has_rotated


def test_the_old_key_is_deleted_when_the_rotation_is_finished(tmp_path: Path, now: datetime) -> None:
    directory = tmp_path / "ca"
    authority = CertificateAuthority.open(directory, now)
    key = (directory / "ca.key").read_text()
    authority.rotate(now, OVERLAP)
    kept = json.loads((directory / "ca.json").read_text())["previous"]["key"]
    authority.finish(now)

    assert kept == key
    assert all(key.encode() not in file.read_bytes() for file in directory.iterdir())


def test_a_damaged_keyring_is_reported_and_not_replaced(tmp_path: Path, now: datetime) -> None:
    directory = tmp_path / "ca"
    CertificateAuthority.open(directory, now).rotate(now, OVERLAP)
    content = json.loads((directory / "ca.json").read_text())
    for damaged in ("{", json.dumps({**content, "secrets": []}), json.dumps({**content, "version": 9})):
        (directory / "ca.json").write_text(damaged)

        with pytest.raises(Unsafe):
            CertificateAuthority.open(directory, now)


def test_a_second_server_that_takes_the_keyring_signs_and_accepts_the_same(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    authority.rotate(now, OVERLAP)
    standby = CertificateAuthority.open(tmp_path / "standby", now)
    changes: list[str] = []
    with standby.listening(lambda: changes.append(standby.fingerprint)):
        standby.apply_keyring(authority.ring)

    assert changes == [authority.fingerprint]
    assert CertificateAuthority.open(tmp_path / "standby", now).ring == authority.ring
    assert standby.vouches_for(authority.sign_node(make_request(tmp_path / "n"), "n1", "a", now))


def test_an_agent_that_follows_no_rotation_gets_a_certificate_of_its_own_ca(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    node = joined(authority, tmp_path / "node", now)
    old = authority.fingerprint
    authority.rotate(now, OVERLAP)
    signed = authority.sign_node(Renewal(node).request, "n-17", "laptop", now, like=node.cert_pem)
    after = authority.sign_node(Renewal(node).request, "n-17", "laptop", now)

    assert authority.signer_of(signed) == old
    assert authority.signer_of(after) == authority.fingerprint
    assert authority.signer_of(certificates.certificate_to_pem(authority.bundle.roots[0])) == ""


def test_the_vault_records_the_ca_of_a_watchers_certificate(tmp_path: Path) -> None:
    vault = Vault.open(tmp_path)
    vault.add_watcher(JoinedWatcher(id="w1", name="edge", joined_at_ms=0))
    vault.note_watcher_ca("w1", "sha256:1")
    vault.note_watcher_ca("gone", "sha256:1")

    assert [watcher.ca for watcher in Vault.open(tmp_path).list_watchers()] == ["sha256:1"]
