"""The cluster's certificate authority: made at the first start, signs nodes and servers, can be rotated."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rota.identity import certificates, files, keyring, tokens
from rota.identity.bundles import Bundle
from rota.identity.certificates import Period
from rota.identity.errors import IdentityRefused
from rota.identity.keyring import Keyring, Root
from rota.identity.seals import Seals
from rota.identity.task_tokens import TaskTokens
from rota.model.limits import RENEWAL_WINDOW_SECONDS

SERVER_NAME = "rota-server"  # agents check this name, so that a server may have any address
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

NODE_LIFE = timedelta(hours=24)
SERVER_LIFE = timedelta(days=30)
RENEWAL_WINDOW = timedelta(seconds=RENEWAL_WINDOW_SECONDS)  # after a node's certificate has expired

MAX_REQUEST_BYTES = 16_384  # an RSA 8192 request is 3 kB
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192  # above, checking one signature costs the server too much
MAX_COMMON_NAME = 64  # of X.509
# Also for clients, since a standby connects to the leader.
_SERVER_PURPOSES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
Publish = Callable[[Keyring], None]
DNS_NAME = re.compile(r"(?=.{1,253}$)(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Key, certificate and trusted CAs of a TLS server."""

    key_pem: bytes = field(repr=False)
    cert_pem: bytes  # its own certificate, followed by links to an older CA
    ca_pem: bytes  # every trusted CA

    @property
    def period(self) -> Period:
        return certificates.period_of(self.cert_pem)


class CertificateAuthority:
    """Signs with the key of the cluster's CA, which a rotation replaces in place.

    Safe to share between threads: its state is one frozen value, replaced in a single assignment. A change is
    published to the other servers first, then written to disk, and only then used here.
    """

    def __init__(
        self, directory: Path, ring: Keyring, renewal_window: timedelta, publish: Publish | None = None
    ) -> None:
        self._directory = directory
        self._publish = publish
        self._listeners: list[Callable[[], object]] = []
        self.renewal_window = renewal_window
        self._held = _Issuers.from_keyring(ring)

    @classmethod
    def open(
        cls,
        directory: Path,
        now: datetime,
        renewal_window: timedelta = RENEWAL_WINDOW,
    ) -> "CertificateAuthority":
        return cls(directory, keyring.open_keyring(directory, now), renewal_window)

    # ---- rotation

    @property
    def ring(self) -> Keyring:
        return self._held.ring

    def publish_by(self, publish: Publish) -> None:
        """Publish each change for the other servers, before it takes effect here."""
        self._publish = publish

    def rotate(self, now: datetime, overlap: timedelta) -> Keyring:
        """Create a new CA; the old one stays trusted for the overlap. Raises Rotating."""
        return self._change(lambda ring: keyring.start_rotation(ring, now, overlap))

    def finish(self, now: datetime) -> Keyring:
        """Stop trusting the old CA, and delete its key. Raises NotRotating."""
        return self._change(lambda ring: keyring.finish_rotation(ring, now))

    def replace(self, now: datetime) -> Keyring:
        """Create a new CA, and stop trusting anything signed before."""
        return self._change(lambda ring: keyring.replace_root(ring, now))

    def apply_keyring(self, ring: Keyring) -> None:
        """Apply a keyring that another server has published; durable on return."""
        if ring != self.ring:
            with files.locked(self._directory, "ca"):
                keyring.write(self._directory, ring)
            self._hold(ring)

    def follow(self, fetch: Callable[[], Keyring | None]) -> None:
        """Apply the shared keyring. It is fetched under the lock, so that no change comes in between."""
        with files.locked(self._directory, "ca"):
            ring = fetch()
            if ring is None or ring == self.ring:
                return
            keyring.write(self._directory, ring)
        self._hold(ring)

    @contextmanager
    def listening(self, changed: Callable[[], object]) -> Iterator[None]:
        """Call `changed` after each change, in the thread that has made it."""
        self._listeners.append(changed)
        try:
            yield
        finally:
            self._listeners.remove(changed)

    def _change(self, change: Callable[[Keyring], Keyring]) -> Keyring:
        with files.locked(self._directory, "ca"):
            # Read from disk under the lock: another process may have rotated since.
            ring = change(keyring.read(self._directory))
            # Ordering: other servers must accept what this one signs, so they have the keyring first.
            if self._publish is not None:
                self._publish(ring)
            keyring.write(self._directory, ring)
        self._hold(ring)
        return ring

    def _hold(self, ring: Keyring) -> None:
        self._held = _Issuers.from_keyring(ring)
        # A copy: a listener may end while the others are called.
        for changed in list(self._listeners):
            changed()

    # ---- what is trusted

    @property
    def ca_pem(self) -> bytes:
        """The certificate of the CA that signs."""
        return self._held.current.pem

    @property
    def fingerprint(self) -> str:
        return self._held.current.fingerprint

    @property
    def overlap(self) -> Period | None:
        """The period in which the previous CA is trusted, too; None if no rotation is in progress."""
        if self.ring.previous is None:
            return None
        start, end = self.ring.started_at_ms, self.ring.overlap_until_ms
        return Period(datetime.fromtimestamp(start / 1000, UTC), datetime.fromtimestamp(end / 1000, UTC))

    @property
    def has_rotated(self) -> bool:
        """Whether there is, or was, another CA than the one that signs."""
        return self.ring.is_rotated

    @property
    def bundle(self) -> Bundle:
        return self._held.bundle

    @property
    def period(self) -> Period:
        return certificates.period_of(self.ca_pem)

    def vouches_for(self, cert_pem: bytes) -> bool:
        """Whether a currently trusted CA has signed the certificate."""
        try:
            return self.bundle.issuer_of(certificates.only_certificate(cert_pem)) is not None
        except IdentityRefused:
            return False

    def is_retired(self, cert_pem: bytes) -> bool:
        """Whether the CA that signed it is no longer trusted. TLS notices that at the next handshake only."""
        key_id = certificates.issuer_key_id(cert_pem)
        return any(retired.key_id == key_id for retired in self.ring.retired)

    def signer_of(self, cert_pem: bytes) -> str:
        """The fingerprint of the trusted CA that signed a certificate; empty if none of them did."""
        key_id = certificates.issuer_key_id(cert_pem)
        held = self._held
        return next((issuer.fingerprint for issuer in held.issuers if issuer.key_id == key_id), "")

    @property
    def node_usable(self) -> timedelta:
        """For how long a node's certificate signed now can be used or renewed."""
        return NODE_LIFE + self.renewal_window

    # ---- secrets: every server with this keyring has them, and nothing else

    def task_tokens(self) -> TaskTokens:
        return TaskTokens(lambda: self._secrets(b"rota task tokens"))

    def seals(self) -> Seals:
        return Seals(lambda: self._secrets(b"rota seals"))

    def api_secrets(self, caller: str, key: str) -> list[str]:
        """Secrets of the API token that a caller makes with this idempotency key, equal on every server.

        The first one is for a token that is made now; one of the others may have been used before a rotation.
        """
        return [
            tokens.derive_secret(secret, f"{caller}\0{key}") for secret in self._secrets(b"rota api tokens")
        ]

    def sign_origin(self, origin: str, request: bytes) -> str:
        """A signature by which a leader trusts the origin that a standby states for a forwarded request."""
        return _origin_mark(self._secrets(b"rota origins")[0], origin, request)

    def verify_origin(self, origin: str, request: bytes, mark: str) -> bool:
        expected = (_origin_mark(secret, origin, request) for secret in self._secrets(b"rota origins"))
        return any(hmac.compare_digest(valid.encode(), mark.encode()) for valid in expected)

    def _secrets(self, purpose: bytes) -> list[bytes]:
        return [hashlib.sha256(purpose + b"\0" + secret.encode()).digest() for secret in self.ring.secrets]

    # ---- certificates

    def sign_node(
        self, csr_pem: bytes, node_id: str, name: str, now: datetime, *, like: bytes | None = None
    ) -> bytes:
        """Sign for a node. `like`: by the CA that signed that one, for an agent that accepts no newer CA."""
        return self._issuer(like).sign_node(csr_pem, node_id, name, now, self.renewal_window)

    def sign_watcher(
        self, csr_pem: bytes, watcher_id: str, now: datetime, *, like: bytes | None = None
    ) -> bytes:
        return self._issuer(like).sign_watcher(csr_pem, watcher_id, now)

    def server_identity(self, hosts: Sequence[str], now: datetime) -> KeyPair:
        """A fresh key and certificate for `hosts`, with the links that older verifiers need."""
        held = self._held
        key, cert_pem = held.current.sign_server(hosts, now)
        return KeyPair(certificates.key_to_pem(key), cert_pem + held.bundle.links_pem, held.bundle.roots_pem)

    def _issuer(self, like: bytes | None) -> "_Issuer":
        held = self._held
        key_id = None if like is None else certificates.issuer_key_id(like)
        return next((issuer for issuer in held.issuers if issuer.key_id == key_id), held.current)


class _Issuer:
    """One CA, with its key."""

    def __init__(self, root: Root) -> None:
        self._key = root.private_key
        self._certificate = root.x509
        self.pem = root.certificate.encode()
        self.fingerprint = certificates.fingerprint_of(self._certificate)
        self.key_id = certificates.key_id_of(self._certificate)

    def sign_node(
        self, csr_pem: bytes, node_id: str, name: str, now: datetime, renewal_window: timedelta
    ) -> bytes:
        """Sign a node's certificate. Only the key is taken from the request; the server names the node.

        The period of use is short. For TLS the certificate is valid longer, so that a node which was offline
        can prove its identity and renew: at the end by the renewal window, and at the start since the CA
        exists, because a certificate made while the clock was ahead must work when the clock is corrected.
        """
        public_key = _requested_key(csr_pem)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(certificates.node_uri(node_id))]
        if not name:
            raise IdentityRefused("name: expected the node's name, got nothing")
        use = self._period(now, NODE_LIFE)
        valid = Period(self._certificate.not_valid_before_utc, use.end + renewal_window)
        leaf = _Leaf(name[:MAX_COMMON_NAME], names, [ExtendedKeyUsageOID.CLIENT_AUTH], use, valid)
        return self._sign(public_key, leaf)

    def sign_server(self, hosts: Sequence[str], now: datetime) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
        """A fresh key and certificate for `hosts`, this machine and the name that agents check."""
        key = certificates.new_key()
        names = [_host_name(host) for host in dict.fromkeys((SERVER_NAME, *LOCAL_HOSTS, *hosts))]
        names.append(x509.UniformResourceIdentifier(certificates.SERVER_URI))
        use = self._period(now, SERVER_LIFE)
        valid = Period(use.begin - certificates.CLOCK_SKEW, use.end)
        leaf = _Leaf(SERVER_NAME, names, _SERVER_PURPOSES, use, valid)
        return key, self._sign(key.public_key(), leaf)

    def sign_watcher(self, csr_pem: bytes, watcher_id: str, now: datetime) -> bytes:
        """Sign a certificate with which a watcher serves agents and connects to the leader.

        It has the name that agents check, and no host name: a watcher must not be able to pose as the API.
        """
        public_key = _requested_key(csr_pem)
        uri = x509.UniformResourceIdentifier(certificates.watcher_uri(watcher_id))
        names = [x509.DNSName(SERVER_NAME), uri]
        use = self._period(now, SERVER_LIFE)
        valid = Period(use.begin - certificates.CLOCK_SKEW, use.end)
        return self._sign(public_key, _Leaf(f"watcher {watcher_id}", names, _SERVER_PURPOSES, use, valid))

    def _period(self, now: datetime, life: timedelta) -> Period:
        # A clock that is not set yet may be before the start of the CA's own validity.
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
            .add_extension(certificates.usage(signs_certificates=False), critical=True)
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
    """What distinguishes one certificate from another."""

    common_name: str
    names: list[x509.GeneralName]
    purposes: list[x509.ObjectIdentifier]
    use: Period
    valid: Period  # as checked by TLS


@dataclass(frozen=True, slots=True)
class _Issuers:
    """A keyring, with its keys and certificates parsed once."""

    ring: Keyring
    issuers: tuple[_Issuer, ...]  # the current one first
    bundle: Bundle

    @classmethod
    def from_keyring(cls, ring: Keyring) -> "_Issuers":
        links = tuple(certificates.only_certificate(link.encode()) for link in ring.links)
        return cls(
            ring, tuple(map(_Issuer, ring.roots)), Bundle(tuple(root.x509 for root in ring.roots), links)
        )

    @property
    def current(self) -> _Issuer:
        return self.issuers[0]


def _origin_mark(secret: bytes, origin: str, body: bytes) -> str:
    content = f"{origin}\n{hashlib.sha256(body).hexdigest()}".encode()
    return hmac.new(secret, content, hashlib.sha256).hexdigest()


def _requested_key(csr_pem: bytes) -> CertificatePublicKeyTypes:
    if len(csr_pem) > MAX_REQUEST_BYTES:
        raise IdentityRefused(f"csr: expected at most {MAX_REQUEST_BYTES} bytes, got {len(csr_pem)}")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
        # Kind and size first: they bound the cost of checking the signature.
        if not _is_strong(key):
            raise IdentityRefused(
                "csr: expected a key of P-256, P-384, Ed25519 or RSA with 2048 to 8192 bits"
            )
        signed_by_its_key = request.is_signature_valid
    except IdentityRefused:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise IdentityRefused("csr: expected a PEM certificate signing request") from error
    if not signed_by_its_key:
        raise IdentityRefused("csr: its signature was not made with its own key")
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
        raise IdentityRefused(f"hosts: expected a DNS name or an IP address without a port, got {host!r}")
    return x509.DNSName(host)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage_period(period: Period) -> x509.PrivateKeyUsagePeriod:
    return x509.PrivateKeyUsagePeriod(
        period.begin.replace(tzinfo=None, microsecond=0), period.end.replace(tzinfo=None, microsecond=0)
    )
