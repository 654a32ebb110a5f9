"""HTTP requests that a node signs with its key: the certificate, a digest of the body and the signature.

The signature covers method, path and digest, but no time: it is for idempotent requests, so replaying one has
no effect beyond what the node has done itself. It works through a proxy and on a plain text port, where a
client certificate of the connection would not.
"""

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rota.identity import certificates
from rota.identity.bundles import Bundle
from rota.identity.errors import IdentityRefused
from rota.identity.node_identity import NodeIdentity

SCHEME = "node"  # of the authorization header
HEADER_MAX = 8192  # a certificate of ours has some 600 bytes
_PURPOSE = "rota signed request 1"


class RequestSignature(NamedTuple):
    """The node that signed a request, and the digest of its body."""

    node: str
    digest: str

    def covers(self, body: bytes) -> bool:
        return digest_of(body) == self.digest


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def sign_request(identity: NodeIdentity, method: str, path: str, body: bytes) -> str:
    """The value of the authorization header for one request of a node."""
    digest = digest_of(body)
    key = certificates.key_from_pem(identity.key_pem)
    signature = key.sign(_content(method, path, digest), ec.ECDSA(hashes.SHA256()))
    certificate = certificates.only_certificate(identity.cert_pem)
    der = certificate.public_bytes(serialization.Encoding.DER)
    return f"{SCHEME} {_text(der)}.{digest}.{_text(signature)}"


def verify_request(value: str, method: str, path: str, ca_pem: bytes, now: datetime) -> RequestSignature:
    """The signer of a request with this authorization header. Raises IdentityRefused if it is no node."""
    try:
        der, digest, signature = value[:HEADER_MAX].partition(" ")[2].split(".")
        certificate = x509.load_der_x509_certificate(urlsafe_b64decode(der))
        if Bundle.parse(ca_pem).issuer_of(certificate) is None:
            raise InvalidSignature
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise TypeError("Rota's own agents have no other keys")
        key.verify(urlsafe_b64decode(signature), _content(method, path, digest), ec.ECDSA(hashes.SHA256()))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise IdentityRefused("this request is not signed by a node of this cluster") from error
    pem = certificates.certificate_to_pem(certificate)
    period = certificates.period_of(pem)
    if not period.begin - certificates.CLOCK_SKEW <= now < period.end:
        raise IdentityRefused(
            f"the node's certificate is for {period.begin:%Y-%m-%d} to {period.end:%Y-%m-%d}"
        )
    return RequestSignature(certificates.node_id_of(pem), digest)


def _content(method: str, path: str, digest: str) -> bytes:
    return f"{_PURPOSE}\n{method}\n{path}\n{digest}".encode()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()
