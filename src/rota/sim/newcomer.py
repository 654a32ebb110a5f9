"""A machine that a provider has made: it starts, joins with the line it was given, and is a node then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rota.apiserver.admission.node_actions import delete_node_records, enroll_node
from rota.apiserver.lookup import find_node
from rota.model.errors import Rejected, RotaError
from rota.model.ids import NodeId
from rota.model.node import NodeSpec
from rota.model.plan import Instant, Plan
from rota.model.view import View
from rota.providers.protocol import MachineOrder
from rota.sim.machine import SimMachine
from rota.sim.network import SimNetwork
from rota.sim.server import SimServer
from rota.sim.world import SimClock, SimProcess

PATIENCE_MS = 5_000  # after which it tries to join again


@dataclass
class SimJoinToken:
    """What a join token says of whoever joins with it, once."""

    labels: dict[str, str]
    cluster: str
    used: bool = False


class JoiningMachine(SimProcess):
    def __init__(
        self, network: SimNetwork, servers: Sequence[SimServer], name: str, order: MachineOrder
    ) -> None:
        super().__init__(network.world, name, SimClock(network.world))
        self.order = order
        self.token = SimJoinToken({}, order.cluster)
        self.begin_ms = 0
        self.machine: SimMachine | None = None  # that it has become
        self.came: Callable[[SimMachine], None] = lambda _: None
        self._network = network
        self._servers = servers
        self._calls = 0
        self.start_life()

    def join_in(self, delay_ms: float) -> None:
        self.after(delay_ms, self._call)

    def end_all(self, *, politely: bool) -> None:
        """With all that is on it; some machines are shut down before."""
        self.end()
        machine = self.machine
        if machine is not None:
            machine.scrapped = True
            if machine.on:
                if politely:
                    machine.agent.kill()
                machine.lose_power(1.0)

    def _call(self) -> None:
        """Until it is answered: whichever server it reaches."""
        if self.machine is not None:
            return
        self._calls += 1
        server = self._servers[self._calls % len(self._servers)]
        self._network.call(self.name, server, lambda: self._enroll(server))
        self.after(PATIENCE_MS, self._call)

    def _enroll(self, server: SimServer) -> None:
        """At the server; its token is spent last."""
        token, name = self.token, self.order.machine

        def enroll(view: View, now: Instant) -> Plan[NodeSpec]:
            return enroll_node(view, name, token.labels, token.cluster, now)

        def enrolled(spec: NodeSpec) -> None:
            if token.used:
                _take_back(server, spec)
                self._answer(server, Rejected("the join token was used before"))
            else:
                token.used = True
                self._answer(server, spec)

        server.ask("apiserver", enroll, enrolled, lambda error: self._answer(server, error))

    def _answer(self, server: SimServer, answer: NodeSpec | RotaError) -> None:
        self._network.call(server.name, self, lambda: self._on_answer(answer))

    def _on_answer(self, answer: NodeSpec | RotaError) -> None:
        if isinstance(answer, Rejected):
            self.trace(f"cannot join: {answer}")
            self.end()  # its agent; the machine goes on
        elif isinstance(answer, NodeSpec) and self.machine is None:
            self.machine = SimMachine(self.world, self._network, answer.id, dict(self.order.capacity), {})
            self.came(self.machine)
            self.machine.switch_on()


def _take_back(server: SimServer, spec: NodeSpec) -> None:
    def forget(view: View, _: Any) -> Plan[NodeId]:
        return delete_node_records(find_node(view, spec.id), f"node {spec.name} could not be enrolled")

    server.ask("apiserver", forget, lambda _: None, lambda _: None)
