"""A request that a node signs is its own, for one path and one body, while its certificate is in use."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rota.identity.authority import NODE_LIFE, CertificateAuthority
from rota.identity.errors import IdentityRefused
from rota.identity.node_identity import NodeIdentity, make_request, store_identity
from rota.identity.signed_requests import sign_request, verify_request

NOW = datetime(2026, 11, 18, tzinfo=UTC)
BODY = b'{"results": {}}'


def joined(authority: CertificateAuthority, directory: Path) -> NodeIdentity:
    certificate = authority.sign_node(make_request(directory), "n7", "seven", NOW)
    return store_identity(directory, certificate, authority.ca_pem)


def test_a_signature_identifies_the_node_and_a_digest_the_body(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca", NOW)
    value = sign_request(joined(authority, tmp_path / "node"), "POST", "/a", BODY)
    signed = verify_request(value, "POST", "/a", authority.ca_pem, NOW)

    assert signed.node == "n7"
    assert signed.covers(BODY)
    assert not signed.covers(b"{}")


def test_another_method_path_digest_certificate_or_time_is_refused(tmp_path: Path) -> None:
    authority, other = (CertificateAuthority.open(tmp_path / name, NOW) for name in ("ca", "other"))
    value = sign_request(joined(authority, tmp_path / "node"), "POST", "/a", BODY)
    foreign = sign_request(joined(other, tmp_path / "foreign"), "POST", "/a", BODY)
    scheme, _, parts = value.partition(" ")
    der, digest, signature = parts.split(".")
    mixed = f"{scheme} {foreign.partition(' ')[2].split('.')[0]}.{digest}.{signature}"
    longer = f"{scheme} {der}.{'0' * 64}.{signature}"

    def refused(header: str, method: str = "POST", path: str = "/a", now: datetime = NOW) -> None:
        with pytest.raises(IdentityRefused):
            verify_request(header, method, path, authority.ca_pem, now)

    refused(value, method="GET")
    refused(value, path="/b")
    refused(value, now=NOW + NODE_LIFE)
    refused(value, now=NOW - timedelta(days=1))
    for header in (
        foreign,
        mixed,
        longer,
        f"{scheme} x",
        f"{scheme} ..",
        scheme,
        f"{scheme} {'A' * 100_000}",
    ):
        refused(header)


def test_a_server_certificate_names_no_node(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca", NOW)
    pair = authority.server_identity((), NOW)
    server = NodeIdentity("n7", pair.key_pem, pair.cert_pem, authority.ca_pem)

    with pytest.raises(IdentityRefused, match="not a node's certificate"):
        verify_request(sign_request(server, "POST", "/a", BODY), "POST", "/a", authority.ca_pem, NOW)
