"""Seals: bytes that a server gives to a node, and knows again as its own when that node returns them."""

import hashlib
import hmac
from collections.abc import Callable, Sequence

_SEAL_BYTES = hashlib.sha256().digest_size


class Seals:
    def __init__(self, secrets: Callable[[], Sequence[bytes]]) -> None:
        """`secrets` are asked for each time: the first one seals, all are known again."""
        self._secrets = secrets

    def seal(self, node: str, content: bytes) -> bytes:
        """The content, readable by anybody, with a seal that only this cluster's servers can make."""
        return _made(self._secrets()[0], node, content) + content

    def unseal(self, node: str, sealed: bytes) -> bytes | None:
        """The content; None: no server has sealed it for that node."""
        given, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        made = (_made(secret, node, content) for secret in self._secrets())
        return content if any(hmac.compare_digest(given, one) for one in made) else None


def _made(secret: bytes, node: str, content: bytes) -> bytes:
    return hmac.new(secret, f"{len(node)}:{node}:".encode() + content, hashlib.sha256).digest()
