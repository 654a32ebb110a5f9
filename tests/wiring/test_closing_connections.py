"""A server that is closed in a running process leaves no client waiting."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from rota.config import HttpServerConfig, ServerConfig
from rota.identity.authority import CertificateAuthority
from rota.wiring.listeners import ports

HEAD: Message = {"type": "http.response.start", "status": 200, "headers": []}


async def for_ever(scope: Scope, receive: Receive, send: Send) -> None:
    del receive
    if scope["path"] == "/begun":
        await send(HEAD)
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
    scope["state"]["asked"].set()
    await asyncio.Event().wait()


@pytest.mark.parametrize("path", ["/begun", "/silent"])
async def test_a_client_of_an_endless_response_is_disconnected_at_close(tmp_path: Path, path: str) -> None:
    now = datetime.now(UTC)
    config = ServerConfig(http_server=HttpServerConfig(addr="127.0.0.1:0"))
    served = ports.server_tls(config, CertificateAuthority.open(tmp_path / "ca", now), now)
    asked = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await for_ever({**scope, "state": {"asked": asked}}, receive, send)

    bound = ports.bind_http("127.0.0.1:0")
    web = ports.web_server(app, served)
    bound.listen()
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(web.serve(sockets=[bound]))
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await asked.wait()

        web.should_exit = web.force_exit = True
        await asyncio.wait([serving])
        await web.close_all()
        async with asyncio.timeout(30):
            remaining = await reader.read()
    writer.close()
    bound.close()

    assert b"\r\n0\r\n" not in remaining  # no final chunk: the body was cut off
    assert b" 500 " not in remaining
    assert (b"first" in remaining) == (path == "/begun")
