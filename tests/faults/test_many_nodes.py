"""Many nodes lose their server at once: all come to the next one, and nothing of theirs is started again."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.testing import processes
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.faults.conftest import FIGURES
from tests.faults.light_nodes import PATIENCE_SECONDS, LightNodes
from tests.faults.sizes import MANY, Size, size
from tests.machine import needs

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(1700)]
TTL_SECONDS = 10 if MANY else 2
Tell = Callable[[str, object], None]


def test_all_nodes_come_to_the_next_leader_and_none_is_lost(tmp_path: Path, record_property: Tell) -> None:
    wanted = size(few=Size(faults=1, tasks=30), many=Size(faults=3, tasks=2000))
    nodes = 1000 if MANY else 20
    with (
        LocalEtcd(tmp_path / "etcd", 3) as etcd,
        ElectedCluster(tmp_path, etcd, nodes=0, ttl_seconds=TTL_SECONDS) as cluster,
        LightNodes(cluster, tmp_path / "light", nodes) as light,
    ):
        job = light.fill(wanted.tasks)
        told = []
        for _ in range(wanted.faults):
            leader = cluster.wait_for_leader()
            idle_bytes = processes.resident_bytes(cluster.servers[_next(cluster, leader)].pid)
            began, light_cpu = time.monotonic(), light.cpu_seconds
            cluster.kill(leader)
            after = cluster.wait_for_leader(other_than=leader)
            led, led_cpu = time.monotonic(), processes.cpu_seconds(cluster.servers[after].pid)
            epoch = cluster.call("GET", "/v1/server").body["epoch"]
            until(lambda now=epoch: light.all_connected(now), "all have come", PATIENCE_SECONDS)  # type: ignore[misc]
            came, came_cpu = time.monotonic(), processes.cpu_seconds(cluster.servers[after].pid)
            each_ms = [
                1000 * seconds / nodes for seconds in (came_cpu - led_cpu, light.cpu_seconds - light_cpu)
            ]
            until(light.all_ready, "all are ready", PATIENCE_SECONDS)
            each_kib = (processes.resident_bytes(cluster.servers[after].pid) - idle_bytes) / nodes / 1024
            told.append(
                f"led after {led - began:.1f} s, all back {came - led:.1f} s later, each {each_kib:.0f} KiB"
                f" and {each_ms[0]:.1f} ms of a core of the server, {each_ms[1]:.1f} ms of its own"
            )
            cluster.launch(leader)
            until(lambda who=leader: cluster.status_of(who) == 503, "it stands by", PATIENCE_SECONDS)  # type: ignore[misc]
        record_property(FIGURES, f"{nodes} nodes, {wanted.tasks} tasks: " + "; ".join(told))
        light.finish(job, wanted.tasks)

        assert light.starts(job) == dict.fromkeys(range(wanted.tasks), 1)
        assert cluster.call("GET", "/v1/events?limit=1000&kind=node.lost").body["events"] == []


def _next(cluster: ElectedCluster, leader: int) -> int:
    """One of those that stand by: what a server holds before anybody comes."""
    return next(number for number in cluster.places if number != leader)
