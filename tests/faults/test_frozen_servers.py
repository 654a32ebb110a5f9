"""A server that was stopped and resumed: it commits nothing, starts nothing and declares no node lost."""

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
from tests.faults.sizes import MANY, FaultSize, size
from tests.faults.submitter import TIMEOUT_SECONDS, LoadSubmitter
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(3400)]
NODES = 50 if MANY else 10
LEADER_STOPPED_SECONDS = 30.0 if MANY else 0.0  # at least until every node has connected to another
LOST_SECONDS = 30 if MANY else 6
SINGLE_STOPPED_SECONDS = 2.0 * LOST_SECONDS
RecordProperty = Callable[[str, object], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ElectedCluster]:
    with LocalEtcd(tmp_path / "etcd", 3) as etcd, ElectedCluster(tmp_path, etcd) as running:
        yield running


@needs("etcd")
def test_a_resumed_leader_writes_nothing_and_no_node_is_lost(
    cluster: ElectedCluster, tmp_path: Path, record_property: RecordProperty
) -> None:
    chosen = size(few=FaultSize(faults=1, tasks=20), many=FaultSize(faults=30, tasks=100))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    with LightNodes(cluster, tmp_path / "light", NODES) as light:
        light_job = light.fill(chosen.tasks)
        job = cluster.submit(*witness.script(gate.wait), count=6, where=["number exists"])
        until(lambda: cluster.count(job, "running") == 6, "all tasks run")
        with LoadSubmitter(cluster, pause_seconds=0.2) as submitter:
            for _ in range(chosen.faults):
                leader = cluster.wait_for_leader()
                began = time.monotonic()
                with cluster.paused(leader):
                    cluster.wait_for_leader(other_than=leader)
                    submitter.wait_for_more()
                    _wait_for_nodes(cluster, light)
                    time.sleep(max(0.0, began + LEADER_STOPPED_SECONDS - time.monotonic()))
                until(
                    lambda number=leader: cluster.status_of(number) == 503,  # type: ignore[misc]
                    "the resumed server is a standby",
                )
                submitter.wait_for_more()
        gate.open()
        light.finish(light_job, chosen.tasks)
        until(lambda: cluster.count(job, "succeeded") == 6, "all tasks end")

        submits = len(submitter.acknowledged)
        record_property(FIGURES, f"{chosen.faults} times, {NODES} light nodes, {submits} submits")
        submitter.check()
        assert light.starts(light_job) == dict.fromkeys(range(chosen.tasks), 1)
    assert witness.starts() == dict.fromkeys(range(6), 1)
    assert _lost(cluster) == []
    written = epochs_written(cluster)
    assert written == sorted(written)
    assert len(set(written)) > chosen.faults


def test_a_resumed_single_server_declares_no_node_lost(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    """It was stopped for longer than the grace of nodes."""
    chosen = size(few=FaultSize(faults=1, tasks=20), many=FaultSize(faults=3, tasks=100))
    settings = {"ROTA_LOST_SECONDS": str(LOST_SECONDS)}
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    with LocalCluster(tmp_path / "cluster", settings=settings) as cluster:
        with LightNodes(cluster, tmp_path / "light", NODES) as light:
            light_job = light.fill(chosen.tasks)
            job = cluster.submit(*witness.script(gate.wait), count=6, where=["number exists"])
            until(lambda: cluster.count(job, "running") == 6, "all tasks run")
            for _ in range(chosen.faults):
                cluster.signal_server(signal.SIGSTOP)
                time.sleep(SINGLE_STOPPED_SECONDS)  # the duration is what this tests
                cluster.signal_server(signal.SIGCONT)
                until(light.all_ready, "every node is ready", TIMEOUT_SECONDS)
            gate.open()
            light.finish(light_job, chosen.tasks)
            until(lambda: cluster.count(job, "succeeded") == 6, "all tasks end")

            record_property(FIGURES, f"{chosen.faults} times {SINGLE_STOPPED_SECONDS:g} s, {NODES} nodes")
            assert light.starts(light_job) == dict.fromkeys(range(chosen.tasks), 1)
        assert witness.starts() == dict.fromkeys(range(6), 1)
        assert _lost(cluster) == []


def _wait_for_nodes(cluster: ElectedCluster, light: LightNodes) -> None:
    """Wait until every node has connected to the new leader, though the old one has closed no stream."""
    epoch = cluster.call("GET", "/v1/server").body["epoch"]
    logged = f'"epoch": {epoch}, "event": "connected"'
    for number in cluster.numbers:
        until(
            lambda node=number: logged in cluster.agent_log(node),  # type: ignore[misc]
            "the node has connected",
            TIMEOUT_SECONDS,
        )
    until(lambda: light.all_connected(epoch), "the light nodes have connected", TIMEOUT_SECONDS)


def _lost(cluster: LocalCluster) -> list[object]:
    return list(cluster.call("GET", "/v1/events?limit=1000&kind=node.lost").body["events"])
