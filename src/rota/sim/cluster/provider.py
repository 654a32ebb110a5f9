"""A machine provider shared by all servers: it creates, lists and removes machines late, wrongly or never."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rota.model.cluster import MACHINE, ClusterIntent, Machine
from rota.providers.protocol import MachineOrder, ProviderFailed
from rota.sim.cluster.joining_machine import JoiningMachine, SimJoinToken
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.server import SimServer
from rota.sim.world.network import SimNetwork
from rota.sim.world.virtual_time import World

NAME = "command"  # under which servers know it
SETTINGS = {"create": "create", "list": "list", "remove": "remove"}
CALL_MS = (50, 500)  # until it has done what it was asked for, or said why not


class ProviderBehaviour(NamedTuple):
    """The probability of each fault of a call."""

    fails: float = 0.0  # reports failure and does nothing
    fails_late: float = 0.0  # reports failure although it succeeded
    hangs: float = 0.0  # done, but the call never returns
    skips: float = 0.0  # reports success and does nothing
    doubles: float = 0.0  # creates two machines
    hides: float = 0.0  # leaves a machine out of a list, each
    invents: float = 0.0  # lists machines that do not exist
    slowness: float = 1.0  # factor of the time until a machine joins
    dead: bool = False  # every call fails, permanently


class SimProvider:
    """One provider for all servers.

    The faults follow its `behaviour`. It records which machines it has denied having (`denied`), because the
    limit on machines cannot hold for those.
    """

    place = ""

    def __init__(self, world: World, network: SimNetwork, servers: Sequence[SimServer], make_ms: int) -> None:
        self.world = world
        self.behaviour = ProviderBehaviour()
        self.machines: list[JoiningMachine] = []  # that exist
        # Called when a machine has become a node.
        self.on_joined: Callable[[SimMachine], None] = lambda _: None
        # Called when that node's machine is gone.
        self.on_removed: Callable[[SimMachine], None] = lambda _: None
        self.on_call: Callable[[str, str], None] = lambda *_: None  # called with verb and object of each call
        self.on_created: Callable[[], None] = lambda: None  # called when a machine was created
        # Called before a machine is removed.
        self.on_removing: Callable[[JoiningMachine], None] = lambda _: None
        self.denied: set[str] = set()  # machines that exist and were denied
        self.spans: list[tuple[int, int]] = []  # lifetimes of removed machines
        self._network = network
        self._servers = servers
        self._make_ms = make_ms
        self._tokens: dict[str, SimJoinToken] = {}
        self._rng = world.rng("provider")
        self._made = 0

    def for_place(self, place: str) -> "SimProvider":
        del place
        return self

    async def join_line(self, machine: Machine, intent: ClusterIntent) -> str:
        secret = f"token-{len(self._tokens) + 1}"
        self._tokens[secret] = SimJoinToken({**intent.node_labels, MACHINE: machine.name}, intent.name)
        return secret

    # ---- calls of the servers

    async def create(self, order: MachineOrder) -> None:
        if not self._has(order.machine) or self._rng.random() < self.behaviour.doubles:
            await self._serve("create", order.machine, lambda: self._make(order))
        else:
            await self._serve("create", order.machine, lambda: None)

    async def list(self, cluster: str, settings: Mapping[str, str]) -> Sequence[str]:
        del settings
        found: list[str] = []
        await self._serve("list", cluster, lambda: found.extend(self._list(cluster)))
        return found

    async def remove(self, cluster: str, machine: str, settings: Mapping[str, str]) -> None:
        del cluster, settings
        await self._serve("remove", machine, lambda: self._remove(machine))

    async def _serve(self, verb: str, about: str, act: Callable[[], None]) -> None:
        """Carry out one call with its faults; the effect happens even if the caller stops waiting."""
        self.on_call(verb, about)
        behaviour, rng = self.behaviour, self._rng
        took_ms = rng.uniform(*CALL_MS)
        refuses = behaviour.dead or rng.random() < behaviour.fails
        skips = verb != "list" and rng.random() < behaviour.skips
        if not refuses and not skips:
            # In the middle of the call, in the world and not in the coroutine: the effect happens
            # even if the server dies or gives up.
            self.world.after(took_ms / 2, act)
        elif skips and verb == "remove":
            # The server was told that it is gone and may request another: the limit cannot hold for it.
            self.denied.add(about)
        if rng.random() < behaviour.hangs:
            self.world.count(f"provider: a {verb} hung")
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(math.ceil(took_ms) / 1000)
        if refuses or rng.random() < behaviour.fails_late:
            self.world.count(f"provider: a {verb} failed")
            raise ProviderFailed("no quota left")

    def _has(self, machine: str) -> bool:
        return any(known.order.machine == machine for known in self.machines)

    # ---- effects

    def _make(self, order: MachineOrder) -> None:
        """Create the machine, sometimes twice."""
        for _ in range(2 if self._rng.random() < self.behaviour.doubles else 1):
            if self._has(order.machine):
                self.world.count("provider: made a machine twice")
            self._made += 1
            machine = JoiningMachine(self._network, self._servers, f"{order.machine}#{self._made}", order)
            machine.created_at_ms, machine.token, machine.on_joined = (
                self.world.now_ms,
                self._tokens[order.join_line],
                self.on_joined,
            )
            self.machines.append(machine)
            machine.join_in(self._make_ms * self.behaviour.slowness * self._rng.uniform(0.8, 1.2))
        self.on_created()

    def _list(self, cluster: str) -> Sequence[str]:
        ours = [known.order.machine for known in self.machines if known.order.cluster == cluster]
        names = [name for name in ours if self._rng.random() >= self.behaviour.hides]
        if len(names) < len(ours):
            self.world.count("provider: left machines out of a list")
            self.denied.update(set(ours) - set(names))
        if self._rng.random() < self.behaviour.invents:
            self.world.count("provider: listed what there is not")
            names += [f"{cluster}-{self._rng.randint(1, 20)}", f"{cluster}-x", "stranger"]
        return names

    def _remove(self, machine: str) -> None:
        """Remove the newest machine of that name."""
        for known in reversed([known for known in self.machines if known.order.machine == machine]):
            self.end(known)
            return

    def end(self, removed: JoiningMachine) -> None:
        self.on_removing(removed)
        self.machines.remove(removed)
        self.spans.append((removed.created_at_ms, self.world.now_ms))
        if not self._has(removed.order.machine):
            self.denied.discard(removed.order.machine)
        removed.end_all(politely=self._rng.random() < 0.5)
        if removed.machine is not None:
            self.on_removed(removed.machine)
