"""The identity of a node, on the node: a key that never leaves it, and its certificate.

`node.pem` holds certificate, CAs and key in one file that is replaced atomically, so that they always match.
`node.key` is the key of a node that has not joined yet.
"""

import hmac
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rota.identity import certificates, files
from rota.identity.bundles import Bundle
from rota.identity.certificates import Period
from rota.identity.errors import IdentityRefused, Unsafe

FILE, KEY_FILE = "node.pem", "node.key"
KEY_BEGIN = b"-----BEGIN PRIVATE KEY-----"
MAX_FILE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The certificate and key of a node, and the CAs by which it checks the server."""

    node_id: str
    key_pem: bytes = field(repr=False)
    cert_pem: bytes
    ca_pem: bytes  # every trusted CA
    links_pem: bytes = b""  # by which an older CA vouches for the one that signed the certificate

    @property
    def chain_pem(self) -> bytes:
        """The chain it sends; a server that knows only the older CA accepts it, too."""
        return self.cert_pem + self.links_pem

    @property
    def bundle(self) -> Bundle:
        return Bundle.parse(self.ca_pem + self.links_pem)

    @property
    def is_current(self) -> bool:
        """Whether the certificate was signed by the current CA."""
        issuer = certificates.issuer_key_id(self.cert_pem)
        return certificates.key_id_of(self.bundle.roots[0]) == issuer

    @property
    def period(self) -> Period:
        """When the node may use it."""
        return certificates.period_of(self.cert_pem)

    @property
    def renewable_until(self) -> datetime:
        return certificates.valid_until(self.cert_pem)


def check_fingerprint(ca_pem: bytes, fingerprint: str) -> bool:
    """Whether this is exactly the CA that the operator named, and nothing else."""
    try:
        actual = certificates.fingerprint_of(certificates.only_certificate(ca_pem))
    except IdentityRefused:
        return False
    return hmac.compare_digest(actual.encode(), fingerprint.strip().lower().encode())


def make_request(directory: Path) -> bytes:
    """A signing request (PEM) for this node's key, which is created if there is none yet."""
    files.own_directory(directory)
    with files.locked(directory, "node"):
        # Under the lock, so that two agents started at once use one key.
        key_path = directory / KEY_FILE
        if not key_path.exists():
            files.write_private(key_path, certificates.key_to_pem(certificates.new_key()))
        key = _load_key(directory)
    return _request(key)


def store_identity(directory: Path, cert_pem: bytes, ca_pem: bytes) -> NodeIdentity:
    """Store the signed certificate, if it is for this node's key and by one of these CAs."""
    identity = _identity(_load_key(directory), cert_pem, Bundle.parse(ca_pem))
    replace_identity(directory, identity)
    return identity


def load_identity(directory: Path) -> NodeIdentity | None:
    """The stored identity; None if the node has not joined. Raises Unsafe."""
    path = directory / FILE
    try:
        content = files.read_private(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    try:
        certificate, *authorities = x509.load_pem_x509_certificates(content)
        own = certificates.certificate_to_pem(certificate)
        bundle = Bundle.parse(b"".join(map(certificates.certificate_to_pem, authorities)))
        return _identity(_key_within(content) or _load_key(directory), own, bundle)
    except Unsafe:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Unsafe(f"{path} is damaged ({error}): remove it and join again") from error


class Renewal:
    """A new key for a node that has an identity, in memory only until the server has signed it."""

    def __init__(self, held: NodeIdentity) -> None:
        self._held = held
        self._key = certificates.new_key()
        self.request = _request(self._key)

    def accept(self, cert_pem: bytes, now: datetime, ca_pem: bytes = b"") -> NodeIdentity:
        """The new identity, if the certificate is for this node and valid now.

        The CAs of the reply are adopted only if the node trusts each of them, or one that it trusts vouches
        for it. Otherwise the node keeps those it has.
        """
        bundle = self._held.bundle
        if ca_pem:
            with suppress(IdentityRefused):
                bundle = followed(self._held, ca_pem)
        renewed = _identity(self._key, cert_pem, bundle)
        if renewed.node_id != self._held.node_id:
            raise IdentityRefused(
                f"the certificate is for node {renewed.node_id}, this is {self._held.node_id}"
            )
        if renewed.period.end <= now or renewed.period.begin - now > certificates.CLOCK_SKEW:
            raise IdentityRefused(
                f"the certificate is for {renewed.period.begin:%Y-%m-%d %H:%M} to "
                f"{renewed.period.end:%Y-%m-%d %H:%M} UTC: the server's clock and this node's differ"
            )
        return renewed


def trusting(held: NodeIdentity, ca_pem: bytes) -> NodeIdentity:
    """The identity with the CAs that the server names. Raises IdentityRefused if no trusted CA vouches."""
    bundle = followed(held, ca_pem)
    return replace(held, ca_pem=bundle.roots_pem, links_pem=bundle.links_pem)


def followed(held: NodeIdentity, ca_pem: bytes) -> Bundle:
    bundle = Bundle.parse(ca_pem)
    bundle.check_follows(held.bundle)
    return bundle


def replace_identity(directory: Path, identity: NodeIdentity) -> None:
    """Replace key and certificate on disk atomically; after a crash the old pair is there and valid."""
    with files.locked(directory, "node"):
        files.write_private(directory / FILE, _content(identity))
        # Crash point: if the key file is left behind, the key in the identity file wins.
        (directory / KEY_FILE).unlink(missing_ok=True)


def _content(identity: NodeIdentity) -> bytes:
    return identity.cert_pem + identity.ca_pem + identity.links_pem + identity.key_pem


def _request(key: ec.EllipticCurvePrivateKey) -> bytes:
    # The subject stays empty: the server names the node.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def _identity(key: ec.EllipticCurvePrivateKey, cert_pem: bytes, bundle: Bundle) -> NodeIdentity:
    certificate = certificates.only_certificate(cert_pem)
    if not certificates.belong_together(key, certificate):
        raise IdentityRefused("the certificate is for another key than this node's")
    if bundle.issuer_of(certificate) is None:
        raise IdentityRefused("the certificate was not signed by the CA that came with it")
    return NodeIdentity(
        node_id=certificates.node_id_of(cert_pem),
        key_pem=certificates.key_to_pem(key),
        cert_pem=certificates.certificate_to_pem(certificate),
        ca_pem=bundle.roots_pem,
        links_pem=bundle.links_pem,
    )


def _key_within(content: bytes) -> ec.EllipticCurvePrivateKey | None:
    """The key in the identity file; an earlier release kept it in a file of its own."""
    begin = content.find(KEY_BEGIN)
    return None if begin < 0 else certificates.key_from_pem(content[begin:])


def _load_key(directory: Path) -> ec.EllipticCurvePrivateKey:
    path = directory / KEY_FILE
    try:
        return certificates.key_from_pem(files.read_private(path, MAX_FILE_BYTES))
    except FileNotFoundError as error:
        raise Unsafe(f"{path} is missing: empty {directory} and join again") from error
    except Unsafe:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Unsafe(f"{path} is not a key: empty {directory} and join again") from error
