"""The addresses that a server publishes for the other servers, nodes and clients."""

import json
from dataclasses import asdict, dataclass

from rota.config import ConfigError, ServerConfig
from rota.model.names import is_loopback
from rota.wiring.listeners.ports import host_of


@dataclass(frozen=True)
class ServerRecord:
    """Public addresses of one server."""

    url: str
    agent: str
    controller: str


def server_record(config: ServerConfig) -> ServerRecord:
    listeners = (("http_server", config.http_server), ("grpc_server", config.grpc_server))
    for name, addr in (
        *((name, listener.addr) for name, listener in listeners),
        ("agent_server", config.agent_server.addr),
    ):
        if addr.endswith(":0") or host_of(addr) in ("0.0.0.0", "::"):
            raise ConfigError(
                f"{name}.addr", f"other servers cannot reach this one at {addr}", "name its host and port"
            )
    web = config.http_server
    scheme = "http" if is_loopback(host_of(web.addr)) and not web.use_tls else "https"
    return ServerRecord(f"{scheme}://{web.addr}", config.agent_server.addr, config.grpc_server.addr)


def to_bytes(record: ServerRecord) -> bytes:
    return json.dumps(asdict(record)).encode()


def from_bytes(text: bytes) -> ServerRecord:
    fields = json.loads(text)
    return ServerRecord(fields["url"], fields["agent"], fields["controller"])
