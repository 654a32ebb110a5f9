"""Jobs that do not fit wait, and say for what."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=0) as running:
        yield running


def test_jobs_wait_for_the_first_node(empty: LocalCluster) -> None:
    running = empty.start_rota("run", "--", "echo", "at last")
    assert running.stderr is not None
    line = running.stderr.readline().decode()
    assert line.startswith("job 1 waits: ")
    assert "rota node token" in line

    why = empty.rota("why", "1")
    assert (why.code, why.err) == (0, "")
    assert "no node has joined" in why.out

    empty.start_agent(1)

    out, _ = running.communicate(timeout=120)
    assert (running.returncode, out) == (0, b"at last\n")


def test_a_full_cluster_gives_every_reason_and_the_smallest_change(cluster: LocalCluster, gate: Gate) -> None:
    """node-1 is cordoned, node-2 has one core free, node-3 is full."""
    assert cluster.rota("node", "cordon", "node-1").code == 0
    blockers = [
        cluster.submit("sh", "-c", gate.wait, cpu=3, where=["number == 2"]),
        cluster.submit("sh", "-c", gate.wait, cpu=4, where=["number == 3"]),
    ]
    until(lambda: all(cluster.count(job, "running") for job in blockers), "the cluster is full")
    waiting = cluster.submit("true", cpu=2, name="patient")

    why = cluster.call("GET", f"/v1/jobs/{waiting}/why").body

    assert why["waits"]
    assert sum(reason["count"] for reason in why["reasons"]) == 3
    texts = " · ".join(reason["text"] for reason in why["reasons"])
    assert "1 of 3 nodes" in texts
    assert "cordon" in texts
    assert "2 of 3 nodes have too little free cpu: largest free 1, asked 2" in texts
    assert any("node-2" in change and "cpu <= 1" in change for change in why["changes"]), why
    assert cluster.rota("why", "patient").out.count("\n") >= 4

    gate.open()

    assert cluster.rota("wait", waiting).code == 0


def test_a_job_that_no_node_could_ever_run_says_so(shared: LocalCluster) -> None:
    job = shared.submit("true", cpu=100)

    out = shared.rota("why", job).out

    assert "1 of 1 nodes has too little cpu in all: largest 4, asked 100" in out
    assert "cpu <= 4" in out
    assert shared.rota("cancel", job).code == 0


def test_a_label_no_node_has_is_a_reason(shared: LocalCluster) -> None:
    job = shared.submit("true", where=["region == eu"])

    assert "region == eu" in shared.rota("why", job).out
    assert shared.rota("cancel", job).code == 0
