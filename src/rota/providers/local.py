"""Machines that are agent processes on this host, each with its own directory. [I/O]"""

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from rota.model.amounts import CPU, MEMORY
from rota.providers.protocol import MachineOrder, ProviderFailed

_POLL_SECONDS = 0.005
# The agent's flag, and the divisor of its unit.
_CAPACITY_FLAGS = {
    CPU: ("--cpu", 1000),
    MEMORY: ("--memory", 1),
}


class LocalProcesses(Protocol):
    """Processes of a node, found by its directory."""

    def agent_runs(self, directory: Path) -> bool:
        """Whether its agent runs."""

    def anything_runs(self, directory: Path) -> bool:
        """Whether any process of the node runs: the keeper outlives its agent."""

    def end_all(self, directory: Path) -> None:
        """End all processes of the node, gracefully first. Blocks."""


class LocalProvider:
    """Creates machines as agent processes; `flags` gives extra flags of the agent, read at each start."""

    def __init__(
        self, directory: Path, processes: LocalProcesses, flags: Callable[[], Sequence[str]] = tuple
    ) -> None:
        self._directory = directory
        self._processes = processes
        self._flags = flags
        self._orders: dict[str, MachineOrder] = {}  # by machine
        # Prevents a race: a restart must not miss an agent that is being started.
        self._starting = asyncio.Lock()
        self._agents: dict[str, asyncio.subprocess.Process] = {}  # kept referenced, so that they are reaped
        # Providers of other servers' directories; referenced for the same reason.
        self._by_directory: dict[str, LocalProvider] = {}

    @property
    def place(self) -> str:
        return f"{platform.node()}:{self._directory}"

    def for_place(self, place: str) -> "LocalProvider | None":
        """Another server on this host has its own directory, and may have been the leader before."""
        host, _, directory = place.partition(":")
        if place == self.place:
            return self
        if host != platform.node():
            return None
        return self._by_directory.setdefault(
            directory, LocalProvider(Path(directory), self._processes, self._flags)
        )

    async def create(self, order: MachineOrder) -> None:
        directory = self._machine_directory(order.cluster, order.machine)
        if await asyncio.to_thread(self._processes.agent_runs, directory):
            return
        try:
            for around in (self._directory, directory.parent):
                around.mkdir(parents=True, exist_ok=True)
                around.chmod(0o711)  # tasks of other users need to traverse it
            directory.mkdir(exist_ok=True, mode=0o700)
            async with self._starting:
                agent = await self._start(order)
        except OSError as error:
            raise ProviderFailed(f"its agent cannot be started: {error.strerror}") from error
        # A race: just after fork the process has no command line yet, and a list would miss the machine.
        while agent.returncode is None:
            if await asyncio.to_thread(self._processes.agent_runs, directory):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _start(self, order: MachineOrder) -> asyncio.subprocess.Process:
        directory = self._machine_directory(order.cluster, order.machine)
        with _open_log(directory) as log:
            agent = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rota.cli.main", "agent"),
                *("--data-dir", str(directory), "--name", order.machine, *self._flags(), *_offer(order)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "ROTA_JOIN": order.join_line},  # a secret: argv is readable by every user
            )
        self._orders[order.machine], self._agents[order.machine] = order, agent
        return agent

    async def restart_agents(self) -> None:
        """Restart all agents with the current flags; tasks continue under the keepers.

        A machine that another process started is ended, as one of a dev cluster that was killed: its order is
        not known here.
        """
        async with self._starting:
            for directory in sorted(self._directory.glob("*/*/")):
                agent = self._agents.get(directory.name)
                if agent is None:
                    await asyncio.to_thread(self._processes.end_all, directory)
                elif agent.returncode is None:
                    agent.kill()
                    await agent.wait()
                    await self._start(self._orders[directory.name])

    async def list(self, cluster: str, settings: Mapping[str, str]) -> Sequence[str]:
        del settings
        return await asyncio.to_thread(self._running, cluster)

    async def remove(self, cluster: str, machine: str, settings: Mapping[str, str]) -> None:
        del settings
        directory = self._machine_directory(cluster, machine)
        await asyncio.to_thread(self._processes.end_all, directory)
        self._orders.pop(machine, None)
        agent = self._agents.pop(machine, None)
        if agent is not None:
            await agent.wait()
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def remove_all(self) -> None:
        """Remove the machines of all clusters, when the dev cluster ends."""
        for directory in sorted(self._directory.glob("*/*/")):
            await self.remove(directory.parent.name, directory.name, {})

    def _running(self, cluster: str) -> Sequence[str]:
        known = (self._directory / cluster).glob("*/")
        return [directory.name for directory in known if self._processes.anything_runs(directory)]

    def _machine_directory(self, cluster: str, machine: str) -> Path:
        return self._directory / cluster / machine


def _open_log(directory: Path) -> BinaryIO:
    """Open the agent's log, unreadable for jobs, which can traverse its directory."""
    return open(directory / "agent.log", "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def _offer(order: MachineOrder) -> list[str]:
    found: list[str] = []
    for resource, amount in order.capacity.items():
        if resource in _CAPACITY_FLAGS:
            flag, divisor = _CAPACITY_FLAGS[resource]
            found += [flag, f"{amount / divisor:g}" if divisor > 1 else str(amount)]
    return found
