"""Small tasks on nodes that are equally busy with other things: each node gets its share of them."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system
BURN = """
import os, time
end = time.monotonic() + 120
while time.monotonic() < end and os.getppid() == {parent}:
    pass
"""
BUSY = 0.5  # of the machine's cpu
TASKS, NODES = 12, 3


@contextmanager
def burning() -> Iterator[None]:
    """Every core of this machine is busy: for two minutes at most, and not after the test."""
    script = BURN.format(parent=os.getpid())
    burners = [
        subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", script]) for _ in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()


def test_a_burst_of_small_tasks_is_spread_over_busy_nodes(tmp_path: Path, gate: Gate) -> None:
    cores = len(os.sched_getaffinity(0))
    settings = {"ROTA_REPORT_SECONDS_LEAST": "1", "ROTA_REPORT_SECONDS_MOST": "1"}
    with LocalCluster(tmp_path, NODES, cpu=cores, settings=settings) as cluster, burning():
        until(lambda: all(is_busy(cluster, number) for number in cluster.numbers), "all nodes say so")

        job = cluster.submit("sh", "-c", gate.wait, cpu=0.1, count=TASKS)

        until(lambda: cluster.count(job, "running") == TASKS, "all run")
        tasks = cluster.call("GET", f"/v1/jobs/{job}/tasks").body["tasks"]
        nodes = Counter(task["node"] for task in tasks)
        gate.open()
        assert len(nodes) == NODES
        assert max(nodes.values()) <= TASKS // 2, nodes


def is_busy(cluster: LocalCluster, number: int) -> bool:
    node = cluster.node(number)
    return float((node["used"] or {}).get("cpu") or 0) >= BUSY * float(node["capacity"]["cpu"])
