"""The worker gateway, where it is configured: who may register, and whose certificates are believed. [I/O]"""

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
    config: ServerConfig, engine: Engine, door: NodeService, vault: Vault, *servers: grpc.aio.Server
) -> Gateway | None:
    """The gateway that serves at these gRPC servers, None where it is not enabled."""
    if not config.worker_gateway.enabled:
        return None
    trusted = _trusted(config, config.grpc_server)
    scheduler = SchedulerService(engine, door, admission(config, vault), speaks_tls=trusted is not None)
    for server in servers:
        scheduler.serve(server)
    return Gateway(engine, door, trusted)


def admission(config: ServerConfig, vault: Vault) -> Callable[[str], bool]:
    """Who may register workers at this server's gRPC port: on loopback anybody, elsewhere an admin's token.

    A registration that a standby forwards is let in by both servers.
    """
    is_open = is_loopback(host_of(config.grpc_server.addr))

    def may_enter(authorization: str) -> bool:
        token = vault.authenticate(authorization.removeprefix("Bearer ").strip(), time.time_ns() // 1_000_000)
        is_admin = token is not None and token.role >= Role.ADMIN and ALL_NAMESPACES in token.namespaces
        return is_open or is_admin

    return may_enter


def gateway_line(addresses: Addresses) -> str:
    """What the server's first lines say of an open gateway: where it is, and who may call it."""
    doors = (("register at", addresses.controller), ("start jobs at", addresses.http))
    told = [
        f"{what} {addr} {'without' if is_loopback(host_of(addr)) else 'with'} a token" for what, addr in doors
    ]
    return f"Worker gateway open: workers {told[0]}, clients {told[1]}"


def _trusted(config: ServerConfig, listens: GrpcServerConfig) -> bytes | None:
    """Workers speak TLS where we do; who vouches for ours vouches for theirs, unless another is named."""
    file = config.worker_gateway.ca_file or (listens.crt_file if listens.use_tls else None)
    return None if file is None else Path(file).read_bytes()
