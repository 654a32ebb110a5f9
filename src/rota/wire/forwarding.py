"""Metadata of gRPC calls that standbys and watchers make for their callers, as the leader reads it.

Only connections with the certificate of a server or a watcher may carry it: at the agent port, where such
calls arrive, it is ignored from others, and it is removed from the metadata that callers send themselves.
"""

from collections.abc import Callable, Iterable
from typing import Any

FORWARDED = "rota-forwarded"  # a standby that receives it does not forward again
ORIGIN = "rota-origin"  # the address of the original caller, for the audit log
NODE_CERTIFICATE = "rota-node-certificate-bin"  # of the agent for which a watcher calls; PEM
LEADER = "rota-leader"  # in the trailing metadata of a failed call: the address of the server that leads
_OURS = (FORWARDED, ORIGIN, NODE_CERTIFICATE)
_OF_THE_CONNECTION = ("user-agent", "te", "content-type")

Metadata = tuple[tuple[str, str | bytes], ...]


def forwarded(metadata: Iterable[tuple[str, str | bytes]] | None, peer: str) -> Metadata:
    """The caller's own metadata, its token included, marked as forwarded on its behalf."""
    own = tuple(
        (key, value)
        for key, value in metadata or ()
        if key not in _OURS and key not in _OF_THE_CONNECTION and not key.startswith(("grpc-", ":"))
    )
    return (*own, (FORWARDED, "1"), (ORIGIN, peer))


def shown_certificate(context: Any) -> bytes:
    """The client certificate of the connection as PEM; empty if the listener requires none."""
    return bytes(next(iter(context.auth_context().get("x509_pem_cert", ())), b""))


def stated_certificate(context: Any) -> bytes:
    """The agent's certificate in the metadata of a watcher's call on its behalf; empty: there is none."""
    stated = dict(context.invocation_metadata() or ()).get(NODE_CERTIFICATE, b"")
    return stated if isinstance(stated, bytes) else b""


def origin(context: Any, may_forward: Callable[[bytes], bool]) -> str:
    """The address of the original caller: the stated one if the certificate `may_forward`, else the peer."""
    if not may_forward(shown_certificate(context)):
        return str(context.peer())
    return str(dict(context.invocation_metadata() or ()).get(ORIGIN, context.peer()))
