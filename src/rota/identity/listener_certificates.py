"""Certificates of a server's listeners: signed by the cluster's authority, or an operator's files. [I/O]

Both are replaced while the server runs. `refresh` is polled every few seconds with the wall clock, so that a
machine that was suspended renews when it resumes.
"""

import os
import random
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from rota.identity import certificates
from rota.identity.authority import CertificateAuthority, KeyPair
from rota.identity.certificates import Period
from rota.identity.errors import IdentityRefused

MAX_FILE_BYTES = 1 << 20  # a chain of many certificates is some 20 kB


class ServingPair(Protocol):
    """The key and certificate to serve with now."""

    pair: KeyPair
    period: Period

    def refresh(self, now: datetime) -> bool:
        """Replace `pair` if due; returns whether it was. Raises IdentityRefused, `pair` unchanged."""


class SignedPair:
    """Signed by the cluster's CA; renewed at half of its life plus a random part.

    When the CA is rotated, it is signed again immediately.
    """

    def __init__(self, authority: CertificateAuthority, hosts: Sequence[str], now: datetime) -> None:
        self._authority = authority
        self._hosts = hosts
        self._sign(now)

    def refresh(self, now: datetime) -> bool:
        if self._bundle != self._authority.bundle:
            self._sign(now)
            return True
        # A certificate that ends with the CA cannot be renewed to end later.
        is_last = self.period.end >= self._authority.period.end and self.period.begin <= now
        if is_last or not self.period.is_due(now, self._jitter):
            return False
        self._sign(now)
        return True

    def _sign(self, now: datetime) -> None:
        self._bundle = self._authority.bundle  # first: if it changes meanwhile, the next refresh signs again
        self.pair = self._authority.server_identity(self._hosts, now)
        self.period = self.pair.period
        self._jitter = random.random()


class FilePair:
    """An operator's files, read again when they change. Raises IdentityRefused if unusable at the start."""

    def __init__(self, crt_file: str, key_file: str) -> None:
        self._crt_file, self._key_file = Path(crt_file), Path(key_file)
        self._stamp = self._stamps()
        self._read()

    def refresh(self, now: datetime) -> bool:
        del now
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        # Race: the operator replaces two files one after the other. A pair that does not match is refused
        # now, and read again when the second file has changed.
        self._stamp = stamp
        self._read()
        return True

    def _stamps(self) -> tuple[object, ...]:
        return (_stamp(self._crt_file), _stamp(self._key_file))

    def _read(self) -> None:
        cert_pem, key_pem = _content(self._crt_file), _content(self._key_file)
        try:
            certificate = certificates.first_certificate(cert_pem)
            key = serialization.load_pem_private_key(key_pem, password=None)
        except IdentityRefused:
            raise IdentityRefused(f"{self._crt_file} is not a PEM certificate") from None
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a key with a password
            raise IdentityRefused(f"{self._key_file} is not a PEM key without a password") from None
        if key.public_key() != certificate.public_key():
            raise IdentityRefused(f"{self._key_file} is not the key of {self._crt_file}")
        self.pair = KeyPair(key_pem, cert_pem, b"")
        self.period = self.pair.period


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise IdentityRefused(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise IdentityRefused(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content
