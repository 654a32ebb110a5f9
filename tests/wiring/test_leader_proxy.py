"""What a standby forwards: metadata of calls, and connections of agents."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from rota.identity import certificates
from rota.identity.authority import CertificateAuthority
from rota.identity.node_identity import make_request
from rota.testing.cluster import free_ports
from rota.wire import forwarding
from rota.wiring.leadership.leader_proxy import LeaderChannel
from rota.wiring.leadership.tunnel import Tunnel


def test_the_callers_token_is_forwarded_and_its_forwarding_metadata_is_not() -> None:
    metadata = [
        ("authorization", "Bearer rota_x"),
        ("rota-forwarded", "1"),
        ("rota-origin", "ipv4:1.2.3.4:5"),
        ("grpc-timeout", "1S"),
        ("user-agent", "grpc-go"),
        ("trace", "7"),
    ]

    assert forwarding.forwarded(metadata, "ipv4:9.9.9.9:9") == (
        ("authorization", "Bearer rota_x"),
        ("trace", "7"),
        ("rota-forwarded", "1"),
        ("rota-origin", "ipv4:9.9.9.9:9"),
    )


def test_a_server_certificate_differs_from_a_node_certificate(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = CertificateAuthority.open(tmp_path / "ca", now)
    node = authority.sign_node(make_request(tmp_path / "node"), "n1", "one", now)

    assert certificates.is_server(authority.server_identity(["10.0.0.1"], now).cert_pem)
    assert not certificates.is_server(node)


class Led:
    """The leader, as known to a standby."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self._changed = asyncio.Condition()

    async def say(self, leader: str | None) -> None:
        self.leader = leader
        async with self._changed:
            self._changed.notify_all()

    async def changed(self, known: str | None) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.leader != known)


async def greet(name: bytes) -> tuple[asyncio.Server, str]:
    """A server that answers each line with its name."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(name + b" received " + line)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def eventually(try_it: Callable[[], Awaitable[bytes]]) -> bytes:
    """The answer of the first try that is not refused: a port opens and closes a moment after it is due."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await try_it()
            except OSError:
                await asyncio.sleep(0)


async def test_a_tunnel_forwards_to_the_leader_and_is_closed_without_one() -> None:
    led = Led()
    port = free_ports(1)[0]
    first, first_address = await greet(b"first")
    second, second_address = await greet(b"second")
    tunnel = asyncio.get_running_loop().create_task(
        Tunnel(f"127.0.0.1:{port}", lambda: led.leader, led.changed).run()
    )

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        answer = await reader.readline()
        writer.close()
        if not answer:
            raise ConnectionResetError
        return answer

    with pytest.raises(ConnectionRefusedError):
        await ask()
    await led.say(first_address)
    answers = [await eventually(ask)]
    kept, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"still there\n")
    answers.append(await kept.readline())
    await led.say(second_address)
    cut = await kept.read()
    writer.close()
    answers.append(await eventually(ask))
    tunnel.cancel()
    await asyncio.wait([tunnel])
    first.close()
    second.close()

    assert answers == [b"first received hello\n", b"first received still there\n", b"second received hello\n"]
    assert cut == b""


async def test_a_call_to_the_previous_leader_ends_well_and_closes_its_channel(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    pair = CertificateAuthority.open(tmp_path / "ca", now).server_identity(["127.0.0.1"], now)
    servers, addresses = [], []
    for _ in range(2):
        server = grpc.aio.server()
        credentials = grpc.ssl_server_credentials([(pair.key_pem, pair.cert_pem)], pair.ca_pem, True)
        addresses.append(f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}")
        await server.start()
        servers.append(server)
    leader = addresses[0]
    following: Any = SimpleNamespace(
        leader_record=lambda: SimpleNamespace(agent=leader),
        leader_changes=lambda _: asyncio.Event().wait(),
    )
    route = LeaderChannel(following, "", lambda: pair)

    async with route.reached(20) as (first, old):
        leader = addresses[1]
        async with route.reached(20) as (second, _):
            still_open = old.get_state()
    closed = old.get_state()
    await route.close()
    for server in servers:
        await server.stop(None)

    assert [first, second] == addresses
    assert still_open is grpc.ChannelConnectivity.READY
    assert closed is grpc.ChannelConnectivity.SHUTDOWN
