"""The identity of a watcher, on the watcher: a key that never leaves it, and its certificate.

`watcher.pem` holds certificate, CAs and key in one file, replaced atomically, so that they always match.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization

from rota.identity import certificates, files
from rota.identity.authority import KeyPair
from rota.identity.bundles import Bundle
from rota.identity.errors import IdentityRefused, Unsafe

FILE = "watcher.pem"
MAX_FILE_BYTES = 65_536
_KEY_BEGIN = b"-----BEGIN PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class WatcherIdentity:
    """The certificate and key of a watcher, and the CAs by which it checks agents and the leader."""

    watcher_id: str
    cert_pem: bytes
    key_pem: bytes = field(repr=False)
    bundle: Bundle = field(repr=False)

    @property
    def pair(self) -> KeyPair:
        return KeyPair(self.key_pem, self.cert_pem + self.bundle.links_pem, self.bundle.roots_pem)

    @property
    def is_current(self) -> bool:
        """Whether the certificate was signed by the current CA."""
        return certificates.key_id_of(self.bundle.roots[0]) == certificates.issuer_key_id(self.cert_pem)

    def trusting(self, ca_pem: bytes) -> "WatcherIdentity":
        """The identity with the CAs that the leader names. Raises IdentityRefused unless vouched for."""
        bundle = Bundle.parse(ca_pem)
        bundle.check_follows(self.bundle)
        return replace(self, bundle=bundle)


class WatcherRequest:
    """A new key, in memory only until the leader has signed it."""

    def __init__(self) -> None:
        self._key = certificates.new_key()
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        self.request = request.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def accept(self, cert_pem: bytes, ca_pem: bytes, now: datetime) -> WatcherIdentity:
        """The new identity, if the certificate is a watcher's, for this key, by these CAs and valid now."""
        identity = _identity(certificates.key_to_pem(self._key), cert_pem, Bundle.parse(ca_pem))
        period = identity.pair.period
        if period.end <= now or period.begin - now > certificates.CLOCK_SKEW:
            raise IdentityRefused(
                f"the certificate is for {period.begin:%Y-%m-%d %H:%M} to {period.end:%Y-%m-%d %H:%M} UTC: "
                "the server's clock and this watcher's differ"
            )
        return identity


def store_watcher(directory: Path, identity: WatcherIdentity) -> None:
    files.own_directory(directory)
    with files.locked(directory, "watcher"):
        content = identity.cert_pem + identity.bundle.pem + identity.key_pem
        files.write_private(directory / FILE, content)


def load_watcher(directory: Path) -> WatcherIdentity | None:
    """The stored identity; None if no watcher has joined. Raises Unsafe."""
    path = directory / FILE
    try:
        content = files.read_private(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    try:
        certificate, *authorities = x509.load_pem_x509_certificates(content)
        own = certificates.certificate_to_pem(certificate)
        bundle = Bundle.parse(b"".join(map(certificates.certificate_to_pem, authorities)))
        return _identity(content[content.index(_KEY_BEGIN) :], own, bundle)
    except Unsafe:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Unsafe(f"{path} is damaged ({error}): remove it and join again") from error


def _identity(key_pem: bytes, cert_pem: bytes, bundle: Bundle) -> WatcherIdentity:
    certificate = certificates.only_certificate(cert_pem)
    if not certificates.belong_together(certificates.key_from_pem(key_pem), certificate):
        raise IdentityRefused("the certificate is for another key than this watcher's")
    if bundle.issuer_of(certificate) is None:
        raise IdentityRefused("the certificate was not signed by the CA that came with it")
    watcher_id = certificates.watcher_id_of(cert_pem)
    if watcher_id is None:
        raise IdentityRefused("not a watcher's certificate")
    return WatcherIdentity(watcher_id, cert_pem, key_pem, bundle)
