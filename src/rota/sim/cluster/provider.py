"""A provider of machines, outside of all servers: makes, lists and ends them in its time, or does not."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rota.model.cluster import MACHINE, ClusterIntent
from rota.model.cluster import Machine as Wanted
from rota.providers.protocol import MachineOrder, ProviderFailed
from rota.sim.cluster.joining_machine import JoiningMachine, SimJoinToken
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.server import SimServer
from rota.sim.world.network import SimNetwork
from rota.sim.world.virtual_time import World

NAME = "command"  # as which servers know it
SETTINGS = {"create": "create", "list": "list", "remove": "remove"}
CALL_MS = (50, 500)  # until it has done what it was asked for, or said why not


class ProviderMood(NamedTuple):
    """How likely each thing is that can go wrong with a call."""

    fails: float = 0.0  # it says that it cannot, and does not
    fails_late: float = 0.0  # it says that it could not, and has
    hangs: float = 0.0  # it is done, and nobody is told
    shirks: float = 0.0  # it says that it has, and has not
    doubles: float = 0.0  # it makes two
    hides: float = 0.0  # each machine, from a list
    invents: float = 0.0  # a list names more
    slowness: float = 1.0  # until a machine joins
    dead: bool = False  # nothing works any more


class SimProvider:
    """One for all servers, wherever they are."""

    place = ""

    def __init__(self, world: World, network: SimNetwork, servers: Sequence[SimServer], make_ms: int) -> None:
        self.world = world
        self.mood = ProviderMood()
        self.there: list[JoiningMachine] = []  # that it really has
        self.came: Callable[[SimMachine], None] = lambda _: None  # told when one of them has become a node
        self.went: Callable[[SimMachine], None] = lambda _: None  # the same, when it is gone
        self.asked: Callable[[str, str], None] = lambda *_: None  # told of each call: what, and about which
        self.changed: Callable[[], None] = lambda: None  # told when it has one more
        self.ends: Callable[[JoiningMachine], None] = lambda _: None  # told before one of them ends
        self.lied_about: set[str] = set()  # machines that it has, and said it has not
        self.spans: list[tuple[int, int]] = []  # from when to when those were there that are gone
        self._network = network
        self._servers = servers
        self._make_ms = make_ms
        self._tokens: dict[str, SimJoinToken] = {}
        self._luck = world.luck("provider")
        self._made = 0

    def for_place(self, place: str) -> "SimProvider":
        del place
        return self

    async def join_line(self, machine: Wanted, wish: ClusterIntent) -> str:
        secret = f"token-{len(self._tokens) + 1}"
        self._tokens[secret] = SimJoinToken({**wish.node_labels, MACHINE: machine.name}, wish.name)
        return secret

    # ---- what servers ask of it

    async def create(self, order: MachineOrder) -> None:
        if not self._has(order.machine) or self._luck.random() < self.mood.doubles:
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
        """It does it whether or not somebody still waits."""
        self.asked(verb, about)
        mood, luck = self.mood, self._luck
        took_ms = luck.uniform(*CALL_MS)
        refuses = mood.dead or luck.random() < mood.fails
        shirks = verb != "list" and luck.random() < mood.shirks
        if not refuses and not shirks:
            self.world.after(took_ms / 2, act)
        elif shirks and verb == "remove":
            self.lied_about.add(about)
        if luck.random() < mood.hangs:
            self.world.count(f"provider: a {verb} hung")
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(math.ceil(took_ms) / 1000)
        if refuses or luck.random() < mood.fails_late:
            self.world.count(f"provider: a {verb} failed")
            raise ProviderFailed("no quota left")

    def _has(self, machine: str) -> bool:
        return any(one.order.machine == machine for one in self.there)

    # ---- what it does

    def _make(self, order: MachineOrder) -> None:
        """Sometimes one more than it was asked for."""
        for _ in range(2 if self._luck.random() < self.mood.doubles else 1):
            if self._has(order.machine):
                self.world.count("provider: made a machine twice")
            self._made += 1
            one = JoiningMachine(self._network, self._servers, f"{order.machine}#{self._made}", order)
            one.begin_ms, one.token, one.came = self.world.now_ms, self._tokens[order.join_line], self.came
            self.there.append(one)
            one.join_in(self._make_ms * self.mood.slowness * self._luck.uniform(0.8, 1.2))
        self.changed()

    def _list(self, cluster: str) -> Sequence[str]:
        ours = [one.order.machine for one in self.there if one.order.cluster == cluster]
        names = [name for name in ours if self._luck.random() >= self.mood.hides]
        if len(names) < len(ours):
            self.world.count("provider: left machines out of a list")
            self.lied_about.update(set(ours) - set(names))
        if self._luck.random() < self.mood.invents:
            self.world.count("provider: listed what there is not")
            names += [f"{cluster}-{self._luck.randint(1, 20)}", f"{cluster}-x", "stranger"]
        return names

    def _remove(self, machine: str) -> None:
        """Of several of that name one."""
        for one in reversed([one for one in self.there if one.order.machine == machine]):
            self.end(one)
            return

    def end(self, one: JoiningMachine) -> None:
        self.ends(one)
        self.there.remove(one)
        self.spans.append((one.begin_ms, self.world.now_ms))
        if not self._has(one.order.machine):
            self.lied_about.discard(one.order.machine)
        one.end_all(politely=self._luck.random() < 0.5)
        if one.machine is not None:
            self.went(one.machine)
