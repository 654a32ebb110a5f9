"""`rota dev`: a whole cluster from one command, also with a store in memory."""

import signal

import pytest

from rota.testing.processes import until
from tests.system.dev import Dev

pytestmark = pytest.mark.system


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_dev_cluster_runs_work_and_leaves_nothing_behind(dev: Dev, store: str) -> None:
    dev.start("--nodes", "2", "--store", store)
    ran = dev.rota("run", "--quiet", "--array", "0-9", "--logs", "--", "echo", "hi")
    version = dev.rota("version")
    code = dev.end(signal.SIGINT)

    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"[{index}] hi" for index in range(10)]
    assert f"store {store}" in version.stdout
    assert code == 0
    until(lambda: not dev.left(), "nothing is left")


def test_an_elastic_dev_cluster_makes_its_nodes_by_itself_and_leaves_nothing_behind(dev: Dev) -> None:
    dev.start("--elastic", "0-2")
    before = dev.rota("node", "ls", "-o", "id")
    ran = dev.rota("run", "--quiet", "--", "sh", "-c", "echo on $ROTA_NODE")
    why = dev.rota("cluster", "why", "default")
    code = dev.end(signal.SIGINT)

    assert before.stdout == ""
    assert ran.stdout == "on default-1\n", ran.stderr
    assert "adding 1 node to default: 1 task waits, which would start; it has 0, its limit is 2" in why.stdout
    assert code == 0
    until(lambda: not dev.left(), "nothing is left")


def test_ending_a_dev_cluster_with_a_follower_prints_no_traceback(dev: Dev) -> None:
    dev.start()
    follower = dev.begin("run", "--", "sh", "-c", "echo begun; exec sleep 600")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"begun\n"

    code = dev.end(signal.SIGINT)
    follower.kill()
    follower.communicate()

    assert code == 0
    assert "Traceback" not in dev.output()


def test_a_dev_cluster_does_not_wait_for_a_node_whose_agent_has_ended(dev: Dev) -> None:
    bad = ("--resource", "node-1:cpu=x")  # that agent refuses it
    directory = dev.directory / "data"
    ended = dev.rota("dev", "--port", "0", "--nodes", "2", *bad, "--data-dir", str(directory))

    assert ended.returncode == 75
    assert "some nodes are not ready after " in ended.stderr
    assert f"see {directory}/node-1/agent.log" in ended.stderr
    until(lambda: not dev.left(), "nothing is left")
