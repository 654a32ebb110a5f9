"""Providers by name, and the join lines for the machines that they create. [I/O]"""

import asyncio
import signal
import time
from pathlib import Path

from rota.clusters.provider_calls import JoinLineFor
from rota.clusters.run import MachineProvisioner
from rota.engine.run import Engine
from rota.identity.authority import CertificateAuthority
from rota.identity.tokens import JoinLine
from rota.identity.vault import Vault
from rota.model.cluster import MACHINE, ClusterIntent, Machine
from rota.providers.command import CommandProvider
from rota.providers.local import LocalProvider
from rota.providers.protocol import Provider
from rota.wiring import node_processes

_LEAVE_SECONDS = 10.0  # for the agent to sign off; an empty node needs a moment
_POLL_SECONDS = 0.02


def join_lines(vault: Vault, authority: CertificateAuthority, address: str) -> JoinLineFor:
    """A function that makes a join line per machine; the labels of its token name the machine."""
    host, _, port = address.rpartition(":")

    async def line(machine: Machine, intent: ClusterIntent) -> str:
        labels = {**intent.node_labels, MACHINE: machine.name}
        now_ms = time.time_ns() // 1_000_000
        secret = await asyncio.to_thread(
            vault.make_join_token, now_ms, labels=labels, cluster=machine.cluster
        )
        return JoinLine(host.strip("[]"), int(port), secret, authority.fingerprint).render()

    return line


async def procure(engine: Engine, local: LocalProvider, join: JoinLineFor) -> None:
    """Create and remove machines as clusters require, until cancelled."""
    providers: dict[str, Provider] = {"local": local, "command": CommandProvider()}
    await MachineProvisioner(engine, providers, join).run()


class LocalNodes:
    """Processes of nodes on this host, for the local provider."""

    def agent_runs(self, directory: Path) -> bool:
        return bool(node_processes.agents_of(directory))

    def anything_runs(self, directory: Path) -> bool:
        return bool(node_processes.agents_of(directory) or node_processes.keepers_of(directory))

    def end_all(self, directory: Path) -> None:
        """End the node; its agent has _LEAVE_SECONDS to sign off."""
        for agent in node_processes.agents_of(directory):
            agent.send(signal.SIGINT)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while node_processes.agents_of(directory) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        node_processes.end_nodes([directory])
