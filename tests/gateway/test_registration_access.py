"""The gateway is closed unless it is opened; without a token it is open on loopback, and nowhere else."""

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

ELSEWHERE = Addresses("10.0.0.1:3000", "10.0.0.1:50001", "10.0.0.1:50000")
REGISTER = b"\x0a\x0b127.0.0.1:9"  # address, at a port where nobody is
PATHS = ("/start", "/stop", "/query", "/stream")


class Answering:
    """Workers that are always there."""

    async def is_responsive(self, node: NodeId) -> bool:
        del node
        return True


async def test_a_gateway_that_is_off_has_no_routes(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        strangers = [(await server.call("POST", path, {}, Authorization="")).status for path in PATHS]
        known = [(await server.call("POST", path, {})).status for path in PATHS]

    assert strangers == [401] * 4
    assert known == [404] * 4


async def test_on_loopback_its_own_routes_and_no_others_are_open(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, workers=Answering()) as server:
        answers = [await server.call("POST", path, {}, Authorization="") for path in PATHS[1:]]
        closed = await server.call("GET", "/v1/jobs", Authorization="")
        page = await server.call("POST", "/start", {}, Authorization="", Origin="http://elsewhere")

    assert [(answer.status, answer.json) for answer in answers] == [(500, {"error": "worker not found"})] * 3
    assert (closed.status, page.status) == (401, 403)


async def test_elsewhere_its_routes_need_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, workers=Answering(), addresses=ELSEWHERE) as server:
        strangers = [(await server.call("POST", path, {}, Authorization="")).status for path in PATHS]
        known = await server.call("POST", "/query", {})

    assert strangers == [401] * 4
    assert (known.status, known.json) == (500, {"error": "worker not found"})


async def test_elsewhere_a_worker_registers_with_an_administrators_token_only(tmp_path: Path) -> None:
    config = ServerConfig(
        grpc_server=GrpcServerConfig("10.0.0.1:1"), worker_gateway=WorkerGatewayConfig(enabled=True)
    )
    door: Any = None  # nobody speaks there before a worker is dialled
    async with serving(tmp_path, MemoryStore) as server:
        workers = grpc.aio.server()
        port = workers.add_insecure_port("127.0.0.1:0")
        open_gateway(config, server.engine, door, server.api.vault, workers)
        closed = open_gateway(ServerConfig(), server.engine, door, server.api.vault, workers)
        await workers.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            register: Any = channel.unary_unary("/jobscheduler.Scheduler/RegisterWorker")
            strangers = ("", "Bearer rota_wrong")
            others = (server.token_for(Role.OPERATOR, "*"), server.token_for(Role.ADMIN, "default"))
            for said in (*strangers, *others):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await register(REGISTER, metadata=(("authorization", said),))
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            taken = await register(REGISTER, metadata=(("authorization", f"Bearer {server.token}"),))
        await workers.stop(0)

    assert taken.startswith(b"\x08\x01")
    assert closed is None
