"""The size of a cluster follows its work: within its limits, never under running work, without flapping."""

import pytest

from rota.model.cluster import ClusterIntent, ClusterRecord
from rota.model.lifecycle import MachineState
from rota.model.recovery import Retry
from rota.model.shape import RunMode
from rota.testing import stage_provider
from rota.testing.stage import StageMachine
from tests.clusters.provider_stage import Cloud


def test_a_square_wave_of_load_is_one_resize_an_edge() -> None:
    cloud = Cloud()
    for _ in range(10):
        cloud.submit(8)
        cloud.wait(60)
        cloud.end_all()
        cloud.wait(60)

    assert len(cloud.resizes) == 20
    assert cloud.machines == {}
    assert cloud.most == 4


def test_load_that_comes_back_before_the_nodes_were_idle_for_long_finds_them_there() -> None:
    cloud = Cloud()
    for _ in range(10):
        cloud.submit(8)
        cloud.wait(20)
        cloud.end_all()
        cloud.wait(20)

    assert len(cloud.resizes) == 1
    assert cloud.nodes == 4


def test_no_more_machines_are_asked_for_while_enough_are_on_their_way() -> None:
    cloud = Cloud(delay_ms=60_000)
    cloud.submit(3)
    cloud.wait(30)

    assert cloud.resizes == [
        "adding 2 nodes to default: 3 tasks wait, all would start; it has 0, its limit is 4"
    ]


def test_more_work_while_machines_are_on_their_way_asks_for_what_is_missing() -> None:
    cloud = Cloud(delay_ms=60_000)
    cloud.submit(2)
    cloud.wait(2)
    cloud.submit(2)
    cloud.wait(2)

    assert len(cloud.machines) == 2


def test_what_no_machine_could_run_asks_for_none() -> None:
    cloud = Cloud()
    cloud.submit(1, needs={"cpu": 8000})
    cloud.wait(10)

    assert cloud.resizes == []


def test_a_provider_that_never_delivers_is_asked_for_no_more_than_the_limit_and_ever_more_rarely() -> None:
    cloud = Cloud()
    cloud.makes = False
    cloud.submit(100)
    cloud.wait(3600)

    assert cloud.most == 4
    assert len(cloud.resizes) < 20
    assert any("it has not joined within 120 s" in why for why in cloud.told)


def test_nodes_below_the_least_are_made_though_nothing_waits_and_stay() -> None:
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


def test_a_cluster_that_has_shrunk_to_nothing_grows_for_a_retry_whose_pause_is_over() -> None:
    cloud = Cloud(ClusterIntent("default", provider="p", capacity={"cpu": 2000}, max_nodes=4, idle_seconds=5))
    job = cloud.submit(1, retries=1, retry=Retry(delay_ms=60_000, delay_max_ms=60_000, jitter_percent=0))
    cloud.wait(10)
    (machine,) = cloud.stage.machines.values()
    machine.end((job, 0), 1, 1000)
    cloud.wait(30)
    while_it_pauses = cloud.nodes
    cloud.wait(60)

    assert (while_it_pauses, cloud.nodes) == (0, 1)


def test_a_cluster_of_which_nothing_is_known_yet_is_taken_for_able_and_found_to_be() -> None:
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


def test_a_cluster_whose_machines_are_not_able_is_found_out_once() -> None:
    cloud = Cloud()
    cloud.submit(1, run=RunMode.ONE_AT_A_TIME)
    cloud.wait(300)

    assert [why.split(":")[0] for why in cloud.resizes] == [
        "adding 1 node to default",
        "taking 1 node from default",
    ]


def test_nodes_that_a_gang_needs_wait_for_one_another() -> None:
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
    assert f"machine {name} is given up: its node is lost" in cloud.told


def test_after_a_restart_it_goes_on_as_before() -> None:
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
def test_the_pause_after_failures_grows_and_has_an_end(failures: int) -> None:
    cluster, wish, now_ms = ClusterRecord("build"), ClusterIntent("build", pause_seconds=2), 0
    for _ in range(failures):
        now_ms = cluster.paused_until_ms
        cluster = cluster.failed(wish.pause_ms(cluster.failures), now_ms, "why", now_ms)

    assert cluster.paused_until_ms - now_ms == min(2000 * 2 ** (failures - 1), 300_000)
