"""Many nodes lose their server at once: all connect to the next one, and no task is restarted."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.testing import processes
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.faults.conftest import FIGURES
from tests.faults.light_nodes import TIMEOUT_SECONDS, LightNodes
from tests.faults.sizes import MANY, FaultSize, size
from tests.machine import needs

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(1700)]
TTL_SECONDS = 10 if MANY else 2
RecordProperty = Callable[[str, object], None]


def test_all_nodes_connect_to_the_next_leader_and_none_is_lost(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    chosen = size(few=FaultSize(faults=1, tasks=30), many=FaultSize(faults=3, tasks=2000))
    nodes = 1000 if MANY else 20
    with (
        LocalEtcd(tmp_path / "etcd", 3) as etcd,
        ElectedCluster(tmp_path, etcd, nodes=0, ttl_seconds=TTL_SECONDS) as cluster,
        LightNodes(cluster, tmp_path / "light", nodes) as light,
    ):
        job = light.fill(chosen.tasks)
        summaries = []
        for _ in range(chosen.faults):
            leader = cluster.wait_for_leader()
            idle_bytes = processes.resident_bytes(cluster.servers[_standby(cluster, leader)].pid)
            began, light_cpu = time.monotonic(), light.cpu_seconds
            cluster.kill(leader)
            after = cluster.wait_for_leader(other_than=leader)
            led, led_cpu = time.monotonic(), processes.cpu_seconds(cluster.servers[after].pid)
            epoch = cluster.call("GET", "/v1/server").body["epoch"]
            until(lambda now=epoch: light.all_connected(now), "all nodes have connected", TIMEOUT_SECONDS)  # type: ignore[misc]
            connected, connected_cpu = time.monotonic(), processes.cpu_seconds(cluster.servers[after].pid)
            each_ms = [
                1000 * seconds / nodes for seconds in (connected_cpu - led_cpu, light.cpu_seconds - light_cpu)
            ]
            until(light.all_ready, "all are ready", TIMEOUT_SECONDS)
            each_kib = (processes.resident_bytes(cluster.servers[after].pid) - idle_bytes) / nodes / 1024
            summaries.append(
                f"led after {led - began:.1f} s, all {connected - led:.1f} s later, each {each_kib:.0f} KiB"
                f" and {each_ms[0]:.1f} ms of a core of the server, {each_ms[1]:.1f} ms of its own"
            )
            cluster.launch(leader)
            until(
                lambda number=leader: cluster.status_of(number) == 503,  # type: ignore[misc]
                "the restarted server is a standby",
                TIMEOUT_SECONDS,
            )
        record_property(FIGURES, f"{nodes} nodes, {chosen.tasks} tasks: " + "; ".join(summaries))
        light.finish(job, chosen.tasks)

        assert light.starts(job) == dict.fromkeys(range(chosen.tasks), 1)
        assert cluster.call("GET", "/v1/events?limit=1000&kind=node.lost").body["events"] == []


def _standby(cluster: ElectedCluster, leader: int) -> int:
    """A standby, for the memory of a server without nodes."""
    return next(number for number in cluster.addresses if number != leader)
