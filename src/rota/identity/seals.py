"""Seals: bytes that a server gives to a node, and knows again as its own when that node returns them."""

import hashlib
import hmac

_SEAL_BYTES = hashlib.sha256().digest_size


class Seals:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def seal(self, node: str, content: bytes) -> bytes:
        """The content, readable by anybody, with a seal that only this cluster's servers can make."""
        return self._made(node, content) + content

    def unseal(self, node: str, sealed: bytes) -> bytes | None:
        """The content; None: no server has sealed it for that node."""
        given, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        return content if hmac.compare_digest(given, self._made(node, content)) else None

    def _made(self, node: str, content: bytes) -> bytes:
        return hmac.new(self._secret, f"{len(node)}:{node}:".encode() + content, hashlib.sha256).digest()
