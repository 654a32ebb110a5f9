"""Seals: bytes that a server gives to a node, and recognises as its own when the node returns them."""

import hashlib
import hmac
from collections.abc import Callable, Sequence

_SEAL_BYTES = hashlib.sha256().digest_size


class Seals:
    """Signs bytes for a node, and checks that signature when they come back."""

    def __init__(self, secrets: Callable[[], Sequence[bytes]]) -> None:
        """`secrets` is called each time: the first one seals, and all of them unseal."""
        self._secrets = secrets

    def seal(self, node: str, content: bytes) -> bytes:
        """The content, not encrypted, with a signature that only this cluster's servers can make."""
        return _signature(self._secrets()[0], node, content) + content

    def unseal(self, node: str, sealed: bytes) -> bytes | None:
        """The content; None if no server has sealed it for that node."""
        given, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        valid = (_signature(secret, node, content) for secret in self._secrets())
        return content if any(hmac.compare_digest(given, expected) for expected in valid) else None


def _signature(secret: bytes, node: str, content: bytes) -> bytes:
    return hmac.new(secret, f"{len(node)}:{node}:".encode() + content, hashlib.sha256).digest()
