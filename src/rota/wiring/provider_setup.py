"""Providers by their names, and the lines with which the machines they make join. [I/O]"""

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

_LEAVE_SECONDS = 10.0  # to say goodbye: an empty node needs a moment
_LOOK_SECONDS = 0.02


def join_lines(vault: Vault, authority: CertificateAuthority, address: str) -> JoinLineFor:
    """A token for each machine, whose labels say which one it is."""
    host, _, port = address.rpartition(":")

    async def line(machine: Machine, wish: ClusterIntent) -> str:
        labels = {**wish.node_labels, MACHINE: machine.name}
        now_ms = time.time_ns() // 1_000_000
        secret = await asyncio.to_thread(
            vault.make_join_token, now_ms, labels=labels, cluster=machine.cluster
        )
        return JoinLine(host.strip("[]"), int(port), secret, authority.fingerprint).render()

    return line


async def procure(engine: Engine, local: LocalProvider, join: JoinLineFor) -> None:
    """For ever, with the providers there are."""
    providers: dict[str, Provider] = {"local": local, "command": CommandProvider()}
    await MachineProvisioner(engine, providers, join).run()


class LocalNodes:
    """What runs of nodes on this machine."""

    def agent_runs(self, directory: Path) -> bool:
        return bool(node_processes.agents_of(directory))

    def anything_runs(self, directory: Path) -> bool:
        return bool(node_processes.agents_of(directory) or node_processes.keepers_of(directory))

    def end_all(self, directory: Path) -> None:
        """The agent says goodbye, if it can."""
        for agent in node_processes.agents_of(directory):
            agent.send(signal.SIGINT)
        give_up_at = time.monotonic() + _LEAVE_SECONDS
        while node_processes.agents_of(directory) and time.monotonic() < give_up_at:
            time.sleep(_LOOK_SECONDS)
        node_processes.end_nodes([directory])
