"""A bundle: certificates of all trusted authorities, and links by which one vouches for the next.

A root is an authority's own certificate. A link is a cross-signed certificate: for the key of a newer
authority, signed by the older one, under the same name (RFC 4210, "new with old"). A peer that shows its
certificate with the link is accepted by verifiers that know either authority, so the two sides may learn of a
rotation in any order.
"""

from collections.abc import Iterable
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from rota.identity import certificates
from rota.identity.errors import IdentityRefused

CERTIFICATES_MAX = 8  # two roots and two links during a rotation; more are never sent


class Bundle(NamedTuple):
    """Trusted authorities and the links between them, as sent to nodes and watchers."""

    roots: tuple[x509.Certificate, ...]  # the signing one first
    links: tuple[x509.Certificate, ...] = ()  # the newest first

    @classmethod
    def parse(cls, pem: bytes) -> "Bundle":
        if pem.count(b"-----BEGIN CERTIFICATE-----") > CERTIFICATES_MAX:
            raise IdentityRefused(f"expected at most {CERTIFICATES_MAX} PEM certificates of authorities")
        try:
            found = x509.load_pem_x509_certificates(pem)
        except ValueError as error:
            raise IdentityRefused("not PEM certificates of authorities") from error
        roots = tuple(certificate for certificate in found if is_issued_by(certificate, certificate))
        if not roots or not all(map(_is_authority, found)):
            raise IdentityRefused("not certificates of authorities")
        return cls(roots, tuple(certificate for certificate in found if certificate not in roots))

    @property
    def roots_pem(self) -> bytes:
        """The certificates that a verifier trusts."""
        return _pem(self.roots)

    @property
    def links_pem(self) -> bytes:
        """The certificates to send after one that the first root has signed."""
        return _pem(self.links)

    @property
    def pem(self) -> bytes:
        return self.roots_pem + self.links_pem

    def issuer_of(self, certificate: x509.Certificate) -> x509.Certificate | None:
        """The root that has signed the certificate directly."""
        return next((root for root in self.roots if is_issued_by(certificate, root)), None)

    def trusts(self, fingerprint: str) -> bool:
        """Whether the authority with this fingerprint, as in a join line, is trusted."""
        return any(certificates.fingerprint_of(root) == fingerprint for root in self.roots)

    def check_follows(self, held: "Bundle") -> None:
        """Raise IdentityRefused unless each root is in `held`, or one in `held` vouches for it by a link.

        The connection is not proof enough: a watcher has a server's name in its certificate, and must not be
        able to give nodes another authority.
        """
        trusted = list(held.roots)
        for link in reversed(self.links):  # the oldest first: it may vouch for the next one
            if any(is_issued_by(link, root) for root in trusted):
                trusted += [root for root in self.roots if root.public_key() == link.public_key()]
                trusted.append(link)
        if any(root not in trusted for root in self.roots):
            raise IdentityRefused("an unknown authority was named, and no trusted one vouches for it")


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def linked(
    newer: x509.Certificate, older: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """A certificate for the key of `newer`, signed by the key of `older`.

    Both authorities have the same name, so the link counts as self-issued, and the path length of `older`,
    which allows no authority below it, does not forbid it.
    """
    assert newer.subject == older.subject, "a link is between authorities of one cluster"
    issuer_key = key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(newer.subject)
        .issuer_name(older.subject)
        .public_key(newer.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(newer.not_valid_before_utc, older.not_valid_before_utc))
        .not_valid_after(min(newer.not_valid_after_utc, older.not_valid_after_utc))
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )
    for kind in (x509.BasicConstraints, x509.KeyUsage, x509.SubjectKeyIdentifier):
        extension = newer.extensions.get_extension_for_class(kind)
        builder = builder.add_extension(extension.value, critical=extension.critical)
    return builder.sign(key, hashes.SHA256())


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _pem(found: Iterable[x509.Certificate]) -> bytes:
    return b"".join(map(certificates.certificate_to_pem, found))
