"""A server that stood still and goes on: it writes nothing, starts nothing and takes no node for lost."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.faults.conftest import FIGURES
from tests.faults.epochs import epochs_written
from tests.faults.light_nodes import LightNodes
from tests.faults.sizes import MANY, Size, size
from tests.faults.submitter import PATIENCE_SECONDS, Submitter
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(3400)]
NODES = 50 if MANY else 10
LEADER_SLEEPS_SECONDS = 30.0 if MANY else 0.0  # at least until every node has gone over to another
LOST_SECONDS = 30 if MANY else 6
LONE_SLEEPS_SECONDS = 2.0 * LOST_SECONDS
Tell = Callable[[str, object], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ElectedCluster]:
    with LocalEtcd(tmp_path / "etcd", 3) as etcd, ElectedCluster(tmp_path, etcd) as running:
        yield running


@needs("etcd")
def test_a_leader_that_slept_writes_nothing_and_no_node_is_lost(
    cluster: ElectedCluster, tmp_path: Path, record_property: Tell
) -> None:
    wanted = size(few=Size(faults=1, tasks=20), many=Size(faults=30, tasks=100))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    with LightNodes(cluster, tmp_path / "light", NODES) as light:
        light_job = light.fill(wanted.tasks)
        job = cluster.submit(*witness.script(gate.wait), count=6, where=["number exists"])
        until(lambda: cluster.count(job, "running") == 6, "all tasks run")
        with Submitter(cluster, pause_seconds=0.2) as submitter:
            for _ in range(wanted.faults):
                leader = cluster.wait_for_leader()
                began = time.monotonic()
                with cluster.paused(leader):
                    cluster.wait_for_leader(other_than=leader)
                    submitter.go_on()
                    _come(cluster, light)
                    time.sleep(max(0.0, began + LEADER_SLEEPS_SECONDS - time.monotonic()))
                until(lambda who=leader: cluster.status_of(who) == 503, "it stands by")  # type: ignore[misc]
                submitter.go_on()
        gate.open()
        light.finish(light_job, wanted.tasks)
        until(lambda: cluster.count(job, "succeeded") == 6, "all tasks end")

        submits = len(submitter.acknowledged)
        record_property(FIGURES, f"{wanted.faults} times, {NODES} light nodes, {submits} submits")
        submitter.check()
        assert light.starts(light_job) == dict.fromkeys(range(wanted.tasks), 1)
    assert witness.starts() == dict.fromkeys(range(6), 1)
    assert _lost(cluster) == []
    written = epochs_written(cluster)
    assert written == sorted(written)
    assert len(set(written)) > wanted.faults


def test_a_lone_server_that_slept_takes_no_node_for_lost(tmp_path: Path, record_property: Tell) -> None:
    """Though it slept longer than the grace it gives to nodes."""
    wanted = size(few=Size(faults=1, tasks=20), many=Size(faults=3, tasks=100))
    settings = {"ROTA_LOST_SECONDS": str(LOST_SECONDS)}
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    with LocalCluster(tmp_path / "cluster", settings=settings) as cluster:
        with LightNodes(cluster, tmp_path / "light", NODES) as light:
            light_job = light.fill(wanted.tasks)
            job = cluster.submit(*witness.script(gate.wait), count=6, where=["number exists"])
            until(lambda: cluster.count(job, "running") == 6, "all tasks run")
            for _ in range(wanted.faults):
                cluster.signal_server(signal.SIGSTOP)
                time.sleep(LONE_SLEEPS_SECONDS)  # the pause is what this is about
                cluster.signal_server(signal.SIGCONT)
                until(light.all_ready, "every node is heard", PATIENCE_SECONDS)
            gate.open()
            light.finish(light_job, wanted.tasks)
            until(lambda: cluster.count(job, "succeeded") == 6, "all tasks end")

            record_property(FIGURES, f"{wanted.faults} times {LONE_SLEEPS_SECONDS:g} s, {NODES} nodes")
            assert light.starts(light_job) == dict.fromkeys(range(wanted.tasks), 1)
        assert witness.starts() == dict.fromkeys(range(6), 1)
        assert _lost(cluster) == []


def _come(cluster: ElectedCluster, light: LightNodes) -> None:
    """Every node, to the one that leads now, though nobody has hung up on it."""
    epoch = cluster.call("GET", "/v1/server").body["epoch"]
    said = f'"epoch": {epoch}, "event": "connected"'
    for number in cluster.numbers:
        until(lambda node=number: said in cluster.agent_log(node), "it has come", PATIENCE_SECONDS)  # type: ignore[misc]
    until(lambda: light.all_connected(epoch), "the light ones have come", PATIENCE_SECONDS)


def _lost(cluster: LocalCluster) -> list[object]:
    return list(cluster.call("GET", "/v1/events?limit=1000&kind=node.lost").body["events"])
