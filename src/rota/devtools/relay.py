"""A node's way to the agent door: everything passes unchanged, until it is told otherwise. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_CHUNK_BYTES = 65_536


class Relay:
    """Bytes in both directions; each can be held up, and connections can be broken."""

    def __init__(self, target: str, tasks: asyncio.TaskGroup) -> None:
        self.address = ""
        self._host, _, self._port = target.rpartition(":")
        self._tasks = tasks
        self._to_server = asyncio.Event()
        self._to_node = asyncio.Event()
        self._breaks = False
        self._carrying: dict[asyncio.Task[None], None] = {}
        self.heal()

    def cut(self, *, to_server: bool, to_node: bool) -> None:
        """Hold up what goes this way: as on a dead line nothing arrives, and nobody is told."""
        if to_server:
            self._to_server.clear()
        if to_node:
            self._to_node.clear()

    def break_all(self) -> None:
        """End every connection, and each new one at once."""
        self._breaks = True
        for task in list(self._carrying):
            task.cancel()

    def heal(self) -> None:
        """What was held up goes on; nothing was lost, as TCP would have it."""
        self._breaks = False
        self._to_server.set()
        self._to_node.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._breaks:
            writer.transport.abort()
            return
        task = self._tasks.create_task(self._carry(reader, writer))
        self._carrying[task] = None
        task.add_done_callback(self._carrying.pop)

    async def _carry(self, node_says: asyncio.StreamReader, node: asyncio.StreamWriter) -> None:
        with contextlib.ExitStack() as ending:
            ending.callback(node.transport.abort)
            try:
                server_says, server = await asyncio.open_connection(self._host.strip("[]"), int(self._port))
                ending.callback(server.transport.abort)
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(_forward(node_says, server, self._to_server))
                    ways.create_task(_forward(server_says, node, self._to_node))
            except* OSError:
                pass  # one side has ended, so both do


@contextlib.asynccontextmanager
async def relay_to(target: str) -> AsyncIterator[Relay]:
    """On loopback, on any free port."""
    async with asyncio.TaskGroup() as tasks:
        relay = Relay(target, tasks)
        listening = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
        host, port = listening.sockets[0].getsockname()
        relay.address = f"{host}:{port}"
        try:
            yield relay
        finally:
            listening.close()
            relay.break_all()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    """Until one side has ended, which is an error so that the other way ends too."""
    while data := await reader.read(_CHUNK_BYTES):
        await gate.wait()
        writer.write(data)
        await writer.drain()
    await gate.wait()
    writer.close()
    await writer.wait_closed()
    raise ConnectionResetError("the connection has ended")
