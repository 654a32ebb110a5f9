"""The size of a cluster follows its demand: within limits, without ending running tasks or flapping."""

import pytest

from rota.model.cluster import ClusterIntent, ClusterRecord
from rota.model.lifecycle import MachineState
from rota.model.recovery import Retry
from rota.model.shape import RunMode
from rota.testing import stage_provider
from rota.testing.stage import StageMachine
from tests.clusters.provider_stage import Cloud


def test_a_square_wave_of_load_causes_one_resize_per_edge() -> None:
    cloud = Cloud()
    for _ in range(10):
        cloud.submit(8)
        cloud.wait(60)
        cloud.end_all()
        cloud.wait(60)

    assert len(cloud.resizes) == 20
    assert cloud.machines == {}
    assert cloud.most == 4


def test_load_that_returns_within_the_idle_time_finds_its_nodes() -> None:
    cloud = Cloud()
    for _ in range(10):
        cloud.submit(8)
        cloud.wait(20)
        cloud.end_all()
        cloud.wait(20)

    assert len(cloud.resizes) == 1
    assert cloud.nodes == 4


def test_no_more_machines_are_requested_while_enough_are_being_created() -> None:
    cloud = Cloud(delay_ms=60_000)
    cloud.submit(3)
    cloud.wait(30)

    assert cloud.resizes == [
        "adding 2 nodes to default: 3 tasks wait, all would start; it has 0, its limit is 4"
    ]


def test_more_work_while_machines_are_being_created_requests_only_the_missing_ones() -> None:
    cloud = Cloud(delay_ms=60_000)
    cloud.submit(2)
    cloud.wait(2)
    cloud.submit(2)
    cloud.wait(2)

    assert len(cloud.machines) == 2


def test_a_job_that_no_machine_could_run_requests_none() -> None:
    cloud = Cloud()
    cloud.submit(1, needs={"cpu": 8000})
    cloud.wait(10)

    assert cloud.resizes == []


def test_a_provider_that_never_delivers_is_asked_within_the_limit_and_with_backoff() -> None:
    cloud = Cloud()
    cloud.makes = False
    cloud.submit(100)
    cloud.wait(3600)

    assert cloud.most == 4
    assert len(cloud.resizes) < 20
    assert any("it has not joined within 120 s" in why for why in cloud.events)


def test_the_minimum_of_nodes_is_created_and_kept_without_demand() -> None:
    cloud = Cloud(
        ClusterIntent(
            "default", provider="p", capacity={"cpu": 2000}, min_nodes=2, max_nodes=4, idle_seconds=5
        )
    )
    cloud.wait(60)

    assert cloud.nodes == 2
    assert len(cloud.resizes) == 1


def test_a_fixed_size_is_reached_by_letting_work_end() -> None:
    cloud = Cloud()
    cloud.submit(8)
    cloud.wait(10)
    cloud.stage.put(ClusterIntent("default", provider="p", capacity={"cpu": 2000}, max_nodes=4, nodes=1))
    cloud.wait(10)
    while_busy = list(cloud.machines.values())
    cloud.end_all()
    cloud.wait(5)

    assert sorted(while_busy) == ["draining", "draining", "draining", "joined"]
    assert list(cloud.machines.values()) == [MachineState.JOINED]


def test_an_empty_cluster_grows_for_a_retry_after_its_backoff() -> None:
    cloud = Cloud(ClusterIntent("default", provider="p", capacity={"cpu": 2000}, max_nodes=4, idle_seconds=5))
    job = cloud.submit(1, retries=1, retry=Retry(delay_ms=60_000, delay_max_ms=60_000, jitter_percent=0))
    cloud.wait(10)
    (machine,) = cloud.stage.machines.values()
    machine.end((job, 0), 1, 1000)
    cloud.wait(30)
    while_it_pauses = cloud.nodes
    cloud.wait(60)

    assert (while_it_pauses, cloud.nodes) == (0, 1)


def test_an_unknown_cluster_is_assumed_capable_and_confirmed() -> None:
    cloud = Cloud(labels={"leases": "pid-namespace"})
    cloud.submit(1, run=RunMode.ONE_AT_A_TIME)
    cloud.wait(10)
    at_first = cloud.nodes
    cloud.end_all()
    cloud.wait(60)
    without_work = cloud.nodes
    cloud.submit(1, run=RunMode.ONE_AT_A_TIME)
    cloud.wait(10)

    assert (at_first, without_work, cloud.nodes) == (1, 0, 1)


def test_an_incapable_cluster_is_detected_once() -> None:
    cloud = Cloud()
    cloud.submit(1, run=RunMode.ONE_AT_A_TIME)
    cloud.wait(300)

    assert [why.split(":")[0] for why in cloud.resizes] == [
        "adding 1 node to default",
        "taking 1 node from default",
    ]


def test_empty_nodes_are_kept_until_a_gang_has_all_its_nodes() -> None:
    cloud = Cloud(ClusterIntent("default", provider="p", capacity={"cpu": 2000}, max_nodes=3, idle_seconds=1))
    cloud.makes = False
    job = cloud.submit(3, gang=True, needs={"cpu": 2000})
    cloud.wait(5)
    for machine in list(cloud.machines):
        stage_provider.provide(cloud.stage, StageMachine(machine, {"cpu": 2000}, {}))
        cloud.wait(10)

    assert cloud.stage.mirror.jobs[job].task_counts.live == 3
    assert len(cloud.resizes) == 1


def test_a_machine_whose_node_is_lost_is_replaced() -> None:
    cloud = Cloud()
    cloud.submit(2)
    cloud.wait(10)
    (name,) = cloud.machines
    cloud.stage.cut(cloud.stage.machines[name])
    cloud.wait(60)

    assert list(cloud.machines.values()) == [MachineState.JOINED]
    assert name not in cloud.machines
    assert f"machine {name} is given up: its node is lost" in cloud.events


def test_after_a_restart_scaling_continues_as_before() -> None:
    cloud = Cloud()
    cloud.submit(8)
    cloud.wait(10)
    cloud.stage.restart()
    for machine in cloud.stage.machines.values():
        cloud.stage.call(machine)
    cloud.wait(10)
    cloud.end_all()
    cloud.wait(60)

    assert len(cloud.resizes) == 2
    assert cloud.machines == {}


@pytest.mark.parametrize("failures", [1, 3, 30])
def test_the_provider_backoff_grows_up_to_a_bound(failures: int) -> None:
    cluster, intent, now_ms = ClusterRecord("build"), ClusterIntent("build", pause_seconds=2), 0
    for _ in range(failures):
        now_ms = cluster.paused_until_ms
        cluster = cluster.after_failure(intent.backoff_ms(cluster.failures), now_ms, "why", now_ms)

    assert cluster.paused_until_ms - now_ms == min(2000 * 2 ** (failures - 1), 300_000)
