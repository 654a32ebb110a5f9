"""What all certificates here share: keys, fingerprints, lifetimes, and the node one speaks for."""

import hashlib
import re
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rota.identity.errors import Refused

NODE_URI = "rota://node/"
NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
CLOCK_SKEW = timedelta(hours=2)  # valid so long before it is made: a clock may be behind, or set back an hour


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
    """The one certificate in `pem`. A second one is refused: TLS would trust it unseen."""
    if pem.count(b"-----BEGIN") != 1:
        raise Refused("expected exactly one PEM certificate")
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise Refused("not a PEM certificate") from error


def fingerprint_of(certificate: x509.Certificate) -> str:
    der = certificate.public_bytes(serialization.Encoding.DER)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def expires_at(cert_pem: bytes) -> datetime:
    return only_certificate(cert_pem).not_valid_after_utc


def renew_after(cert_pem: bytes) -> datetime:
    """Half-life: as much time again is left for trying."""
    certificate = only_certificate(cert_pem)
    made, end = certificate.not_valid_before_utc + CLOCK_SKEW, certificate.not_valid_after_utc
    return made + (end - made) / 2


def node_uri(node_id: str) -> str:
    if not NODE_ID.fullmatch(node_id):
        raise Refused(
            "node_id: expected 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
    return NODE_URI + node_id


def node_id_of(cert_pem: bytes) -> str:
    """The node a certificate speaks for. The CA made it, so the form needs no second check."""
    try:
        names = only_certificate(cert_pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound as error:
        raise Refused("not a node's certificate: it names nobody") from error
    for uri in names.value.get_values_for_type(x509.UniformResourceIdentifier):
        if uri.startswith(NODE_URI):
            return uri.removeprefix(NODE_URI)
    raise Refused(f"not a node's certificate: it has no name beginning with {NODE_URI}")
