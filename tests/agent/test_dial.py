"""Whether a server opens is found out before anything dear is tried."""

import asyncio

from rota.agent.dial import knock
from rota.testing.cluster import free_ports


async def test_an_open_door_is_not_spoken_through() -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await reader.read())
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        assert await knock(f"127.0.0.1:{port}") is None
        assert await heard.get() == b""


async def test_a_closed_door_tells_why() -> None:
    (port,) = free_ports(1)

    assert await knock(f"127.0.0.1:{port}") == "Connection refused"


async def test_a_name_that_nobody_has_tells_why() -> None:
    assert await knock("nobody.invalid:1") is not None
