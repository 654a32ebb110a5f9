"""What goes with a machine, which node is one, and machines that do not go and keep others from coming."""

from rota.clusters import machines
from rota.controllers import system
from rota.model.cluster import MACHINE, Machine
from rota.model.ids import NodeId
from rota.model.lifecycle import MachineState
from rota.model.node import NodeSpec
from rota.testing import provided
from tests.clusters.clouds import Cloud
from tests.clusters.test_bad_providers import Told


def grown() -> Cloud:
    cloud = Cloud()
    cloud.submit(2)
    cloud.wait(10)
    return cloud


def enroll_again(cloud: Cloud, node: str) -> None:
    """For the same machine: the answer to the first time was lost."""
    cloud.stage.put(NodeSpec(NodeId(node), node, labels={MACHINE: "default-1"}))


def stays(told: Told, name: str) -> None:
    """Its provider cannot remove it."""
    told.stage.ask("clusters", lambda view, now: machines.not_removed(view, name, "no", now))


def test_a_second_node_that_was_enrolled_for_a_machine_does_not_hide_the_one_that_works() -> None:
    cloud = grown()
    enroll_again(cloud, "orphan")
    cloud.wait(5)
    cloud.stage.restart()
    cloud.wait(5)

    assert cloud.machines == {"default-1": MachineState.JOINED}
    assert not any("given up" in line for line in cloud.told)


def test_with_a_machine_every_node_goes_that_was_enrolled_for_it() -> None:
    cloud = grown()
    enroll_again(cloud, "orphan")
    cloud.end_all()
    cloud.wait(60)

    assert cloud.machines == {}
    assert list(cloud.stage.mirror.nodes) == []


def test_whoever_had_a_task_for_its_node_is_looked_at_when_a_machine_goes() -> None:
    cloud = grown()
    plan = machines.gone(cloud.stage.mirror, "default-1")
    going = Machine("default-1", "default", MachineState.LEAVING)

    assert [record.key for record in plan.puts] == ["machine/default-1"]
    assert list(system.WAKES[Machine](going)) == ["nodes"]


def test_machines_that_cannot_be_removed_and_take_all_places_are_failures_of_their_provider() -> None:
    told = Told(tasks=3)
    for name in list(told.machines):
        provided.fail(told.stage, name, "no quota left")
    told.stage.wait(6_000)
    before = told.cluster.failures
    for name in list(told.machines):
        stays(told, name)

    assert (before, told.cluster.failures) == (1, 2)


def test_one_that_cannot_be_removed_is_no_failure_where_others_can_still_come() -> None:
    told = Told(tasks=1)
    provided.fail(told.stage, "default-1", "no quota left")
    told.stage.wait(6_000)
    stays(told, "default-1")

    assert told.cluster.failures == 1
