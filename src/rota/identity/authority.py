"""The cluster's certificate authority: made at the first start, then signs nodes and the server."""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rota.identity import certificates, files, tokens
from rota.identity.certificates import Period
from rota.identity.errors import Refused, Unsafe
from rota.identity.seals import Seals
from rota.identity.task_tokens import TaskTokens
from rota.model.limits import RENEWAL_WINDOW_SECONDS

SERVER_NAME = "rota-server"  # agents check this name, so that any address leads to the server
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

CA_LIFE = timedelta(days=3650)
NODE_LIFE = timedelta(hours=24)
SERVER_LIFE = timedelta(days=30)
RENEWAL_WINDOW = timedelta(seconds=RENEWAL_WINDOW_SECONDS)  # after a node's certificate has expired

MAX_REQUEST_BYTES = 16_384  # an RSA 8192 request is 3 kB
MAX_CA_FILE_BYTES = 65_536
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192  # above, checking one signature costs the server too much
MAX_COMMON_NAME = 64  # of X.509
_SERVER_PURPOSES = [
    ExtendedKeyUsageOID.SERVER_AUTH,
    ExtendedKeyUsageOID.CLIENT_AUTH,
]  # a standby calls the leader
DNS_NAME = re.compile(r"(?=.{1,253}$)(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """What a TLS server needs."""

    key_pem: bytes = field(repr=False)
    cert_pem: bytes
    ca_pem: bytes

    @property
    def period(self) -> Period:
        return certificates.period_of(self.cert_pem)


class Authority:
    """Signs with the CA's key, which never leaves this object."""

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
        renewal_window: timedelta = RENEWAL_WINDOW,
    ) -> None:
        self._key = key
        self._certificate = certificate
        self.renewal_window = renewal_window
        self.ca_pem = certificates.certificate_to_pem(certificate)
        self.fingerprint = certificates.fingerprint_of(certificate)

    @classmethod
    def open(cls, directory: Path, now: datetime, renewal_window: timedelta = RENEWAL_WINDOW) -> "Authority":
        files.own_directory(directory)
        with files.locked(directory, "ca"):
            # The certificate is written last: while there is none, nobody has trusted this CA yet.
            if not (directory / "ca.pem").exists():
                _make(directory, now)
            return cls(*_load(directory, now), renewal_window)

    @property
    def period(self) -> Period:
        return certificates.period_of(self.ca_pem)

    @property
    def node_usable(self) -> timedelta:
        """For how long a node's certificate that is signed now can be shown or renewed."""
        return NODE_LIFE + self.renewal_window

    def task_tokens(self) -> TaskTokens:
        """By a secret that every server with this CA has, and nobody else."""
        return TaskTokens(self._secret(b"rota task tokens"))

    def seals(self) -> Seals:
        """By a secret that every server with this CA has, and nobody else."""
        return Seals(self._secret(b"rota seals"))

    def api_secret(self, caller: str, key: str) -> str:
        """Of the API token that a caller makes by this key: however often it asks, and whichever server."""
        return tokens.secret_of(self._secret(b"rota api tokens"), f"{caller}\0{key}")

    def origin_mark(self, origin: str, request: bytes) -> str:
        """The mark by which a leader believes a standby where a request that it hands on came from."""
        content = f"{origin}\n{hashlib.sha256(request).hexdigest()}".encode()
        return hmac.new(self._secret(b"rota origins"), content, hashlib.sha256).hexdigest()

    def is_origin(self, origin: str, request: bytes, mark: str) -> bool:
        return hmac.compare_digest(self.origin_mark(origin, request).encode(), mark.encode())

    def _secret(self, purpose: bytes) -> bytes:
        return hashlib.sha256(purpose + b"\0" + certificates.key_to_pem(self._key)).digest()

    def sign_node(self, csr_pem: bytes, node_id: str, name: str, now: datetime) -> bytes:
        """Of the request only the key counts; who the node is, the server says.

        Its period of use is short. To TLS it is valid for longer, so that a node which was away can prove
        its identity by its key, and renew: at the end for the renewal window, at the beginning since the
        authority exists, because one made while the clock was ahead must open the door when it is back.
        """
        public_key = _requested_key(csr_pem)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(certificates.node_uri(node_id))]
        if not name:
            raise Refused("name: expected the node's name, got nothing")
        use = self._period(now, NODE_LIFE)
        valid = Period(self._certificate.not_valid_before_utc, use.end + self.renewal_window)
        leaf = _Leaf(name[:MAX_COMMON_NAME], names, [ExtendedKeyUsageOID.CLIENT_AUTH], use, valid)
        return self._sign(public_key, leaf)

    def server_identity(self, hosts: Sequence[str], now: datetime) -> KeyPair:
        """A fresh key and certificate for `hosts`, this machine and the name that agents check."""
        key = certificates.new_key()
        names = [_host_name(host) for host in dict.fromkeys((SERVER_NAME, *LOCAL_HOSTS, *hosts))]
        names.append(x509.UniformResourceIdentifier(certificates.SERVER_URI))
        use = self._period(now, SERVER_LIFE)
        valid = Period(use.begin - certificates.CLOCK_SKEW, use.end)
        leaf = _Leaf(SERVER_NAME, names, _SERVER_PURPOSES, use, valid)
        cert_pem = self._sign(key.public_key(), leaf)
        return KeyPair(certificates.key_to_pem(key), cert_pem, self.ca_pem)

    def sign_watcher(self, csr_pem: bytes, watcher_id: str, now: datetime) -> bytes:
        """A certificate with which a watcher serves agents and calls the leader.

        It vouches for the name that agents check, and for no host: a watcher must not pass for the API.
        """
        public_key = _requested_key(csr_pem)
        uri = x509.UniformResourceIdentifier(certificates.watcher_uri(watcher_id))
        names = [x509.DNSName(SERVER_NAME), uri]
        use = self._period(now, SERVER_LIFE)
        valid = Period(use.begin - certificates.CLOCK_SKEW, use.end)
        return self._sign(public_key, _Leaf(f"watcher {watcher_id}", names, _SERVER_PURPOSES, use, valid))

    def vouches_for(self, cert_pem: bytes) -> bool:
        """Whether this authority has signed that certificate."""
        try:
            certificates.only_certificate(cert_pem).verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def _period(self, now: datetime, life: timedelta) -> Period:
        # A clock that is not set yet may be before the authority's own beginning.
        begin = max(now, self._certificate.not_valid_before_utc)
        return Period(begin, min(begin + life, self._certificate.not_valid_after_utc))

    def _sign(self, public_key: CertificatePublicKeyTypes, leaf: "_Leaf") -> bytes:
        issuer_key = self._key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_common_name(leaf.common_name))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(leaf.valid.begin)
            .not_valid_after(min(leaf.valid.end, self._certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(leaf.purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(leaf.names), critical=False)
            .add_extension(_usage_period(leaf.use), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificates.certificate_to_pem(certificate)


@dataclass(frozen=True, slots=True)
class _Leaf:
    common_name: str
    names: list[x509.GeneralName]
    purposes: list[x509.ObjectIdentifier]
    use: Period
    valid: Period  # as TLS checks it


def _make(directory: Path, now: datetime) -> None:
    key = certificates.new_key()
    # A name of its own, so that a verifier holding two clusters' CAs picks the right one.
    name = _common_name(f"Rota CA {secrets.token_hex(4)}")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - certificates.CLOCK_SKEW)
        .not_valid_after(now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    files.write_private(directory / "ca.key", certificates.key_to_pem(key))
    files.write_private(directory / "ca.pem", certificates.certificate_to_pem(certificate))


def _load(directory: Path, now: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    certificate_path, key_path = directory / "ca.pem", directory / "ca.key"
    mend = (
        f"restore both from a backup, or remove {certificate_path} to begin anew (all nodes then join again)"
    )
    try:
        certificate = certificates.only_certificate(files.read_private(certificate_path, MAX_CA_FILE_BYTES))
        key = certificates.key_from_pem(files.read_private(key_path, MAX_CA_FILE_BYTES))
    except FileNotFoundError as error:
        raise Unsafe(f"the cluster's CA has lost its key {key_path}: {mend}") from error
    except Unsafe:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: a key with a password
        raise Unsafe(f"the cluster's CA in {directory} cannot be read: {mend}") from error
    if not certificates.belong_together(key, certificate):
        raise Unsafe(f"{key_path} is not the key of {certificate_path}: {mend}")
    if certificate.not_valid_after_utc <= now:
        raise Unsafe(f"the cluster's CA expired on {certificate.not_valid_after_utc:%Y-%m-%d}: {mend}")
    return key, certificate


def _requested_key(csr_pem: bytes) -> CertificatePublicKeyTypes:
    if len(csr_pem) > MAX_REQUEST_BYTES:
        raise Refused(f"csr: expected at most {MAX_REQUEST_BYTES} bytes, got {len(csr_pem)}")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
        # Kind and size first: they bound the price of checking the signature.
        if not _is_strong(key):
            raise Refused("csr: expected a key of P-256, P-384, Ed25519 or RSA with 2048 to 8192 bits")
        signed_by_its_key = request.is_signature_valid
    except Refused:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise Refused("csr: expected a PEM certificate signing request") from error
    if not signed_by_its_key:
        raise Refused("csr: its signature was not made with its own key")
    return key


def _is_strong(key: object) -> bool:
    match key:
        case ec.EllipticCurvePublicKey():
            return isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
        case rsa.RSAPublicKey():
            return MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS
        case _:
            return isinstance(key, ed25519.Ed25519PublicKey)


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not DNS_NAME.fullmatch(host):
        raise Refused(f"hosts: expected a DNS name or an IP address without a port, got {host!r}")
    return x509.DNSName(host)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage_period(period: Period) -> x509.PrivateKeyUsagePeriod:
    return x509.PrivateKeyUsagePeriod(
        period.begin.replace(tzinfo=None, microsecond=0), period.end.replace(tzinfo=None, microsecond=0)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
