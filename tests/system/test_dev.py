"""`rota dev`: a whole cluster from one command, also without anything on disk to come back to."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import rota
from rota.testing.processes import kill_all, until, with_argument

pytestmark = pytest.mark.system
LINE = (sys.executable, "-m", "rota.cli.main")
STOP_SECONDS = 120


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_dev_cluster_runs_work_and_leaves_nothing_behind(
    environment: Mapping[str, str], directory: Path, store: str
) -> None:
    given = ("dev", "--port", "0", "--nodes", "2", "--store", store, "--data-dir", str(directory))
    dev = subprocess.Popen([*LINE, *given], env=environment, stderr=subprocess.PIPE, text=True)
    assert dev.stderr is not None
    assert any("next: rota run" in told for told in iter(dev.stderr.readline, ""))

    ran = command_line(environment, "run", "--quiet", "--array", "0-9", "--logs", "--", "echo", "hi")
    version = command_line(environment, "version")
    dev.send_signal(signal.SIGINT)
    dev.communicate(timeout=STOP_SECONDS)

    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"[{index}] hi" for index in range(10)]
    assert f"store {store}" in version.stdout
    assert dev.returncode == 0
    until(lambda: not with_argument(str(directory)), "nothing is left")


def test_an_elastic_dev_cluster_makes_its_nodes_by_itself_and_leaves_nothing_behind(
    environment: Mapping[str, str], directory: Path
) -> None:
    given = ("dev", "--port", "0", "--elastic", "0-2", "--data-dir", str(directory))
    dev = subprocess.Popen([*LINE, *given], env=environment, stderr=subprocess.PIPE, text=True)
    assert dev.stderr is not None
    assert any("next: rota run" in told for told in iter(dev.stderr.readline, ""))

    before = command_line(environment, "node", "ls", "-o", "id")
    ran = command_line(environment, "run", "--quiet", "--", "sh", "-c", "echo on $ROTA_NODE")
    told = command_line(environment, "cluster", "why", "default")
    dev.send_signal(signal.SIGINT)
    dev.communicate(timeout=STOP_SECONDS)

    assert before.stdout == ""
    assert ran.stdout == "on default-1\n", ran.stderr
    assert (
        "adding 1 node to default: 1 task waits, which would start; it has 0, its limit is 2" in told.stdout
    )
    assert dev.returncode == 0
    until(lambda: not with_argument(str(directory)), "nothing is left")


def test_ending_a_cluster_that_somebody_follows_prints_no_traceback(
    environment: Mapping[str, str], directory: Path
) -> None:
    given = ("dev", "--port", "0", "--data-dir", str(directory))
    dev = subprocess.Popen([*LINE, *given], env=environment, stderr=subprocess.PIPE, text=True)
    assert dev.stderr is not None
    assert any("next: rota run" in told for told in iter(dev.stderr.readline, ""))
    asked = [*LINE, "run", "--", "sh", "-c", "echo begun; exec sleep 600"]
    follower = subprocess.Popen(asked, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"begun\n"

    dev.send_signal(signal.SIGINT)
    told = dev.communicate(timeout=STOP_SECONDS)[1]
    follower.kill()
    follower.communicate()

    assert dev.returncode == 0
    assert "Traceback" not in told


def test_a_dev_cluster_does_not_wait_for_a_node_whose_agent_has_ended(
    environment: Mapping[str, str], directory: Path
) -> None:
    bad = ("--resource", "node-1:cpu=x")  # that agent refuses it
    ended = command_line(
        environment, "dev", "--port", "0", "--nodes", "2", *bad, "--data-dir", str(directory)
    )

    assert ended.returncode == 75
    assert "some nodes are not ready after " in ended.stderr
    assert f"see {directory}/node-1/agent.log" in ended.stderr
    until(lambda: not with_argument(str(directory)), "nothing is left")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Whatever still runs in it when the test is over is ended."""
    yield tmp_path / "data"
    kill_all(lambda: with_argument(str(tmp_path / "data")))


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(rota.__file__).parents[1]),
        "ROTA_CONFIG": str(tmp_path / "config.toml"),
    }


def command_line(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LINE, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
