"""A machine with a termination notice: it gets no new tasks, is replaced in time, and its tasks move."""

from rota.model.cluster import ClusterIntent
from rota.model.ids import NodeId
from rota.model.lifecycle import MachineState
from rota.model.node import Eligibility
from tests.clusters.provider_stage import Cloud


def takes_work(cloud: Cloud, node: str) -> bool:
    return cloud.stage.mirror.nodes[NodeId(node)].open


def test_tasks_move_a_grace_period_before_termination_to_a_new_machine() -> None:
    cloud = Cloud()
    job = cloud.submit(2, grace_seconds=10.0)
    cloud.wait(5)
    cloud.notice("default-1", 30_000)
    cloud.wait(2)
    asked = cloud.resizes[1:]
    cloud.wait(17)
    before = dict(cloud.stage.mirror.jobs[job].live_by_node)
    cloud.wait(3)

    assert asked == [
        "adding 1 node to default: 2 tasks wait or have to move, all would start; it has 1, its limit is 4"
    ]
    assert before == {"default-1": 2}
    assert cloud.stage.mirror.jobs[job].live_by_node == {"default-2": 2}
    assert (
        "tasks 0-1 of job 1 leave node default-1: its machine is taken away: the price is too high"
    ) in cloud.events
    cloud.wait(3)
    assert cloud.machines == {"default-2": MachineState.JOINED}
    assert "machine default-1 is given up: its node leaves: the price is too high" in cloud.events
    assert len(cloud.resizes) == 2


def test_no_replacement_is_created_if_its_tasks_fit_elsewhere() -> None:
    cloud = Cloud()
    first, last = cloud.submit(2), cloud.submit(1)
    cloud.wait(5)
    cloud.stage.cancel(first)
    cloud.wait(1)
    (node,) = cloud.stage.mirror.jobs[last].live_by_node
    before = len(cloud.resizes)
    cloud.notice(node, 15_000)
    cloud.wait(10)

    assert len(cloud.resizes) == before
    assert list(cloud.stage.mirror.jobs[last].live_by_node) == ["default-1"]
    assert node == "default-2"


def test_a_cluster_at_its_limit_waits_until_the_machine_is_removed() -> None:
    cloud = Cloud(ClusterIntent("default", provider="p", capacity={"cpu": 2000}, max_nodes=1))
    job = cloud.submit(1)
    cloud.wait(5)
    cloud.notice("default-1", 20_000)
    cloud.wait(9)
    assert list(cloud.machines) == ["default-1"]
    cloud.wait(10)

    assert cloud.machines == {"default-2": MachineState.JOINED}
    assert cloud.stage.mirror.jobs[job].live_by_node == {"default-2": 1}


def test_an_idle_machine_is_removed_immediately_and_the_minimum_is_restored() -> None:
    cloud = Cloud(ClusterIntent("default", provider="p", capacity={"cpu": 2000}, min_nodes=2, max_nodes=4))
    cloud.wait(6)
    cloud.notice("default-1", 120_000)
    cloud.wait(8)

    assert cloud.machines == {"default-2": MachineState.JOINED, "default-3": MachineState.JOINED}


def test_the_replacement_is_not_idle_before_the_tasks_have_moved() -> None:
    cloud = Cloud(
        ClusterIntent("default", provider="p", capacity={"cpu": 2000}, max_nodes=4, idle_seconds=2.0)
    )
    cloud.submit(2)
    cloud.wait(5)
    cloud.notice("default-1", 60_000)
    cloud.wait(60)

    assert len(cloud.resizes) == 2
    assert cloud.machines == {"default-2": MachineState.JOINED}


def test_a_notice_that_is_withdrawn_opens_the_node_and_the_machine_stays() -> None:
    cloud = Cloud()
    job = cloud.submit(2)
    cloud.wait(5)
    cloud.notice("default-1", 60_000)
    assert not takes_work(cloud, "default-1")
    cloud.wait(3)
    cloud.notice("default-1", 0, over=True)
    cloud.wait(90)

    assert takes_work(cloud, "default-1")
    assert cloud.stage.mirror.jobs[job].live_by_node == {"default-1": 2}
    assert "node default-1 does not leave after all" in cloud.events
    assert cloud.machines == {"default-1": MachineState.JOINED}  # the other one was idle


def test_a_node_that_an_operator_drains_stays_closed_when_its_notice_is_withdrawn() -> None:
    cloud = Cloud()
    cloud.submit(1)
    cloud.wait(5)
    cloud.stage.set_eligibility("default-1", Eligibility.DRAINING)
    cloud.notice("default-1", 60_000)
    cloud.notice("default-1", 0, over=True)

    status = cloud.stage.mirror.nodes[NodeId("default-1")].status
    assert status is not None
    assert not status.leaving
    assert not takes_work(cloud, "default-1")


def test_the_deadline_outlives_a_restart_of_the_server() -> None:
    cloud = Cloud()
    cloud.submit(1, grace_seconds=5.0)
    cloud.wait(5)
    cloud.notice("default-1", 20_000)
    cloud.wait(8)
    cloud.stage.restart()
    leaves = "task 0 of job 1 leaves node default-1: its machine is taken away: the price is too high"
    assert leaves not in cloud.events
    cloud.wait(8)

    assert leaves in cloud.events
