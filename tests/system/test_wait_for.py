"""`rota wait` waits for states and events, of one job or of several."""

from collections.abc import Iterator

import pytest

from rota.client.cluster import Cluster, connect
from rota.client.errors import Rejected, TimedOut
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def client(shared: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{shared.http}", token=shared.token) as opened:
        yield opened


def test_a_state_is_waited_for(client: Cluster, shared: LocalCluster, gate: Gate) -> None:
    job = client.submit("sh", "-c", gate.wait)
    runs = shared.rota("wait", job.id, "--for", "running")
    pauses = shared.start_rota("wait", job.id, "--for", "paused")
    job.pause()
    paused = pauses.wait(60)
    gate.open()
    ended = shared.rota("wait", job.id, "--for", "succeeded")
    missed = shared.rota("wait", job.id, "--for", "failed")

    assert (runs.code, paused, ended.code, missed.code) == (0, 0, 0, 1)
    assert f"job {job.id}: running" in runs.err
    assert f"job {job.id}: succeeded, without failed" in missed.err


def test_an_event_is_waited_for_also_a_past_one(client: Cluster, shared: LocalCluster) -> None:
    job = client.submit("sh", "-c", "exit $(( ROTA_ATTEMPT < 2 ))", retries=1)

    assert job.wait_for("task.retry", 60)
    assert job.wait(60).state == "succeeded"
    assert job.wait_for("task.retry", 60)
    assert not job.wait_for("task.restart", 60)
    assert shared.rota("wait", job.id, "--for", "task.restart").code == 1


def test_any_of_several_conditions_is_enough_if_requested(client: Cluster, shared: LocalCluster) -> None:
    long, short = client.submit("sleep", "600"), client.submit("true")
    first = shared.rota("wait", long.id, short.id, "--any")
    both = shared.rota("wait", long.id, short.id, "--timeout", "0.2s")
    long.kill()
    canceled = shared.rota("wait", long.id, short.id)

    assert first.code == 0
    assert f"job {short.id}" in first.err
    assert both.code == 124
    assert canceled.code == 130


def test_an_invalid_condition_is_refused(client: Cluster, shared: LocalCluster) -> None:
    job = client.submit("sleep", "600")
    ran = shared.rota("wait", job.id, "--for", "done")
    with pytest.raises(TimedOut):
        job.wait_for("succeeded", 0.1)
    with pytest.raises(Rejected):
        job.wait_for("done")
    job.kill()
    until(lambda: job.refresh().is_final, "it has ended")

    assert ran.code == 2
    assert "'done' is not a condition" in ran.err
    assert "ended" in ran.err
