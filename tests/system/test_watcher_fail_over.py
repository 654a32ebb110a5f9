"""Watchers when the leader changes: three servers on etcd, and nodes that are connected to watchers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.machine import needs
from tests.system.test_watcher import Work, connected, runs_a_job

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(600)]
PATIENCE_SECONDS = 120
NODES = (1, 2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ElectedCluster]:
    """Nodes connect to watchers; one of the watchers reaches the leader through a server that never leads."""
    with (
        LocalEtcd(tmp_path / "etcd", 1) as etcd,
        ElectedCluster(tmp_path / "cluster", etcd, nodes=0, never_lead=(3,)) as running,
    ):
        running.environment |= {"ROTA_ADDR": running.addr, "ROTA_TOKEN": running.token}
        ports = [
            running.start_watcher(1),
            running.start_watcher(2, ROTA_SERVER_ADDR=running.addresses[3].agent),
        ]
        for number in NODES:
            address = ports[number - 1]
            running.start_agent(number, ROTA_SERVER_ADDR=address)
        until(
            lambda: all(connected(running, number, ports[number - 1]) for number in NODES), "they are there"
        )
        until(lambda: runs_a_job(running), "a job runs", PATIENCE_SECONDS)
        yield running


def attached(cluster: ElectedCluster, watcher: int) -> int:
    return cluster.watcher_log(watcher).count('"event": "attached"')


def test_nodes_behind_watchers_survive_a_killed_leader(cluster: ElectedCluster, tmp_path: Path) -> None:
    work = Work(cluster, tmp_path)
    before = [attached(cluster, number) for number in NODES]
    leader = cluster.wait_for_leader()
    cluster.kill(leader)
    cluster.wait_for_leader(other_than=leader)
    until(
        lambda: all(attached(cluster, number) > seen for number, seen in zip(NODES, before, strict=True)),
        "both watchers are attached to the next",
        PATIENCE_SECONDS,
    )
    until(lambda: runs_a_job(cluster), "a job runs", PATIENCE_SECONDS)

    work.check()


def test_watchers_leave_a_frozen_leader_and_its_late_orders_start_nothing(
    cluster: ElectedCluster, tmp_path: Path
) -> None:
    work = Work(cluster, tmp_path)
    leader = cluster.wait_for_leader()
    with cluster.paused(leader):
        cluster.wait_for_leader(other_than=leader)
        until(lambda: runs_a_job(cluster), "a job runs", PATIENCE_SECONDS)
    until(lambda: len(cluster.leaders()) == 1, "one leads", PATIENCE_SECONDS)

    work.check()
