"""The CA: made once, kept privately, never silently replaced, and strict about what it signs."""

import ipaddress
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rota.identity import node_identity
from rota.identity.authority import CertificateAuthority
from rota.identity.certificates import certificate_to_pem, node_id_of, only_certificate, period_of
from rota.identity.errors import IdentityRefused, Unsafe

AnyKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def request_for(key: AnyKey, builder: x509.CertificateSigningRequestBuilder | None = None) -> bytes:
    builder = builder or x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)


def p256_request() -> bytes:
    return request_for(ec.generate_private_key(ec.SECP256R1()))


def test_a_second_start_finds_the_same_ca(tmp_path: Path, now: datetime) -> None:
    first = CertificateAuthority.open(tmp_path / "ca", now)
    second = CertificateAuthority.open(tmp_path / "ca", now + timedelta(days=300))

    assert second.ca_pem == first.ca_pem
    assert second.fingerprint == first.fingerprint


def test_the_fingerprint_is_the_sha256_of_the_der_certificate(authority: CertificateAuthority) -> None:
    expected = only_certificate(authority.ca_pem).fingerprint(hashes.SHA256()).hex()

    assert authority.fingerprint == f"sha256:{expected}"


def test_only_the_owner_can_read_the_ca_key(tmp_path: Path, now: datetime) -> None:
    old_umask = os.umask(0)
    try:
        CertificateAuthority.open(tmp_path / "ca", now)
    finally:
        os.umask(old_umask)

    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600


def test_a_directory_made_by_hand_is_closed_to_others(tmp_path: Path, now: datetime) -> None:
    (tmp_path / "ca").mkdir(mode=0o755)
    CertificateAuthority.open(tmp_path / "ca", now)

    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


def test_a_shared_directory_is_refused_and_left_alone(tmp_path: Path, now: datetime) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)

    with pytest.raises(Unsafe, match="shared with other users"):
        CertificateAuthority.open(shared, now)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_a_ca_half_made_before_a_crash_is_made_again(tmp_path: Path, now: datetime) -> None:
    directory = tmp_path / "ca"
    CertificateAuthority.open(directory, now)
    (directory / "ca.pem").unlink()
    half_key = (directory / "ca.key").read_bytes()
    (directory / ".ca.key.0123456789abcdef.new").write_bytes(b"half a k")

    again = CertificateAuthority.open(directory, now)

    assert (directory / "ca.key").read_bytes() != half_key
    assert CertificateAuthority.open(directory, now).fingerprint == again.fingerprint
    assert not list(directory.glob(".*.new"))


def test_a_ca_without_its_key_is_refused_and_not_replaced(tmp_path: Path, now: datetime) -> None:
    directory = tmp_path / "ca"
    made = CertificateAuthority.open(directory, now)
    (directory / "ca.key").unlink()

    with pytest.raises(Unsafe, match="lost its key"):
        CertificateAuthority.open(directory, now)
    assert (directory / "ca.pem").read_bytes() == made.ca_pem


def test_a_key_of_another_ca_is_refused(tmp_path: Path, now: datetime) -> None:
    CertificateAuthority.open(tmp_path / "one", now)
    CertificateAuthority.open(tmp_path / "two", now)
    (tmp_path / "two" / "ca.key").replace(tmp_path / "one" / "ca.key")

    with pytest.raises(Unsafe, match=r"ca\.key is not the key of .*ca\.pem"):
        CertificateAuthority.open(tmp_path / "one", now)


@pytest.mark.parametrize("name", ["ca.key", "ca.pem"])
@pytest.mark.parametrize("content", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_damaged_ca_file_is_refused(tmp_path: Path, now: datetime, name: str, content: bytes) -> None:
    CertificateAuthority.open(tmp_path / "ca", now)
    (tmp_path / "ca" / name).write_bytes(content)

    with pytest.raises(Unsafe, match="cannot be read"):
        CertificateAuthority.open(tmp_path / "ca", now)


def test_a_ca_key_that_others_can_read_is_refused(tmp_path: Path, now: datetime) -> None:
    CertificateAuthority.open(tmp_path / "ca", now)
    (tmp_path / "ca" / "ca.key").chmod(0o640)

    with pytest.raises(Unsafe, match="chmod 600"):
        CertificateAuthority.open(tmp_path / "ca", now)


def test_an_expired_ca_is_refused(tmp_path: Path, now: datetime) -> None:
    CertificateAuthority.open(tmp_path / "ca", now)

    with pytest.raises(Unsafe, match="expired on"):
        CertificateAuthority.open(tmp_path / "ca", now + timedelta(days=3651))


def test_many_first_starts_at_once_make_one_ca(tmp_path: Path, now: datetime) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: CertificateAuthority.open(tmp_path / "ca", now).fingerprint, range(8)))

    assert len(set(made)) == 1


def test_a_node_certificate_takes_only_the_key_from_the_request(
    authority: CertificateAuthority, now: datetime
) -> None:
    lies = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rota-server")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("rota-server")]), critical=False)
    )
    request = request_for(ec.generate_private_key(ec.SECP256R1()), lies)

    cert = only_certificate(authority.sign_node(request, "n-17", "laptop", now))

    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier("rota://node/n-17")]
    assert cert.subject.rfc4514_string() == "CN=laptop"
    assert cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert cert.not_valid_before_utc == only_certificate(authority.ca_pem).not_valid_before_utc
    assert period_of(certificate_to_pem(cert)) == (now, now + timedelta(hours=24))
    assert cert.not_valid_after_utc == now + timedelta(hours=24) + timedelta(days=90)


def test_the_node_id_can_be_read_back_from_a_certificate(
    authority: CertificateAuthority, now: datetime
) -> None:
    assert node_id_of(authority.sign_node(p256_request(), "n-17", "laptop", now)) == "n-17"
    with pytest.raises(IdentityRefused, match="not a node's certificate"):
        node_id_of(authority.ca_pem)
    with pytest.raises(IdentityRefused, match="not a node's certificate"):
        node_id_of(authority.server_identity([], now).cert_pem)


def test_a_long_node_name_is_cut_to_what_a_certificate_holds(
    authority: CertificateAuthority, now: datetime
) -> None:
    cert = only_certificate(authority.sign_node(p256_request(), "n", "x" * 300, now))

    assert cert.subject.rfc4514_string() == "CN=" + "x" * 64


@pytest.mark.parametrize("node_id", ["", "a/b", "../a", "a b", "ä", "-a", "a" * 129, "a?x", "a\n"])
def test_a_node_id_that_could_be_read_as_another_is_refused(
    authority: CertificateAuthority, now: datetime, node_id: str
) -> None:
    with pytest.raises(IdentityRefused, match="node_id"):
        authority.sign_node(p256_request(), node_id, "laptop", now)


def test_a_node_without_a_name_is_refused(authority: CertificateAuthority, now: datetime) -> None:
    with pytest.raises(IdentityRefused, match="name"):
        authority.sign_node(p256_request(), "n", "", now)


def test_strong_keys_are_signed(authority: CertificateAuthority, now: datetime) -> None:
    keys: list[AnyKey] = [
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate(),
    ]
    for key in keys:
        cert = only_certificate(authority.sign_node(request_for(key), "n", "laptop", now))

        assert cert.public_key() == key.public_key()


def test_weak_keys_are_refused(authority: CertificateAuthority, now: datetime) -> None:
    weak: list[AnyKey] = [
        ec.generate_private_key(ec.SECP256K1()),
        ec.generate_private_key(ec.SECP224R1()),
        rsa.generate_private_key(65537, 1024),
    ]
    for key in weak:
        with pytest.raises(IdentityRefused, match="expected a key of"):
            authority.sign_node(request_for(key), "n", "laptop", now)


def test_a_request_for_a_key_its_sender_does_not_hold_is_refused(
    authority: CertificateAuthority, now: datetime
) -> None:
    mine = x509.load_pem_x509_csr(p256_request())
    theirs = x509.load_pem_x509_csr(p256_request())
    forged_der = mine.public_bytes(serialization.Encoding.DER).replace(
        mine.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        theirs.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )
    forged = x509.load_der_x509_csr(forged_der).public_bytes(serialization.Encoding.PEM)

    with pytest.raises(IdentityRefused, match="signature"):
        authority.sign_node(forged, "n", "laptop", now)


@pytest.mark.parametrize(
    "rubbish", [b"", b"hello", b"\xff" * 100, b"-----BEGIN CERTIFICATE REQUEST-----\nAA\n"]
)
def test_an_invalid_signing_request_is_refused(
    authority: CertificateAuthority, now: datetime, rubbish: bytes
) -> None:
    with pytest.raises(IdentityRefused, match="csr: expected a PEM"):
        authority.sign_node(rubbish, "n", "laptop", now)


def test_a_huge_request_is_refused_unread(authority: CertificateAuthority, now: datetime) -> None:
    with pytest.raises(IdentityRefused, match="at most 16384 bytes"):
        authority.sign_node(b"x" * 20_000, "n", "laptop", now)


def test_no_certificate_outlives_its_ca(tmp_path: Path, now: datetime) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca", now)
    late = now + timedelta(days=3650) - timedelta(hours=1)

    cert = only_certificate(authority.sign_node(p256_request(), "n", "laptop", late))

    assert cert.not_valid_after_utc == only_certificate(authority.ca_pem).not_valid_after_utc


def test_a_server_certificate_covers_its_hosts_and_this_machine(
    authority: CertificateAuthority, now: datetime
) -> None:
    pair = authority.server_identity(["rota.example.org", "10.0.0.5", "[fd00::5]", "localhost"], now)

    names = only_certificate(pair.cert_pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["rota-server", "localhost", "rota.example.org"]
    assert names.value.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "10.0.0.5", "fd00::5")
    ]


def test_a_server_certificate_asks_for_renewal_at_its_half_life(
    authority: CertificateAuthority, now: datetime
) -> None:
    pair = authority.server_identity([], now)

    assert only_certificate(pair.cert_pem).not_valid_after_utc == now + timedelta(days=30)
    assert pair.period.renew_after(0.0) == now + timedelta(days=15)
    assert pair.period.renew_after(1.0) == now + timedelta(days=18)


@pytest.mark.parametrize("host", ["", "host:3000", "a b", "http://a", "ä.example", "x" * 254, "a\n"])
def test_a_bad_host_is_refused_by_name(authority: CertificateAuthority, now: datetime, host: str) -> None:
    with pytest.raises(IdentityRefused, match="hosts: expected a DNS name or an IP address"):
        authority.server_identity([host], now)


def test_keys_do_not_show_in_what_is_printed(
    authority: CertificateAuthority, tmp_path: Path, now: datetime
) -> None:
    pair = authority.server_identity([], now)
    cert_pem = authority.sign_node(node_identity.make_request(tmp_path / "node"), "n", "laptop", now)
    identity = node_identity.store_identity(tmp_path / "node", cert_pem, authority.ca_pem)

    assert "PRIVATE KEY" not in repr(pair) + repr(identity) + repr(vars(authority))
