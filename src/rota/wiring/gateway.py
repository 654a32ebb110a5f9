"""The worker gateway, if enabled: which workers may register, and which CA they are checked by. [I/O]"""

import time
from collections.abc import Callable
from pathlib import Path

import grpc

from rota.apiserver.access import ALL_NAMESPACES
from rota.apiserver.api import Addresses
from rota.config import GrpcServerConfig, ServerConfig
from rota.engine.run import Engine
from rota.gateway.proxy_node import NodeService
from rota.gateway.registration_service import SchedulerService
from rota.gateway.run import Gateway
from rota.identity.tokens import Role
from rota.identity.vault import Vault
from rota.model.names import is_loopback
from rota.wiring.listeners.ports import host_of


def open_gateway(
    config: ServerConfig, engine: Engine, sessions: NodeService, vault: Vault, *servers: grpc.aio.Server
) -> Gateway | None:
    """Register the gateway at these gRPC servers; None if it is not enabled."""
    if not config.worker_gateway.enabled:
        return None
    trusted = _trusted(config, config.grpc_server)
    scheduler = SchedulerService(engine, sessions, admission(config, vault), speaks_tls=trusted is not None)
    for server in servers:
        scheduler.serve(server)
    return Gateway(engine, sessions, trusted)


def admission(config: ServerConfig, vault: Vault) -> Callable[[str], bool]:
    """Which authorization may register workers: any on loopback, elsewhere the token of an admin.

    A registration that a standby forwards is checked by both servers.
    """
    is_open = is_loopback(host_of(config.grpc_server.addr))

    def may_register(authorization: str) -> bool:
        token = vault.authenticate(authorization.removeprefix("Bearer ").strip(), time.time_ns() // 1_000_000)
        is_admin = token is not None and token.role >= Role.ADMIN and ALL_NAMESPACES in token.namespaces
        return is_open or is_admin

    return may_register


def gateway_line(addresses: Addresses) -> str:
    """The start-up line about an open gateway: its addresses, and whether they need a token."""
    ports = (("register at", addresses.controller), ("start jobs at", addresses.http))
    parts = [
        f"{what} {addr} {'without' if is_loopback(host_of(addr)) else 'with'} a token" for what, addr in ports
    ]
    return f"Worker gateway open: workers {parts[0]}, clients {parts[1]}"


def _trusted(config: ServerConfig, listener: GrpcServerConfig) -> bytes | None:
    """The CA for workers, PEM: the configured one, or that of the gRPC port. None: plain text."""
    file = config.worker_gateway.ca_file or (listener.crt_file if listener.use_tls else None)
    return None if file is None else Path(file).read_bytes()
