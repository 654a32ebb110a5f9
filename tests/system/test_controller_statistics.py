"""Load of nodes, the queue and the leader reach a controller over controller.proto; real processes."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wire.generated import controller_pb2 as pb
from tests.system.controller import Outside
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes of two cores with a GPU each, which report every second."""
    program = tmp_path_factory.mktemp("gpus") / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.touch(0o755)
    program.write_text("#!/bin/sh\necho 'NVIDIA A100, 37, 40960, 1024'\n")
    settings = {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "ROTA_REPORT_SECONDS_LEAST": "1",
        "ROTA_REPORT_SECONDS_MOST": "1",
    }
    directory = tmp_path_factory.mktemp("nodes")
    with LocalCluster(directory, nodes=2, cpu=2, settings=settings) as running:
        until(lambda: all(has_gpu(running, number) for number in (1, 2)), "both have told of their GPU")
        yield running


@pytest.fixture
def outside(nodes: LocalCluster) -> Iterator[Outside]:
    with Outside(nodes) as connected:
        yield connected


def has_gpu(cluster: LocalCluster, number: int) -> bool:
    return bool((cluster.node(number)["statistics"] or {}).get("gpus"))


def summary(watching: Any) -> list[pb.Summary]:
    """All parts of the next summary."""
    parts = []
    for batch in watching:
        if batch.HasField("summary"):
            parts.append(batch.summary)
            if batch.summary.last:
                return parts
    raise AssertionError("the stream ended")


def check_measured(statistics: pb.NodeStatistics) -> None:
    assert statistics.cores >= 1
    assert statistics.memory_total >= statistics.memory_free > 0
    assert statistics.disk_free > 0
    assert all(disk.total >= disk.free and disk.path for disk in statistics.disks)
    assert statistics.disks
    assert [(gpu.name, gpu.busy, gpu.memory_total) for gpu in statistics.gpus] == [
        ("NVIDIA A100", 37, 40960 * 1024**2)
    ]


def test_the_state_has_the_statistics_of_each_node(outside: Outside) -> None:
    lines = [line for page in outside.call("State", pb.StateRequest()) for line in page.nodes]

    assert sorted(line.name for line in lines) == ["node-1", "node-2"]
    for line in lines:
        assert line.statistics.node == line.id
        check_measured(line.statistics)


def test_summaries_arrive_at_the_requested_interval(
    outside: Outside, nodes: LocalCluster, gate: Gate
) -> None:
    job = nodes.submit("sh", "-c", gate.wait, count=6, cpu=1)
    until(lambda: nodes.count(job, "running") == 4, "four run, and two wait")
    watching = outside.call("Watch", pb.WatchRequest(statistics_interval_ms=1000))
    first, second = summary(watching), summary(watching)
    watching.cancel()
    gate.open()

    by_node = {statistics.node: statistics for part in first for statistics in part.nodes}
    assert {statistics.running for statistics in by_node.values()} == {2}
    for statistics in by_node.values():
        check_measured(statistics)
    assert (first[0].queue.jobs, first[0].queue.tasks) == (1, 2)
    assert first[0].at_ms < second[0].at_ms
    assert {statistics.node for part in second for statistics in part.nodes} <= set(by_node)
    until(lambda: nodes.call("GET", f"/v1/jobs/{job}").body["state"] == "succeeded", "the job ends")


def test_no_summary_arrives_unless_requested(outside: Outside, nodes: LocalCluster) -> None:
    watching = outside.call("Watch", pb.WatchRequest(after="0.0"))
    job = nodes.submit("true")
    for batch in watching:
        assert not batch.HasField("summary")
        if any((event.job, event.kind) == (job, "job.ended") for event in batch.events):
            break
    watching.cancel()


@pytest.mark.parametrize("interval_ms", [1, 999, 3_600_001])
def test_an_interval_out_of_bounds_is_refused(outside: Outside, interval_ms: int) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        next(outside.call("Watch", pb.WatchRequest(statistics_interval_ms=interval_ms)))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (refused.value.details() or "").startswith("statistics_interval_ms: ")


def test_queue_length_and_leader_changes_are_replayable_events(cluster: LocalCluster, gate: Gate) -> None:
    job = cluster.submit("sh", "-c", gate.wait, count=20, cpu=1)
    with Outside(cluster) as outside:
        watching = outside.call("Watch", pb.WatchRequest(after="0.0"))
        lengths = (event.counts for event in events_of(watching) if event.kind == "queue.changed")
        waits = next(dict(counts) for counts in lengths if counts["tasks"] > 0)
        gate.open()
        empty = next(dict(counts) for counts in lengths if counts["tasks"] == 0)
        watching.cancel()
        until(lambda: cluster.call("GET", f"/v1/jobs/{job}").body["state"] == "succeeded", "the job ends")
        cluster.kill_server()
        cluster.start_server()

        again = outside.call("Watch", pb.WatchRequest(after="0.0"))
        leaders = (event.counts["epoch"] for event in events_of(again) if event.kind == "leader.elected")
        epochs = [next(leaders), next(leaders)]
        again.cancel()

    assert (waits, empty) == ({"jobs": 1, "tasks": 8}, {"jobs": 0, "tasks": 0})
    assert epochs[0] < epochs[1]


def events_of(watching: Any) -> Iterator[pb.Event]:
    for batch in watching:
        yield from batch.events
