"""A restart reaches exactly the selected attempts; they are tried again without using a retry."""

from collections.abc import Iterator

import pytest

from rota.client.cluster import Cluster, connect
from rota.client.errors import Conflict
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def client(shared: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{shared.http}", token=shared.token) as opened:
        yield opened


def test_one_of_three_tasks_is_restarted(
    client: Cluster, shared: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = client.submit(*witness.script(gate.wait), count=3)
    until(lambda: shared.count(job.id, "running") == 3, "all tasks run")
    witness.wait_for(3)
    ran = shared.rota("job", "restart", job.id, "--index", "1")
    until(lambda: witness.starts()[1] == 2, "the second start")
    gate.open()

    assert ran.code == 0, ran.err
    assert job.wait(60).state == "succeeded"
    assert witness.starts() == {0: 1, 1: 2, 2: 1}
    task = job.task(1)
    assert [attempt.state for attempt in task.attempts] == ["stopped", "succeeded"]


def test_a_task_that_does_not_run_cannot_be_restarted(client: Cluster) -> None:
    done = client.run("true")
    waits = client.submit("true", cpu=1000)
    once = client.submit("sleep", "600", run="at_most_once")
    until(lambda: once.refresh().counts["running"] == 1, "it runs")

    for job in (done, waits, once):
        with pytest.raises(Conflict):
            job.restart()
    waits.cancel()
    once.cancel()
    assert once.wait(60).state == "canceled"
