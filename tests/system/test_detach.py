"""Detaching from a job and coming back to it: Ctrl-C, --detach, wait, logs -f."""

import signal
import subprocess

import pytest

from rota.testing.cluster import LocalCluster
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system


def test_ctrl_c_detaches_and_the_job_continues(shared: LocalCluster, gate: Gate) -> None:
    running = shared.start_rota("run", "--", "sh", "-c", f"echo began; {gate.wait}; echo ended; exit 9")
    job = until_it_began(shared, running)

    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)

    assert running.returncode == 130
    assert f"job {job} keeps running: rota wait {job}" in err.decode()
    gate.open()
    assert shared.rota("wait", job).code == 9
    assert shared.rota("logs", job).out == "began\nended\n"


def test_ctrl_c_cancels_if_requested(shared: LocalCluster, gate: Gate) -> None:
    line = ("run", "--cancel-on-interrupt", "--grace", "0s", "--", "sh", "-c", f"echo began; {gate.wait}")
    running = shared.start_rota(*line)
    job = until_it_began(shared, running)

    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)

    assert running.returncode == 130
    assert shared.call("GET", f"/v1/jobs/{job}").body["state"] == "canceled"


def test_a_detached_job_is_waited_for_and_its_output_followed(shared: LocalCluster, gate: Gate) -> None:
    ran = shared.rota("run", "--detach", "--", "sh", "-c", f"echo one; {gate.wait}; echo two; exit 4")
    job = ran.out.strip()
    assert (ran.code, job.isdecimal()) == (0, True)
    following = shared.start_rota("logs", "-f", job)
    waiting = shared.start_rota("wait", job)
    assert following.stdout is not None
    assert following.stdout.readline() == b"one\n"

    gate.open()

    out, _ = following.communicate(timeout=60)
    assert (following.returncode, out) == (0, b"two\n")
    assert waiting.wait(60) == 4


def until_it_began(cluster: LocalCluster, running: subprocess.Popen[bytes]) -> str:
    """The id of the job, once its first line has come."""
    assert running.stdout is not None
    assert running.stdout.readline() == b"began\n"
    return str(cluster.call("GET", "/v1/jobs/last").body["id"])
