"""Connect checks, and the reasons why a server cannot be reached."""

import asyncio
import socket
import ssl
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rota.agent.dial import diagnose, probe_port
from rota.identity.authority import CertificateAuthority
from rota.identity.node_identity import NodeIdentity, make_request
from rota.testing.cluster import free_ports

AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER 0: a close becomes a reset


async def test_probing_an_open_port_sends_nothing() -> None:
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(await reader.read())
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        assert await probe_port(f"127.0.0.1:{port}") is None
        assert await received.get() == b""


async def test_probing_a_closed_port_returns_the_error() -> None:
    (port,) = free_ports(1)

    assert await probe_port(f"127.0.0.1:{port}") == "Connection refused"


async def test_an_unknown_host_name_returns_the_error() -> None:
    assert await probe_port("nobody.invalid:1") is not None


@pytest.mark.parametrize("resets", [False, True], ids=["a silent end", "a reset"])
async def test_a_close_after_the_handshake_means_the_certificate_is_refused(
    tmp_path: Path, *, resets: bool
) -> None:
    """A close or a reset, depending on whether our first bytes had arrived."""
    now = datetime.now(UTC)
    authority = CertificateAuthority.open(tmp_path / "ca", now)
    keys = authority.server_identity((), now)
    (tmp_path / "server.pem").write_bytes(keys.cert_pem + keys.key_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem")
    certificate = authority.sign_node(make_request(tmp_path), "n1", "node-1", now)
    node = NodeIdentity("n1", (tmp_path / "node.key").read_bytes(), certificate, authority.ca_pem)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if resets:
            door = writer.get_extra_info("socket")
            door.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        writer.transport.abort()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        problem = await diagnose(f"127.0.0.1:{port}", node)

    assert "does not accept this node's certificate" in problem


@pytest.mark.parametrize(
    "address", ["", "host", "host:", "host:x", "host:99999", "host:²", "a\0b:1", "x" * 300 + ":1"]
)
async def test_an_invalid_address_is_returned_as_an_error(address: str) -> None:
    assert await probe_port(address) is not None
