"""A machine that a provider has created: it boots, joins with its token, and becomes a node."""

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
from rota.sim.cluster.machine import SimMachine
from rota.sim.cluster.server import SimServer
from rota.sim.world.network import SimNetwork
from rota.sim.world.virtual_time import SimClock, SimProcess

RETRY_MS = 5_000  # between two attempts to join


@dataclass
class SimJoinToken:
    """A join token: labels and cluster of the node that joins with it; valid once."""

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
        self.created_at_ms = 0
        self.machine: SimMachine | None = None  # once it has joined
        self.on_joined: Callable[[SimMachine], None] = lambda _: None
        self._network = network
        self._servers = servers
        self._calls = 0
        self.start_life()

    def join_in(self, delay_ms: float) -> None:
        self.after(delay_ms, self._call)

    def end_all(self, *, politely: bool) -> None:
        """End the machine and all on it; `politely`: the agent is stopped before the power."""
        self.end()
        machine = self.machine
        if machine is not None:
            machine.scrapped = True
            if machine.on:
                if politely:
                    machine.agent.kill()
                machine.lose_power(1.0)

    def _call(self) -> None:
        """Ask one server after the other to enroll it, until one answers."""
        if self.machine is not None:
            return
        self._calls += 1
        server = self._servers[self._calls % len(self._servers)]
        self._network.call(self.name, server, lambda: self._enroll(server))
        self.after(RETRY_MS, self._call)

    def _enroll(self, server: SimServer) -> None:
        """Enroll at the server; the token is used last, so a duplicate enrollment is undone."""
        token, name = self.token, self.order.machine

        def enroll(view: View, now: Instant) -> Plan[NodeSpec]:
            return enroll_node(view, name, token.labels, token.cluster, now)

        def enrolled(spec: NodeSpec) -> None:
            # Race: two enrollments with one token may both be committed; the second one is undone.
            if token.used:
                _undo_enrollment(server, spec)
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
            # A rejected join is final. The machine stays, so that the provider has one
            # that never becomes a node.
            self.end()  # only the agent; the machine stays
        elif isinstance(answer, NodeSpec) and self.machine is None:
            self.machine = SimMachine(self.world, self._network, answer.id, dict(self.order.capacity), {})
            self.on_joined(self.machine)
            self.machine.switch_on()


def _undo_enrollment(server: SimServer, spec: NodeSpec) -> None:
    def forget(view: View, _: Any) -> Plan[NodeId]:
        return delete_node_records(find_node(view, spec.id), f"node {spec.name} could not be enrolled")

    server.ask("apiserver", forget, lambda _: None, lambda _: None)
