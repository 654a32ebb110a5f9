"""The gateway is off by default; it accepts callers without a token on loopback only."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from rota.apiserver.api import Addresses
from rota.config import GrpcServerConfig, ServerConfig, WorkerGatewayConfig
from rota.identity.tokens import Role
from rota.model.ids import NodeId
from rota.store.memory import MemoryStore
from rota.wiring.gateway import open_gateway
from tests.apiserver.serving import serving

NOT_LOOPBACK = Addresses("10.0.0.1:3000", "10.0.0.1:50001", "10.0.0.1:50000")
REGISTER = b"\x0a\x0b127.0.0.1:9"  # an address whose port no worker listens at
PATHS = ("/start", "/stop", "/query", "/stream")


class ReachableWorkers:
    """Workers that always answer."""

    async def is_responsive(self, node: NodeId) -> bool:
        del node
        return True


async def test_a_gateway_that_is_off_has_no_routes(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        without_token = [(await server.call("POST", path, {}, Authorization="")).status for path in PATHS]
        known = [(await server.call("POST", path, {})).status for path in PATHS]

    assert without_token == [401] * 4
    assert known == [404] * 4


async def test_on_loopback_only_its_own_routes_need_no_token(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, workers=ReachableWorkers()) as server:
        answers = [await server.call("POST", path, {}, Authorization="") for path in PATHS[1:]]
        closed = await server.call("GET", "/v1/jobs", Authorization="")
        page = await server.call("POST", "/start", {}, Authorization="", Origin="http://elsewhere")

    assert [(answer.status, answer.json) for answer in answers] == [(500, {"error": "worker not found"})] * 3
    assert (closed.status, page.status) == (401, 403)


async def test_off_loopback_its_routes_need_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, workers=ReachableWorkers(), addresses=NOT_LOOPBACK) as server:
        without_token = [(await server.call("POST", path, {}, Authorization="")).status for path in PATHS]
        known = await server.call("POST", "/query", {})

    assert without_token == [401] * 4
    assert (known.status, known.json) == (500, {"error": "worker not found"})


async def test_off_loopback_a_worker_registers_only_with_an_admin_token(tmp_path: Path) -> None:
    config = ServerConfig(
        grpc_server=GrpcServerConfig("10.0.0.1:1"), worker_gateway=WorkerGatewayConfig(enabled=True)
    )
    service: Any = None  # unused until a worker is dialled
    async with serving(tmp_path, MemoryStore) as server:
        workers = grpc.aio.server()
        port = workers.add_insecure_port("127.0.0.1:0")
        open_gateway(config, server.engine, service, server.api.vault, workers)
        closed = open_gateway(ServerConfig(), server.engine, service, server.api.vault, workers)
        await workers.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            register: Any = channel.unary_unary("/jobscheduler.Scheduler/RegisterWorker")
            without_token = ("", "Bearer rota_wrong")
            others = (server.token_for(Role.OPERATOR, "*"), server.token_for(Role.ADMIN, "default"))
            for authorization in (*without_token, *others):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await register(REGISTER, metadata=(("authorization", authorization),))
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            accepted = await register(REGISTER, metadata=(("authorization", f"Bearer {server.token}"),))
        await workers.stop(0)

    assert accepted.startswith(b"\x08\x01")
    assert closed is None
