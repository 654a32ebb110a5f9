"""Removal of machines: their nodes, and unremovable machines that use up the limit."""

from typing import Any

from rota.clusters import machine_transitions
from rota.controllers import system
from rota.model.cluster import MACHINE, ClusterIntent, ClusterRecord, Machine
from rota.model.ids import NodeId
from rota.model.lifecycle import ClusterState, JobState, MachineState
from rota.model.node import NodeSpec
from rota.model.plan import Plan
from rota.testing import stage_provider
from tests.clusters.provider_stage import Cloud
from tests.clusters.test_faulty_providers import ElasticStage


def grown() -> Cloud:
    cloud = Cloud()
    cloud.submit(2)
    cloud.wait(10)
    return cloud


def enroll_again(cloud: Cloud, node: str) -> None:
    """Enroll a node for the same machine again: the response to the first enrollment was lost."""
    cloud.stage.put(NodeSpec(NodeId(node), node, labels={MACHINE: "default-1"}))


def test_a_second_enrolled_node_does_not_hide_the_working_one() -> None:
    cloud = grown()
    enroll_again(cloud, "orphan")
    cloud.wait(5)
    cloud.stage.restart()
    cloud.wait(5)

    assert cloud.machines == {"default-1": MachineState.JOINED}
    assert not any("given up" in line for line in cloud.events)


def test_removing_a_machine_deletes_every_node_enrolled_for_it() -> None:
    cloud = grown()
    enroll_again(cloud, "orphan")
    cloud.end_all()
    cloud.wait(60)

    assert cloud.machines == {}
    assert list(cloud.stage.mirror.nodes) == []


def test_removing_a_machine_wakes_system_jobs_with_a_task_on_its_node() -> None:
    cloud = grown()
    plan = machine_transitions.on_removed(cloud.stage.mirror, "default-1")
    going = Machine("default-1", "default", MachineState.LEAVING)

    assert [record.key for record in plan.puts] == ["machine/default-1"]
    assert list(system.WAKES[Machine](going)) == ["nodes"]


def test_unremovable_machines_that_use_up_the_limit_are_provider_failures() -> None:
    elastic = ElasticStage(tasks=3)
    for name in list(elastic.machines):
        stage_provider.fail(elastic.stage, name, "no quota left")
    elastic.stage.wait(6_000)
    before = elastic.cluster.failures
    for name in list(elastic.machines):
        stage_provider.keep(elastic.stage, name, "no")

    assert (before, elastic.cluster.failures) == (1, 2)


def test_an_unremovable_machine_is_no_failure_while_others_can_be_added() -> None:
    elastic = ElasticStage(tasks=1)
    stage_provider.fail(elastic.stage, "default-1", "no quota left")
    elastic.stage.wait(6_000)
    stage_provider.keep(elastic.stage, "default-1", "no")

    assert elastic.cluster.failures == 1


def elastic(**fields: Any) -> Cloud:
    """A cluster beside the default one, so that it can fail."""
    return Cloud(ClusterIntent("cloud", provider="p", capacity={"cpu": 2000}, idle_seconds=5, **fields))


def test_a_node_being_removed_does_not_keep_its_cluster_from_failing() -> None:
    cloud = elastic(max_nodes=1)
    cloud.submit(1, cluster="cloud")
    cloud.wait(10)
    cloud.dead = True
    cloud.end_all()
    cloud.wait(20)
    job = cloud.submit(1, cluster="cloud")
    cloud.wait(400)
    state, left = cloud.state_of("cloud", job), dict(cloud.machines)
    cloud.dead = False
    cloud.wait(5)

    assert state == (ClusterState.FAILED, JobState.CANCELED)
    assert left == {"cloud-1": MachineState.LEAVING}, "it counts for as long as it may exist"
    assert cloud.machines == {}


def test_a_cluster_that_was_never_provisioned_fails_although_no_job_is_assigned_to_it() -> None:
    cloud = elastic(min_nodes=1, max_nodes=1)
    cloud.dead = True
    job = cloud.submit(1, cluster="cloud")
    cloud.wait(400)

    assert cloud.state_of("cloud", job) == (ClusterState.FAILED, JobState.CANCELED)


def test_machines_joining_a_failed_cluster_are_removed() -> None:
    cloud = elastic(max_nodes=2)
    cloud.submit(4, cluster="cloud")
    cloud.makes = False
    cloud.wait(2)
    before = dict(cloud.machines)
    failed = ClusterRecord("cloud", ClusterState.FAILED, made=2)
    cloud.stage.ask("clusters", lambda *_: Plan((failed,)))
    cloud.wait(5)

    assert before == dict.fromkeys(("cloud-1", "cloud-2"), MachineState.WANTED)
    assert cloud.machines == {}
