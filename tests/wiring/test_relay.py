"""A relay forwards everything, delays it, or breaks connections, as it is ordered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from rota.devtools.relay import Relay, relay_to

PATIENCE_SECONDS = 60.0
LARGE = bytes(range(256)) * 20_000


@dataclass
class Echo:
    """A server that echoes what it receives, and records it."""

    answers: bool = True
    received: bytearray = field(default_factory=bytearray)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                self.received += data
                self.news.set()
                if self.answers:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[Echo, Relay]]:
    server = Echo()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), relay_to(f"127.0.0.1:{port}") as relay:
            yield server, relay
    finally:
        listening.close()


@asynccontextmanager
async def dialled(relay: Relay) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = relay.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_everything_passes_unchanged_in_both_directions() -> None:
    async with echo() as (_, relay), dialled(relay) as (reader, writer):
        writer.write(LARGE)

        assert await reader.readexactly(len(LARGE)) == LARGE


async def test_the_end_of_one_side_reaches_the_other_after_all_its_data() -> None:
    async with echo() as (server, relay), dialled(relay) as (_, writer):
        server.answers = False
        writer.write(LARGE)
        await writer.drain()
        writer.close()
        await server.ended.wait()

        assert server.received == LARGE


async def test_a_cut_connection_is_silent_and_delivers_when_it_is_healed() -> None:
    async with echo() as (server, relay), dialled(relay) as (reader, writer):
        relay.cut(to_server=True, to_node=True)
        writer.write(b"hello")
        assert not await comes(reader)
        assert server.received == b""

        relay.heal()

        assert await reader.readexactly(5) == b"hello"


async def test_one_direction_can_be_cut_alone() -> None:
    async with echo() as (server, relay), dialled(relay) as (reader, writer):
        relay.cut(to_server=False, to_node=True)
        writer.write(b"hello")
        await server.news.wait()
        assert server.received == b"hello"
        assert not await comes(reader)

        relay.heal()

        assert await reader.readexactly(5) == b"hello"


async def test_an_end_of_stream_does_not_pass_a_cut_connection() -> None:
    async with echo() as (server, relay), dialled(relay) as (reader, writer):
        writer.write(b"hello")
        await reader.readexactly(5)
        relay.cut(to_server=True, to_node=True)
        writer.close()
        assert not await happens(server.ended)

        relay.heal()

        await server.ended.wait()


async def test_a_stalled_connection_buffers_little() -> None:
    """Backpressure: what is not forwarded is not read, so that the sender blocks."""
    async with echo() as (_, relay), dialled(relay) as (_, writer):
        relay.cut(to_server=True, to_node=True)
        writer.write(bytes(100_000_000))

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await writer.drain()


async def test_connections_break_and_new_ones_fail_until_it_is_healed() -> None:
    async with echo() as (server, relay), dialled(relay) as (reader, writer):
        writer.write(b"hello")
        await reader.readexactly(5)

        relay.break_all()

        assert await ends(reader)
        await server.ended.wait()
        async with dialled(relay) as (again, _):
            assert await ends(again)
        relay.heal()
        async with dialled(relay) as (third, to_third):
            to_third.write(b"back")
            assert await third.readexactly(4) == b"back"


async def test_an_unreachable_server_ends_the_connection() -> None:
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        relay_to("127.0.0.1:1") as relay,
        dialled(relay) as (reader, _),
    ):
        assert await ends(reader)


async def comes(reader: asyncio.StreamReader) -> bool:
    """Whether anything arrives within a moment; nothing can be awaited that is not to happen."""
    try:
        async with asyncio.timeout(0.2):
            return bool(await reader.read(1))
    except TimeoutError:
        return False


async def happens(event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(0.2):
            return await event.wait()
    except TimeoutError:
        return False


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
