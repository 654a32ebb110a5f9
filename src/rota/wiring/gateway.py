"""The worker gateway, where it is configured: who may register, and whose certificates are believed. [I/O]"""

import time
from pathlib import Path

import grpc

from rota.config import GrpcServer, ServerConfig
from rota.engine.run import Engine
from rota.gateway.rpc import SchedulerDoor
from rota.gateway.run import Gateway
from rota.gateway.standin import NodeDoor
from rota.identity.tokens import Role
from rota.identity.vault import Vault
from rota.model.addresses import is_loopback
from rota.wiring.doors import host_of


class Closed:
    """Nobody may register, so nobody is dialled."""

    async def run(self) -> None:
        return


def open_gateway(
    config: ServerConfig, engine: Engine, door: NodeDoor, vault: Vault, server: grpc.aio.Server
) -> Gateway | Closed:
    if not config.worker_gateway.enabled:
        return Closed()
    listens = config.grpc_server
    is_open = is_loopback(host_of(listens.addr))

    def may_enter(authorization: str) -> bool:
        token = vault.who(authorization.removeprefix("Bearer ").strip(), time.time_ns() // 1_000_000)
        return is_open or (token is not None and token.role >= Role.ADMIN)

    trusted = _trusted(config, listens)
    SchedulerDoor(engine, door, may_enter, speaks_tls=trusted is not None).serve(server)
    return Gateway(engine, door, trusted)


def _trusted(config: ServerConfig, listens: GrpcServer) -> bytes | None:
    """Workers speak TLS where we do; who vouches for ours vouches for theirs, unless another is named."""
    file = config.worker_gateway.ca_file or (listens.crt_file if listens.use_tls else None)
    return None if file is None else Path(file).read_bytes()
