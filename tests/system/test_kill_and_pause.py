"""A signal, a kill and a pause reach exactly the attempts that are meant, on the node that holds them."""

from pathlib import Path

import pytest

from rota.client.cluster import Cluster
from rota.client.errors import Conflict, Rejected
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system

NOTES = 'trap "echo $ROTA_INDEX >> {heard}" USR1; trap "" TERM; echo ready; while :; do sleep 0.05; done'


def test_a_signal_reaches_one_task_once_and_the_task_continues(
    client: Cluster, three: LocalCluster, tmp_path: Path
) -> None:
    signals = tmp_path / "heard"
    job = client.submit("sh", "-c", NOTES.format(heard=signals), count=3, grace=60)
    until(lambda: job.logs().count("ready") == 3, "all tasks run")

    ran = three.rota("kill", job.id, "--task", "1", "--signal", "SIGUSR1")
    until(lambda: signals.exists() and signals.read_text(), "it is heard")
    three.rota("kill", job.id, "--signal", "usr1")
    until(lambda: len(signals.read_text().split()) >= 4, "all have heard the second")

    assert ran.code == 0, ran.err
    assert sorted(signals.read_text().split()) == ["0", "1", "1", "2"]
    assert job.refresh().counts["running"] == 3
    job.kill()
    assert job.wait(60).state == "canceled"


def test_a_killed_task_gets_no_grace_and_no_sigterm(client: Cluster) -> None:
    job = client.submit("sh", "-c", NOTES.format(heard="/dev/null"), grace=600)
    until(lambda: "ready" in job.logs(), "it runs")

    job.cancel()
    until(lambda: job.task(0).state == "stopping", "it is being stopped")
    job.kill()

    assert job.wait(60).state == "canceled"
    assert job.task(0).signal == 9


def test_one_task_of_an_array_is_canceled_and_the_others_continue(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    """One that runs, and one that was never placed."""
    job = client.submit(*witness.script(gate.wait), count=600, parallel=2)
    until(lambda: three.count(job.id, "running") == 2, "two run")
    witness.wait_for(2)
    ran = three.rota("cancel", job.id, "--task", "1,599")
    until(lambda: three.count(job.id, "canceled") == 2, "both are canceled")
    more = three.rota("cancel", job.id, "--task", "3-598")
    gate.open()

    assert (ran.code, more.code) == (0, 0), ran.err + more.err
    assert job.wait(60).state == "canceled"
    assert job.status.counts["succeeded"] == 2
    assert set(witness.starts()) == {0, 1, 2}


def test_a_signal_that_does_not_exist_is_named(client: Cluster, three: LocalCluster) -> None:
    job = client.submit("sleep", "600")
    until(lambda: job.refresh().counts["running"] == 1, "it runs")
    ran = three.rota("kill", job.id, "--signal", "USR7")
    with pytest.raises(Rejected) as nobody:
        job.kill(indices=[3])
    job.kill()
    ended = job.wait(60)

    assert ran.code == 2
    assert "signal: 'USR7' is not a signal" in ran.err
    assert "did you mean USR" in ran.err
    assert nobody.value.field == "indices"
    assert ended.reason == "killed by local"
    with pytest.raises(Conflict):
        job.kill("HUP")


def test_no_task_of_a_paused_job_starts_and_running_ones_continue(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = client.submit(*witness.script(gate.wait), count=20, parallel=2)
    until(lambda: three.count(job.id, "running") == 2, "two run")
    ran = three.rota("pause", job.id)
    gate.open()
    until(lambda: three.count(job.id, "succeeded") == 2, "those end")
    why = three.rota("why", job.id).out
    shown = three.rota("show", job.id).out
    started = len(witness.starts())
    resumed = three.rota("resume", job.id)

    assert (ran.code, resumed.code) == (0, 0), ran.err + resumed.err
    assert "paused" in ran.err
    assert "paused" in shown
    assert "it is paused" in why
    assert f"rota resume {job.id}" in why
    assert started == 2
    assert job.wait(60).state == "succeeded"
    assert len(witness.starts()) == 20


def test_a_task_stopped_by_a_pause_is_restarted_without_using_a_retry(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = client.submit(*witness.script(gate.wait), count=2, retries=0)
    until(lambda: three.count(job.id, "running") == 2, "both run")
    witness.wait_for(2)
    job.pause(stop=True)
    until(lambda: three.count(job.id, "pending") == 2, "both are stopped")
    three.kill_server()
    three.start_server()
    still = job.refresh().state
    gate.open()
    job.resume()

    assert still == "paused"
    assert job.wait(60).state == "succeeded"
    assert witness.starts() == {0: 2, 1: 2}


def test_a_paused_job_can_be_canceled(client: Cluster) -> None:
    job = client.submit("true", cpu=4000)
    job.pause()
    job.cancel()

    assert job.wait(60).state == "canceled"
    with pytest.raises(Conflict):
        job.pause()
