"""What the simulated world owes the cluster: the dead forget, the last wish counts, who left comes back."""

import pytest

from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.node import Eligibility, NodeSpec
from rota.model.plan import NO_CHANGE
from rota.sim.cluster import SimCluster, Size
from rota.sim.fault import SimFault
from rota.sim.faults import KINDS
from rota.sim.load import NodeGroup
from rota.sim.world import World
from rota.testing.builders import apply, at


def cluster() -> SimCluster:
    """One server and one node that it knows."""
    one = SimCluster(World(0), Size((NodeGroup(1, {"cpu": 1000}, {}),)))
    one.start()
    one.world.run(5_000)
    return one


def test_a_server_that_was_killed_has_forgotten_what_it_was_asked() -> None:
    (server,) = cluster().servers
    server.ask("apiserver", lambda *_: NO_CHANGE, lambda _: None, lambda _: None)
    server.kill()
    server.start()

    assert server.loop.drain_requests() == []


def test_a_wish_that_was_overtaken_by_the_next_says_the_same_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_node_that_is_still_leaving_when_it_may_return_returns_once_it_has_left() -> None:
    one = cluster()
    (machine,) = one.machines
    back = KINDS["node leaves"](one, SimFault(0, "node leaves", 0, 1, 0.5))
    back()
    was_leaving = machine.agent.leaving
    one.world.run(60_000)

    assert was_leaving
    assert machine.on
    assert machine.agent.welcomed
