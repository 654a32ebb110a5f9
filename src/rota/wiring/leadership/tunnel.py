"""The agent port of a standby: each connection is forwarded, byte for byte, to the leader. [I/O]

TLS is between the agent and the leader. So the node's certificate, the epoch and the echoes that fence old
orders reach the other end as they were sent, and a standby can neither read nor forge them. While no leader
is known the port is closed: thousands of agents that look for a leader then cost a refused connection each,
not a handshake.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from rota.model.names import host_and_port

log = structlog.get_logger("rota.standby")

_CHUNK_BYTES = 65_536
_CONNECT_SECONDS = 2.0
_REOPEN_SECONDS = 1.0


class Tunnel:
    """Listens at `address` while `leader` returns one; `changed` waits until that may be another one."""

    def __init__(
        self,
        address: str,
        leader: Callable[[], str | None],
        changed: Callable[[str | None], Awaitable[None]],
    ) -> None:
        self._address = address
        self._leader = leader
        self._changed = changed

    async def run(self) -> None:
        """Forward until cancelled; connections to a server that no longer leads are closed."""
        while True:
            leader = self._leader()
            if leader is None:
                await self._changed(None)
                continue
            try:
                # One group per leader: when it ends, every connection to the old leader ends with it.
                async with asyncio.TaskGroup() as connections:
                    await self._serve(leader, connections)
            except* OSError as errors:
                log.warning("agent port not open", address=self._address, reason=str(errors.exceptions[0]))
                await asyncio.sleep(_REOPEN_SECONDS)

    async def _serve(self, leader: str, connections: asyncio.TaskGroup) -> None:
        open_now: dict[asyncio.Task[None], None] = {}

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = connections.create_task(_forward(leader, reader, writer))
            open_now[task] = None
            task.add_done_callback(open_now.pop)

        listening = await asyncio.start_server(accept, *host_and_port(self._address))
        try:
            await self._changed(leader)
        finally:
            listening.close()
            # Only after the listener is closed: no new connection can be accepted for the old leader.
            for task in list(open_now):
                task.cancel()


async def _forward(leader: str, agent_reads: asyncio.StreamReader, agent: asyncio.StreamWriter) -> None:
    with contextlib.ExitStack() as ending:
        # Abort, not close: an agent must notice at once that it has to connect to another server.
        ending.callback(agent.transport.abort)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                leader_reads, connected = await asyncio.open_connection(*host_and_port(leader))
            ending.callback(connected.transport.abort)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(_copy(agent_reads, connected))
                directions.create_task(_copy(leader_reads, agent))
        except* (OSError, TimeoutError):
            pass  # one side has ended, so both do


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Raises ConnectionResetError at the end of the stream, so that the other direction ends as well."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        # Backpressure: the copy reads no faster than the other side writes, so a slow peer costs no memory.
        await writer.drain()
    raise ConnectionResetError("the connection has ended")
