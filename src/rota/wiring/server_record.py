"""What a server tells others of itself."""

import json
from dataclasses import asdict, dataclass

from rota.config import ConfigError, ServerConfig
from rota.model.names import is_loopback
from rota.wiring.listeners.ports import host_of


@dataclass(frozen=True)
class ServerRecord:
    url: str
    agent: str
    controller: str


def server_record(config: ServerConfig) -> ServerRecord:
    doors = (("http_server", config.http_server), ("grpc_server", config.grpc_server))
    for name, addr in (
        *((name, door.addr) for name, door in doors),
        ("agent_server", config.agent_server.addr),
    ):
        if addr.endswith(":0") or host_of(addr) in ("0.0.0.0", "::"):
            raise ConfigError(
                f"{name}.addr", f"others cannot find this server at {addr}", "name its host and port"
            )
    web = config.http_server
    scheme = "http" if is_loopback(host_of(web.addr)) and not web.use_tls else "https"
    return ServerRecord(f"{scheme}://{web.addr}", config.agent_server.addr, config.grpc_server.addr)


def to_bytes(card: ServerRecord) -> bytes:
    return json.dumps(asdict(card)).encode()


def from_bytes(text: bytes) -> ServerRecord:
    said = json.loads(text)
    return ServerRecord(said["url"], said["agent"], said["controller"])
