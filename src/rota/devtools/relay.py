"""A TCP relay between a node and the agent listener, which can delay or break connections. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_CHUNK_BYTES = 65_536


class Relay:
    """Forwards bytes; each direction can be held up, and connections can be broken."""

    def __init__(self, target: str, tasks: asyncio.TaskGroup) -> None:
        self.address = ""
        self._host, _, self._port = target.rpartition(":")
        self._tasks = tasks
        self._to_server = asyncio.Event()
        self._to_node = asyncio.Event()
        self._breaks = False
        self._connections: dict[asyncio.Task[None], None] = {}
        self.heal()

    def cut(self, *, to_server: bool, to_node: bool) -> None:
        """Hold up traffic in these directions; neither side is notified, as on a dead link."""
        if to_server:
            self._to_server.clear()
        if to_node:
            self._to_node.clear()

    def break_all(self) -> None:
        """Abort every connection, and each new one immediately."""
        self._breaks = True
        for task in list(self._connections):
            task.cancel()

    def heal(self) -> None:
        """Resume forwarding; held-up bytes are delivered, as TCP guarantees."""
        self._breaks = False
        self._to_server.set()
        self._to_node.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._breaks:
            writer.transport.abort()
            return
        task = self._tasks.create_task(self._relay(reader, writer))
        self._connections[task] = None
        task.add_done_callback(self._connections.pop)

    async def _relay(self, from_node: asyncio.StreamReader, node: asyncio.StreamWriter) -> None:
        with contextlib.ExitStack() as closing:
            # Aborted, not closed: a close would wait until buffered bytes are sent, which a cut prevents.
            closing.callback(node.transport.abort)
            try:
                from_server, server = await asyncio.open_connection(self._host.strip("[]"), int(self._port))
                closing.callback(server.transport.abort)
                async with asyncio.TaskGroup() as directions:
                    directions.create_task(_forward(from_node, server, self._to_server))
                    directions.create_task(_forward(from_server, node, self._to_node))
            except* OSError:
                pass  # one side has closed, so both do


@contextlib.asynccontextmanager
async def relay_to(target: str) -> AsyncIterator[Relay]:
    """Run a relay to `target` on a free loopback port."""
    async with asyncio.TaskGroup() as tasks:
        relay = Relay(target, tasks)
        listener = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
        host, port = listener.sockets[0].getsockname()
        relay.address = f"{host}:{port}"
        try:
            yield relay
        finally:
            # First no new connections, then the end of the old ones.
            listener.close()
            relay.break_all()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    """Forward until one side closes; raise then, so that the task group ends the other direction, too."""
    while data := await reader.read(_CHUNK_BYTES):
        # Backpressure: while the gate is closed nothing more is read, so the sender's buffers fill up.
        await gate.wait()
        writer.write(data)
        await writer.drain()
    await gate.wait()
    writer.close()
    await writer.wait_closed()
    raise ConnectionResetError("the connection has ended")
