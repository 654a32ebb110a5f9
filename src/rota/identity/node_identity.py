"""The node's side of its identity: a key that never leaves it, and the certificate it was given."""

import hmac
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rota.identity import certificates, files
from rota.identity.errors import Refused, Unsafe

MAX_FILE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What a node shows to the server, and what it checks the server against."""

    node_id: str
    key_pem: bytes = field(repr=False)
    cert_pem: bytes
    ca_pem: bytes

    @property
    def expires_at(self) -> datetime:
        return certificates.expires_at(self.cert_pem)

    @property
    def renew_after(self) -> datetime:
        return certificates.renew_after(self.cert_pem)


def check_fingerprint(ca_pem: bytes, fingerprint: str) -> bool:
    """Is this exactly the CA that the operator named, and nothing beside it?"""
    try:
        actual = certificates.fingerprint_of(certificates.only_certificate(ca_pem))
    except Refused:
        return False
    return hmac.compare_digest(actual.encode(), fingerprint.strip().lower().encode())


def make_request(directory: Path) -> bytes:
    """A signing request (PEM) for this node's key, which is made if there is none yet."""
    files.own_directory(directory)
    with files.locked(directory, "node"):
        key_path = directory / "node.key"
        if not key_path.exists():
            files.write_private(key_path, certificates.key_to_pem(certificates.new_key()))
        key = _load_key(directory)
    # The subject stays empty: the server alone says who a node is.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def store_identity(directory: Path, cert_pem: bytes, ca_pem: bytes) -> NodeIdentity:
    """Keep what the server answered, if it is for this node's key and from this CA."""
    identity = _identity(_load_key(directory), cert_pem, ca_pem)
    with files.locked(directory, "node"):
        # One file, the node id inside the certificate: the three cannot come apart.
        files.write_private(directory / "node.pem", identity.cert_pem + identity.ca_pem)
    return identity


def load_identity(directory: Path) -> NodeIdentity | None:
    """None on a node that has not joined."""
    path = directory / "node.pem"
    try:
        content = files.read_private(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    try:
        certificate, ca = x509.load_pem_x509_certificates(content)
        own, issuer = certificates.certificate_to_pem(certificate), certificates.certificate_to_pem(ca)
        return _identity(_load_key(directory), own, issuer)
    except Unsafe:
        raise
    except ValueError as error:
        raise Unsafe(f"{path} is damaged ({error}): remove it and join again") from error


def _identity(key: ec.EllipticCurvePrivateKey, cert_pem: bytes, ca_pem: bytes) -> NodeIdentity:
    certificate, ca = certificates.only_certificate(cert_pem), certificates.only_certificate(ca_pem)
    if not certificates.belong_together(key, certificate):
        raise Refused("the certificate is for another key than this node's")
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise Refused("the certificate was not signed by the CA that came with it") from error
    return NodeIdentity(
        node_id=certificates.node_id_of(cert_pem),
        key_pem=certificates.key_to_pem(key),
        cert_pem=certificates.certificate_to_pem(certificate),
        ca_pem=certificates.certificate_to_pem(ca),
    )


def _load_key(directory: Path) -> ec.EllipticCurvePrivateKey:
    path = directory / "node.key"
    try:
        return certificates.key_from_pem(files.read_private(path, MAX_FILE_BYTES))
    except FileNotFoundError as error:
        raise Unsafe(f"{path} is missing: empty {directory} and join again") from error
    except Unsafe:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Unsafe(f"{path} is not a key: empty {directory} and join again") from error
