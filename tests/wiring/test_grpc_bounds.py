"""Connections to a gRPC listener: idle ones are closed, their number is limited, long calls continue."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from rota.wiring.listeners import ports

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes(3) + b"\x04\x00" + bytes(4)
BOUNDS = ports.GrpcLimits(
    message_bytes=1 << 20, connections=20, streams=100, idle_seconds=1, handshake_seconds=1
)


class Clock(grpc.GenericRpcHandler):
    """Answers each message with a message."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        del handler_call_details
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    server = ports.grpc_server(BOUNDS)
    server.add_generic_rpc_handlers((Clock(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(60):
            yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def dialled(port: int, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        yield reader
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "data", [b"", PREFACE[:10], PREFACE, PREFACE + SETTINGS], ids=["nothing", "half", "preface", "settings"]
)
async def test_a_connection_without_a_call_is_closed(data: bytes) -> None:
    async with serving() as port, dialled(port, data) as reader:
        await reader.read()  # returns when the server has closed it


async def test_a_long_call_is_not_idle() -> None:
    async with serving() as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream("/any/Call")()
        await call.write(b"first")
        assert await call.read() == b"first"
        for _ in range(3):
            async with dialled(port, b"") as silent:
                await silent.read()

        await call.write(b"second")
        assert await call.read() == b"second"
        call.cancel()


async def test_there_are_no_more_connections_than_allowed() -> None:
    async with serving() as port:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(BOUNDS.connections)]
        async with dialled(port, PREFACE + SETTINGS) as one_more:
            assert await one_more.read() == b""
        for _, writer in opened:
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("error", "logged"), [(grpc.aio.InternalError("execute_batch"), False), (ValueError("a bug"), True)]
)
async def test_a_status_that_a_gone_client_cannot_be_sent_is_not_logged(
    error: Exception, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ports.grpc_server(BOUNDS)
    logging.getLogger("grpc._cython.cygrpc").error("failed", exc_info=error)

    assert bool(caplog.records) is logged
