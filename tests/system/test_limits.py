"""Tasks that use too much, or reach for what is not theirs: their node is not affected, and reports why."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.keeper.process.users import is_own
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system

# Doubles until it is stopped, says so, and goes on trying.
BOMB = """
import os, sys, time
while True:
    try:
        os.fork()
    except OSError:
        print("full", flush=True)
        time.sleep(float(sys.argv[1]))
"""
EATS = "data = bytearray(512 << 20)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, nodes=1, settings={"ROTA_PIDS_MAX": "100"}) as cluster:
        yield cluster


def test_out_of_memory_is_reported_and_affects_no_other_task(cluster: LocalCluster) -> None:
    other = cluster.rota("run", "--no-workdir", "--detach", "--", "sleep", "600")
    ran = cluster.rota("run", "--no-workdir", "--limit", "memory=64m", "--", sys.executable, "-c", EATS)
    shown = cluster.rota("show", "last", "--index", "0").out

    assert ran.code == 137
    assert "out of memory: limit 64 MiB, peak " in ran.err
    assert "failed" in shown
    assert "out of memory: limit 64 MiB" in shown
    assert "out of memory: limit 64 MiB" in cluster.rota("ls").out
    assert "out of memory: limit 64 MiB" in cluster.rota("event", "ls").out
    assert cluster.call("GET", f"/v1/jobs/{other.out.strip()}").body["state"] == "active"
    assert cluster.rota("cancel", "--wait", other.out.strip()).code in (0, 130)


@pytest.mark.parametrize(("pause", "most"), [("0.01", ""), ("0", "40")], ids=["the node's", "its own"])
def test_a_fork_bomb_is_stopped_and_its_node_stays_ready(
    cluster: LocalCluster, pause: str, most: str
) -> None:
    """By its own limit, or by that of all the work on a node."""
    is_polling = cluster.node(1)["labels"]["limits"] == "polling"
    most = most or ("40" if is_polling else "")  # without groups only a job's own limit is kept
    more = ("--limit", f"pids={most}") if most else ()
    ran = cluster.rota("run", "--no-workdir", "--detach", *more, "--", sys.executable, "-c", BOMB, pause)
    job = ran.out.strip()
    if is_polling:
        until(lambda: "too many processes: limit 40" in cluster.rota("show", job).out, "its end")
        return
    until(lambda: "full" in cluster.rota("logs", job).out, "a bomb that has gone off")

    assert cluster.node(1)["state"] == "ready"
    assert cluster.rota("cancel", "--wait", job).code in (0, 130)
    until(lambda: not cluster.work(), "the end of the bomb")
    assert cluster.node(1)["state"] == "ready"
    assert cluster.rota("run", "--no-workdir", "--", "true").code == 0


def test_a_node_says_how_it_keeps_limits_and_can_be_chosen_by_it(cluster: LocalCluster) -> None:
    limits = cluster.node(1)["labels"]["limits"]

    assert limits in ("cgroup-v2", "cgroup-v1", "polling")
    assert "  limits     " in cluster.rota("node", "show", "node-1").out
    where = ("--where", f"limits == {limits}")
    assert cluster.rota("run", "--no-workdir", *where, "--", "true").code == 0


def test_tasks_of_a_root_agent_run_as_an_unknown_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        with (
            pytest.raises(ChildProcessError, match="only root can become"),
            LocalCluster(tmp_path, nodes=1, run_as="own"),
        ):
            pass
        return
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        with LocalCluster(Path(directory), nodes=1, run_as="own") as cluster:
            key = cluster.node_directory(1) / "node.pem"
            assert key.exists()
            script = f"id -u; cat {key}; cat {cluster.token_file}; kill -9 {cluster.keepers()[0]}; pwd"
            ran = cluster.rota("run", "--no-workdir", "--", "sh", "-c", script)
            uid, where = ran.out.splitlines()

            assert is_own(int(uid))
            assert where == str(cluster.node_directory(1) / "work" / "1")
            assert cluster.rota("logs", "last").err.count("ermission denied") == 2
            assert cluster.node(1)["state"] == "ready"
