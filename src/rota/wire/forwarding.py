"""Metadata of gRPC calls that standbys and watchers make for their callers, as the leader reads it.

Only a connection that shows a server's or a watcher's certificate may carry it: at the agent port, where such
calls arrive, it is not believed from others, and it is removed from what callers send.
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


def forwarded(said: Iterable[tuple[str, str | bytes]] | None, peer: str) -> Metadata:
    """The caller's own metadata, its token included, marked as forwarded on its behalf."""
    kept = tuple(
        (key, value)
        for key, value in said or ()
        if key not in _OURS and key not in _OF_THE_CONNECTION and not key.startswith(("grpc-", ":"))
    )
    return (*kept, (FORWARDED, "1"), (ORIGIN, peer))


def shown_certificate(context: Any) -> bytes:
    """The client certificate of the connection, PEM; empty where none was asked for."""
    return bytes(next(iter(context.auth_context().get("x509_pem_cert", ())), b""))


def stated_certificate(context: Any) -> bytes:
    """The agent's certificate, as the watcher that calls for it states it; empty: it states none."""
    stated = dict(context.invocation_metadata() or ()).get(NODE_CERTIFICATE, b"")
    return stated if isinstance(stated, bytes) else b""


def origin(context: Any, may_forward: Callable[[bytes], bool]) -> str:
    """The caller's address; of a call by a certificate that `may_forward`, the one that it states."""
    if not may_forward(shown_certificate(context)):
        return str(context.peer())
    return str(dict(context.invocation_metadata() or ()).get(ORIGIN, context.peer()))
