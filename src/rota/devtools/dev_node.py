"""One node of a dev cluster: its agent, which is a child of ours, its keeper and its work. [I/O]"""

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
_LOOK_SECONDS = 0.02  # nobody tells when a lock is free


class DevNode:
    """Started as often as it takes; where there is a relay, the agent calls through it.

    `users` decides at each start who its work runs as.
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
        self._starting = asyncio.Lock()  # chaos starts agents, and so does a change of users
        self._agent: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        return self._agent is not None and self._agent.returncode is None

    @property
    def is_ready(self) -> bool:
        """Whether the server hears it and gives it work."""
        nodes = self._server.engine.mirror.nodes.values()
        return any(entry.open for entry in nodes if entry.spec.name == self.name)

    async def start(self) -> None:
        """Unless its agent runs."""
        async with self._starting:
            if not self.runs:
                await self._start()

    async def restart_agent(self) -> None:
        """A new agent in place of the one that runs; its work goes on under the keeper."""
        async with self._starting:
            if self.runs:
                await self.kill_agent()
                await self._start()

    async def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The port may be another one this time.
        (self.directory / "server").write_text(self._server.addresses.agent + "\n")
        await _end_leftover_agent(self.directory)
        with open_private(self.directory / "agent.log") as diary:
            self._agent = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rota.cli.main", "agent"),
                *("--data-dir", str(self.directory), "--name", self.name, *self._users.flags, *self._flags),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=diary,
                stderr=diary,
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
        """Agent, keeper and work."""
        await self.kill_agent()
        await asyncio.to_thread(node_processes.kill_node, self.directory)

    def resume(self) -> None:
        self.signal_agent(signal.SIGCONT)
        self.signal_keeper(signal.SIGCONT)

    def ask_to_leave(self) -> None:
        """One that is not connected has nobody to say goodbye to."""
        self.signal_agent(signal.SIGINT if self.is_ready else signal.SIGTERM)

    async def has_left(self) -> None:
        """Its work ends with it, also where the agent was dead."""
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
        # Not in argv, where everybody can read it. An agent that is replaced leaves its work to the next one.
        own = {**os.environ, "ROTA_JOIN": line, "ROTA_KEEP_WORK": "true"}
        return own if self.relay is None else {**own, "ROTA_SERVER_ADDR": self.relay.address}


async def _end_leftover_agent(directory: Path) -> None:
    """An agent left over from a dev cluster that was killed makes room for a new one; its work goes on."""
    async with asyncio.timeout(_STOP_SECONDS):
        while True:
            try:
                DirectoryLock(directory, AGENT_LOCK).release()
                return
            except AlreadyRunning as running_already:
                # A lock's number may be a moment old: only an agent of this directory is ended.
                for agent in node_processes.agents_of(directory):
                    if agent.pid == running_already.pid:
                        agent.send(signal.SIGTERM)
                await asyncio.sleep(_LOOK_SECONDS)
