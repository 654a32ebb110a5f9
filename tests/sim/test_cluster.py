"""The simulated cluster: dead processes forget, the latest intent counts, nodes that left return."""

import pytest

from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.node import Eligibility, NodeSpec
from rota.model.plan import NO_CHANGE
from rota.sim.faults.draw import KINDS
from rota.sim.faults.fault import SimFault
from rota.sim.simulation import SimCluster, Size
from rota.sim.workloads.model import NodeGroup
from rota.sim.world.virtual_time import World
from rota.testing.builders import apply, at


def cluster() -> SimCluster:
    """One server and one node that it knows."""
    simulated = SimCluster(World(0), Size((NodeGroup(1, {"cpu": 1000}, {}),)))
    simulated.start()
    simulated.world.run(5_000)
    return simulated


def test_a_killed_server_has_lost_its_pending_requests() -> None:
    (server,) = cluster().servers
    server.ask("apiserver", lambda *_: NO_CHANGE, lambda _: None, lambda _: None)
    server.kill()
    server.start()

    assert server.loop.drain_requests() == []


def test_a_late_request_carries_out_the_latest_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    users = cluster().users
    asked: list[Command[object]] = []
    monkeypatch.setattr(users, "insist", lambda command, _: asked.append(command))
    users.set_eligibility("n1", Eligibility.CORDONED)
    users.set_eligibility("n1", Eligibility.OPEN)
    mirror = Mirror()
    mirror.apply(NodeSpec(NodeId("n1"), "n1"))
    for command in reversed(asked):
        apply(mirror, command(mirror, at(0)))

    assert len(asked) == 2
    assert mirror.nodes[NodeId("n1")].intent is None


def test_a_leaving_node_returns_once_it_has_left() -> None:
    simulated = cluster()
    (machine,) = simulated.machines
    restore = KINDS["node leaves"](simulated, SimFault(0, "node leaves", 0, 1, 0.5))
    restore()
    was_leaving = machine.agent.leaving
    simulated.world.run(60_000)

    assert was_leaving
    assert machine.on
    assert machine.agent.welcomed
