"""A whole TLS handshake in memory: two real endpoints, no sockets, nothing to wait for."""

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rota.identity.authority import SERVER_NAME, KeyPair
from rota.identity.node_identity import NodeIdentity


@dataclass(frozen=True, slots=True)
class Outcome:
    """The node id the server saw, or the error that ended the handshake on either side."""

    peer_uri: str | None = None
    error: str = ""

    @property
    def accepted(self) -> bool:
        return self.peer_uri is not None


def shake(server: KeyPair, node: NodeIdentity | None, *, ca_pem: bytes, host: str = SERVER_NAME) -> Outcome:
    """`node` shows its certificate to `server`, which it checks against `ca_pem` and `host`."""
    server_side = _End(_server_context(server), server_side=True)
    client_side = _End(_client_context(node, ca_pem), server_side=False, host=host)
    try:
        while not (server_side.done and client_side.done):
            client_side.step()
            server_side.outgoing_to(client_side)
            client_side.outgoing_to(server_side)
            server_side.step()
            server_side.outgoing_to(client_side)
            client_side.outgoing_to(server_side)
    except ssl.SSLError as error:
        return Outcome(error=str(error))
    names = server_side.tls.getpeercert() or {}
    uris = [str(value) for kind, value in names.get("subjectAltName", ()) if kind == "URI"]  # type: ignore[str-unpack]
    return Outcome(peer_uri=uris[0])


@dataclass
class _End:
    context: ssl.SSLContext
    server_side: bool
    host: str | None = None
    incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    done: bool = False

    def __post_init__(self) -> None:
        self.tls = self.context.wrap_bio(self.incoming, self.outgoing, self.server_side, self.host)

    def step(self) -> None:
        if self.done:
            return
        try:
            self.tls.do_handshake()
            self.done = True
        except ssl.SSLWantReadError:
            pass

    def outgoing_to(self, other: "_End") -> None:
        other.incoming.write(self.outgoing.read())


def _server_context(server: KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=server.ca_pem.decode())
    _load_chain(context, server.cert_pem, server.key_pem)
    return context


def _client_context(node: NodeIdentity | None, ca_pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca_pem.decode())
    if node is not None:
        _load_chain(context, node.chain_pem, node.key_pem)
    return context


def _load_chain(context: ssl.SSLContext, cert_pem: bytes, key_pem: bytes) -> None:
    with tempfile.NamedTemporaryFile() as pair:
        Path(pair.name).write_bytes(key_pem + cert_pem)
        context.load_cert_chain(pair.name)
