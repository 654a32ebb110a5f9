"""Reconnects of an agent, and its leave with and without a server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, cast

import grpc
import pytest

from rota.agent.backoff import Backoff
from rota.agent.run import Agent, AgentSettings
from rota.agent.session import AgentSession, ServerGone
from rota.identity.authority import CertificateAuthority
from rota.identity.node_identity import NodeIdentity, make_request, store_identity
from rota.model.messages import JobReports
from rota.testing.light_agents import PretendRuntime
from rota.wire.generated import agent_pb2 as pb
from rota.wire.generated import agent_pb2_grpc as pb_grpc

WELCOME = pb.ToNode(epoch=1, welcome=pb.Welcome(name="a", heartbeat_ms=5000, spread_ms=8192))


class Noted(Backoff):
    """A backoff of 0 by default that records its calls."""

    def __init__(self, loss_seconds: float = 0.0) -> None:
        super().__init__(Random(1))
        self._loss_seconds = loss_seconds
        self.asked: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self.welcomed = asyncio.Event()

    def reset(self, heartbeat_seconds: float) -> None:
        super().reset(heartbeat_seconds)
        self.welcomed.set()

    def after_loss(self, lease_seconds: float | None) -> float:
        del lease_seconds
        self.asked.put_nowait(("loss", self.spread_seconds))
        return self._loss_seconds

    def after_round(self, lease_seconds: float | None) -> float:
        del lease_seconds
        self.asked.put_nowait(("round", self.spread_seconds))
        return 0.01


class FakeService(pb_grpc.AgentServicer):
    """A server that welcomes every agent, and ends the stream on demand or after a leave."""

    def __init__(self, *, welcomes: bool = True) -> None:
        self.ending = asyncio.Event()
        self.hellos: asyncio.Queue[None] = asyncio.Queue()
        self.goodbyes: asyncio.Queue[str] = asyncio.Queue()
        self._welcomes = welcomes

    async def Connect(self, messages: AsyncIterator[pb.FromNode], context: Any) -> None:  # noqa: N802 - gRPC chooses this name
        await anext(aiter(messages))
        self.hellos.put_nowait(None)
        if self._welcomes:
            await context.write(WELCOME)
        async with asyncio.TaskGroup() as tasks:
            hearing = tasks.create_task(self._hear(messages))
            await self.ending.wait()
            hearing.cancel()

    async def _hear(self, messages: AsyncIterator[pb.FromNode]) -> None:
        async for message in messages:
            if message.HasField("leave"):
                self.goodbyes.put_nowait(message.leave.reason)
                self.ending.set()


class Quits(PretendRuntime):
    """A runtime that ends when it is told to quit."""

    def __init__(self, directory: Path) -> None:
        super().__init__("a", directory)
        self._notified = asyncio.Event()

    async def events(self) -> AsyncIterator[list[JobReports]]:
        await self._notified.wait()
        nothing: list[list[JobReports]] = []
        for reports in nothing:
            yield reports

    async def quit(self) -> None:
        self._notified.set()


@asynccontextmanager
async def calling(tmp_path: Path, service: FakeService) -> AsyncIterator[tuple[Noted, grpc.aio.Server]]:
    """An agent with this server as its only one."""
    async with called(tmp_path, service) as (agent, server):
        noted = agent._backoff = Noted()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(agent.run())
            yield noted, server
            running.cancel()


@asynccontextmanager
async def called(tmp_path: Path, service: FakeService) -> AsyncIterator[tuple[Agent, grpc.aio.Server]]:
    now = datetime.now(UTC)
    authority = CertificateAuthority.open(tmp_path / "ca", now)
    keys = authority.server_identity([], now)
    server = grpc.aio.server()
    pb_grpc.add_AgentServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated
    tls = grpc.ssl_server_credentials([(keys.key_pem, keys.cert_pem)], keys.ca_pem, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", tls)
    await server.start()
    agent = Agent(
        AgentSettings(tmp_path / "node", (f"127.0.0.1:{port}",), "a", "1", {}, {}, {}, container="none"),
        _identity(authority, tmp_path / "node", now),
        Quits(tmp_path),
    )
    try:
        yield agent, server
    finally:
        await server.stop(None)


def _identity(authority: CertificateAuthority, directory: Path, now: datetime) -> NodeIdentity:
    directory.mkdir(mode=0o700)
    return store_identity(
        directory, authority.sign_node(make_request(directory), "n1", "a", now), authority.ca_pem
    )


async def test_a_server_that_disconnects_is_called_again_within_the_spread(tmp_path: Path) -> None:
    service = FakeService()
    async with calling(tmp_path, service) as (noted, _):
        await service.hellos.get()
        service.ending.set()

        assert await noted.asked.get() == ("loss", 8.192)
        await service.hellos.get()


async def test_an_unreachable_server_is_probed_round_after_round(tmp_path: Path) -> None:
    service = FakeService()
    async with calling(tmp_path, service) as (noted, server):
        await noted.welcomed.wait()
        await server.stop(None)

        assert await noted.asked.get() == ("loss", 8.192)
        assert await noted.asked.get() == ("round", 8.192)
        assert await noted.asked.get() == ("round", 8.192)


async def test_a_server_that_never_welcomed_us_was_not_lost(tmp_path: Path) -> None:
    service = FakeService(welcomes=False)
    service.ending.set()
    async with calling(tmp_path, service) as (noted, _):
        assert await noted.asked.get() == ("round", 0.0)


async def test_an_agent_told_to_leave_while_disconnected_calls_once_more(tmp_path: Path) -> None:
    service = FakeService()
    async with called(tmp_path, service) as (agent, _), asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        noted = agent._backoff = Noted(loss_seconds=0.5)
        tasks.create_task(agent.run())
        await service.hellos.get()
        service.ending.set()
        await noted.asked.get()
        service.ending.clear()
        await agent.leave()

    assert service.goodbyes.get_nowait() == "it was told to leave, and has stopped its work"


async def test_an_agent_told_to_leave_without_a_server_just_leaves(tmp_path: Path) -> None:
    service = FakeService()
    async with (
        called(tmp_path, service) as (agent, server),
        asyncio.timeout(60),
        asyncio.TaskGroup() as tasks,
    ):
        noted = agent._backoff = Noted(loss_seconds=0.5)
        tasks.create_task(agent.run())
        await noted.welcomed.wait()
        await server.stop(None)
        await noted.asked.get()
        await agent.leave()

    assert service.goodbyes.empty()


async def test_a_keeper_that_ends_during_the_drain_does_not_block_the_leave(
    tmp_path: Path,
) -> None:
    """A service manager may stop both at once."""
    service = FakeService()
    async with called(tmp_path, service) as (agent, _), asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(agent.run())
        await service.hellos.get()
        await agent.drain(0.0)
        await agent._runtime.quit()
        await agent._ended.wait()
        await agent.leave()

    assert service.goodbyes.get_nowait() == "it was told to leave, and has stopped its work"


class Ended:
    """An ended call: a write may find that out before the reading side does."""

    async def write(self, message: pb.FromNode) -> None:
        del message
        raise asyncio.InvalidStateError


async def test_a_send_on_an_ended_call_raises_server_gone() -> None:
    with pytest.raises(ServerGone):
        await AgentSession(cast("Any", Ended())).send(pb.FromNode(beat=pb.Beat()))
