"""Common parts of all certificates: keys, fingerprints, periods of use, and the node a certificate names."""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rota.identity.errors import IdentityRefused

NODE_URI = "rota://node/"
SERVER_URI = "rota://server"
WATCHER_URI = "rota://watcher/"
NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
CLOCK_SKEW = timedelta(hours=2)  # a clock may be behind, or set back an hour
RENEW_AT = 0.5  # share of its life; as much again is left for retries
RENEW_JITTER = 0.1  # share of its life, at most: certificates made together are not renewed together
WARN_AT = 0.2  # share of its life left; renewal should have happened long before


class Period(NamedTuple):
    """The time in which a certificate is used."""

    begin: datetime
    end: datetime

    @property
    def life(self) -> timedelta:
        return self.end - self.begin

    def renew_after(self, jitter: float) -> datetime:
        """The time from which it is to be replaced; `jitter` is a random number from 0 to 1."""
        return self.begin + self.life * (RENEW_AT + RENEW_JITTER * jitter)

    def is_due(self, now: datetime, jitter: float) -> bool:
        """Whether it should be replaced at `now`.

        A certificate from the future was made while the clock was ahead, so its end is meaningless.
        """
        return now >= self.renew_after(jitter) or self.begin - now > CLOCK_SKEW

    def is_ending(self, now: datetime) -> bool:
        """Whether so little of its life is left that the operator should be warned."""
        return self.end - now < self.life * WARN_AT


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_from_pem(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key")
    return key


def belong_together(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    return key.public_key() == certificate.public_key()


def certificate_to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def only_certificate(pem: bytes) -> x509.Certificate:
    """The only certificate in `pem`. A second one is refused, as TLS would trust it unchecked."""
    if pem.count(b"-----BEGIN") != 1:
        raise IdentityRefused("expected exactly one PEM certificate")
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise IdentityRefused("not a PEM certificate") from error


def fingerprint_of(certificate: x509.Certificate) -> str:
    der = certificate.public_bytes(serialization.Encoding.DER)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def period_of(cert_pem: bytes) -> Period:
    """The period of use: that of the key if it is stated, else that of the certificate."""
    certificate = first_certificate(cert_pem)
    try:
        stated = certificate.extensions.get_extension_for_class(x509.PrivateKeyUsagePeriod).value
    except x509.ExtensionNotFound:
        return Period(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    begin, end = stated.not_before, stated.not_after
    return Period(
        certificate.not_valid_before_utc if begin is None else begin.replace(tzinfo=UTC),
        certificate.not_valid_after_utc if end is None else end.replace(tzinfo=UTC),
    )


def first_certificate(pem: bytes) -> x509.Certificate:
    """The first certificate of a chain, which is the holder's own."""
    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError as error:
        raise IdentityRefused("not a PEM certificate") from error


def valid_until(cert_pem: bytes) -> datetime:
    """When TLS stops accepting it; for a node, the end of the time in which it can be renewed."""
    return first_certificate(cert_pem).not_valid_after_utc


def node_uri(node_id: str) -> str:
    if not NODE_ID.fullmatch(node_id):
        raise IdentityRefused(
            "node_id: expected 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
    return NODE_URI + node_id


def node_id_of(cert_pem: bytes) -> str:
    """The node that a certificate names. The CA made it, so the format needs no second check."""
    for uri in _uris(cert_pem):
        if uri.startswith(NODE_URI):
            return uri.removeprefix(NODE_URI)
    raise IdentityRefused(f"not a node's certificate: it has no name starting with {NODE_URI}")


def is_server(cert_pem: bytes) -> bool:
    """Whether a certificate of the CA is a server's, which may forward calls on behalf of others."""
    return SERVER_URI in _uris(cert_pem)


def may_forward(cert_pem: bytes) -> bool:
    """Whether it is a server's or a watcher's, which forward calls and state their origin."""
    return bool(cert_pem) and (is_server(cert_pem) or watcher_id_of(cert_pem) is not None)


def watcher_uri(watcher_id: str) -> str:
    if not NODE_ID.fullmatch(watcher_id):
        raise IdentityRefused("watcher_id: expected 1 to 128 letters, digits, '.', '_' or '-'")
    return WATCHER_URI + watcher_id


def watcher_id_of(cert_pem: bytes) -> str | None:
    """The watcher that a certificate of the CA names; None if it is not a watcher's."""
    own = (uri for uri in _uris(cert_pem) if uri.startswith(WATCHER_URI))
    return next((uri.removeprefix(WATCHER_URI) for uri in own), None)


def key_id_of(certificate: x509.Certificate) -> str:
    """The key id of an authority, by which the certificates it signed refer to it."""
    return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()


def issuer_key_id(cert_pem: bytes) -> str:
    """The key id of the authority that a certificate names as its issuer; empty if it names none."""
    try:
        found = first_certificate(cert_pem).extensions.get_extension_for_class(x509.AuthorityKeyIdentifier)
    except x509.ExtensionNotFound:
        return ""
    return (found.value.key_identifier or b"").hex()


def usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _uris(cert_pem: bytes) -> list[str]:
    try:
        names = only_certificate(cert_pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound as error:
        raise IdentityRefused("not a node's certificate: it has no names") from error
    return names.value.get_values_for_type(x509.UniformResourceIdentifier)
