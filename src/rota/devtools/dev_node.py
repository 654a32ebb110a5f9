"""One node of a dev cluster: its agent, a child of this process, with its keeper and tasks. [I/O]"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rota.devtools.relay import Relay
from rota.identity.tokens import JoinLine
from rota.model.cluster import DEFAULT
from rota.store.lock import AlreadyRunning, DirectoryLock
from rota.wiring import node_processes
from rota.wiring.agent import AGENT_LOCK
from rota.wiring.dev_users import DevUsers
from rota.wiring.process import open_private
from rota.wiring.server import RunningServer

_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.02  # a lock cannot be awaited


class DevNode:
    """A node that can be killed and started again; with a relay, its agent dials through it.

    `users` decides at each start as which user its tasks run.
    """

    def __init__(
        self,
        server: RunningServer,
        directory: Path,
        users: DevUsers,
        relay: Relay | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.name = directory.name
        self.directory = directory
        self.relay = relay
        self._server = server
        self._users = users
        self._flags = flags
        self._starting = asyncio.Lock()  # race: chaos and a change of users both start agents
        self._agent: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        return self._agent is not None and self._agent.returncode is None

    @property
    def is_ready(self) -> bool:
        """Whether the node is connected and open for tasks."""
        nodes = self._server.engine.mirror.nodes.values()
        return any(entry.open for entry in nodes if entry.spec.name == self.name)

    async def start(self) -> None:
        """Start the agent, unless it runs."""
        async with self._starting:
            if not self.runs:
                await self._start()

    async def restart_agent(self) -> None:
        """Replace the running agent; tasks continue under the keeper."""
        async with self._starting:
            if self.runs:
                await self.kill_agent()
                await self._start()

    async def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The port may differ from the last run.
        (self.directory / "server").write_text(self._server.addresses.agent + "\n")
        # Two agents of one directory would be two machines with one identity.
        await _end_leftover_agent(self.directory)
        with open_private(self.directory / "agent.log") as log:
            self._agent = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rota.cli.main", "agent"),
                *("--data-dir", str(self.directory), "--name", self.name, *self._users.flags, *self._flags),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment(),
            )

    def signal_agent(self, signum: int) -> None:
        if self._agent is not None and self.runs:
            self._agent.send_signal(signum)

    def signal_keeper(self, signum: int) -> None:
        for keeper in node_processes.keepers_of(self.directory):
            keeper.send(signum)

    async def kill_agent(self) -> None:
        self.signal_agent(signal.SIGKILL)
        if self._agent is not None:
            await self._agent.wait()

    async def kill(self) -> None:
        """Kill agent, keeper and tasks."""
        await self.kill_agent()
        await asyncio.to_thread(node_processes.kill_node, self.directory)

    def resume(self) -> None:
        self.signal_agent(signal.SIGCONT)
        self.signal_keeper(signal.SIGCONT)

    def ask_to_leave(self) -> None:
        """Ask the agent to leave, or to end if it is not connected and cannot deregister."""
        # An agent that is not connected cannot deregister, and would wait for its server until the timeout.
        self.signal_agent(signal.SIGINT if self.is_ready else signal.SIGTERM)

    async def has_left(self) -> None:
        """Wait until the agent has ended, and end its keeper and tasks, also if the agent was dead."""
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                if self._agent is not None:
                    await self._agent.wait()
        except TimeoutError:
            await self.kill_agent()
        await asyncio.to_thread(node_processes.end_nodes, [self.directory])

    def _environment(self) -> dict[str, str]:
        host, _, port = self._server.addresses.http.rpartition(":")
        secret = self._server.vault.make_join_token(time.time_ns() // 1_000_000, labels={}, cluster=DEFAULT)
        line = JoinLine(host.strip("[]"), int(port), secret, self._server.authority.fingerprint).render()
        # Not in argv, which any user can read. ROTA_KEEP_WORK: a replaced agent leaves its tasks to the next.
        own = {**os.environ, "ROTA_JOIN": line, "ROTA_KEEP_WORK": "true"}
        return own if self.relay is None else {**own, "ROTA_SERVER_ADDR": self.relay.address}


async def _end_leftover_agent(directory: Path) -> None:
    """End an agent that a killed dev cluster has left behind; its tasks continue."""
    async with asyncio.timeout(_STOP_SECONDS):
        while True:
            try:
                DirectoryLock(directory, AGENT_LOCK).release()
                return
            except AlreadyRunning as running_already:
                # Race: the pid in the lock may be stale, so only an agent of this directory is ended.
                for agent in node_processes.agents_of(directory):
                    if agent.pid == running_already.pid:
                        agent.send(signal.SIGTERM)
                await asyncio.sleep(_POLL_SECONDS)
