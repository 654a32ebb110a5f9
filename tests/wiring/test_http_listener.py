"""The HTTP listener's bounds on connections: handshakes, readers that stall, descriptors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.apiserver.api import CALLER
from rota.config import HttpServerConfig, ServerConfig
from rota.identity.authority import CertificateAuthority
from rota.wiring.listeners import ports
from rota.wiring.listeners.listener import ConnectionCounter

QUICK = HttpServerConfig(addr="127.0.0.1:0", head_seconds=1, body_seconds=1, idle_seconds=1)
LARGE = b"x" * (1 << 16)
LARGE_COUNT = 400  # more than the buffers of two kernels hold
ASK = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def answer_at_length(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(LARGE_COUNT):
        await send({"type": "http.response.body", "body": LARGE, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def answer_a_known_caller(scope: Scope, receive: Receive, send: Send) -> None:
    scope["state"][CALLER] = "alice"
    await answer_at_length(scope, receive, send)


@asynccontextmanager
async def web(
    tmp_path: Path, app: ASGIApp, addr: str = "127.0.0.1:0"
) -> AsyncIterator[tuple[ports.WebServer, int]]:
    now = datetime.now(UTC)
    config = ServerConfig(http_server=HttpServerConfig(addr=addr))
    served = ports.server_tls(config, CertificateAuthority.open(tmp_path / "ca", now), now)
    bound = ports.bind_http("127.0.0.1:0")
    bound.listen()
    server = ports.web_server(app, served, QUICK)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[bound]))
        try:
            async with asyncio.timeout(60):
                yield server, bound.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await asyncio.wait([serving])
            await server.close_all()
            bound.close()


@asynccontextmanager
async def dialled(port: int, data: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    try:
        writer.write(data)
        yield reader
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"])
async def test_a_handshake_that_is_never_finished_is_cut_off(tmp_path: Path, data: bytes) -> None:
    async with web(tmp_path, answer_at_length, "0.0.0.0:3000") as (server, port):
        assert server.scheme == "https"
        async with dialled(port, data) as reader:
            assert await reader.read() == b""


async def test_an_unauthenticated_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await answer_at_length(scope, receive, send)
        over.set()

    async with web(tmp_path, answer) as (_, port), dialled(port, ASK) as reader:
        await over.wait()

        seen = 0
        with contextlib.suppress(ConnectionResetError):
            while some := await reader.read(1 << 20):
                seen += len(some)
        assert seen < LARGE_COUNT * len(LARGE)


async def test_an_authenticated_client_may_read_slowly(tmp_path: Path) -> None:
    async with web(tmp_path, answer_a_known_caller) as (_, port), dialled(port, ASK) as slow:
        async with dialled(port) as silent:
            await silent.read()  # a second has passed

        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += await slow.read(1 << 20) or b"cut"
            assert not answer.endswith(b"cut")
        assert answer.count(LARGE) == LARGE_COUNT


def test_a_connection_is_released_once_however_often_it_is_called() -> None:
    counter = ConnectionCounter(total_max=2, per_address_max=1)
    release = counter.add("a")
    counter.add("b")
    assert counter.why_refused("c") == "no more than 2 connections are accepted"

    release()
    release()

    assert counter.why_refused("a") is None
    assert counter.why_refused("b") == "no more than 1 connections are accepted from one address"
