"""Large arrays: every task has its result, and queued tasks cost next to nothing."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.client.cluster import connect
from rota.testing import processes
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system
MEBIBYTE = 2**20


def test_an_array_of_ten_thousand_has_ten_thousand_results(cluster: LocalCluster) -> None:
    ran = cluster.rota("run", "--array", "0-9999", "--", "true")

    assert ran.code == 0, ran.err
    assert "10000 of 10000 tasks succeeded" in ran.err
    with connect(f"http://{cluster.http}", token=cluster.token) as client:
        tasks = list(client.job("last").tasks())
    assert [task.index for task in tasks] == list(range(10_000))
    assert Counter((task.state, task.exit_code) for task in tasks) == {("succeeded", 0): 10_000}
    until(lambda: not any(map(processes.zombies_of, cluster.processes())), "every dead process is buried")


def test_each_task_of_an_array_has_its_own_exit_code(shared: LocalCluster) -> None:
    ran = shared.rota("run", "--array", "0-299", "--", "sh", "-c", "exit $((ROTA_INDEX % 3))")

    assert ran.code in (1, 2)
    assert "100 of 300 tasks succeeded, 200 failed" in ran.err
    with connect(f"http://{shared.http}", token=shared.token) as client:
        codes = [task.exit_code for task in client.job("last").tasks()]
    assert codes == [index % 3 for index in range(300)]


def test_submitting_an_array_is_one_commit(empty: LocalCluster) -> None:
    before = empty.call("GET", "/v1/server").body["revision"]

    submitted = empty.call("POST", "/v1/jobs", {"command": ["true"], "count": 10_000})

    assert submitted.status == 201
    assert empty.call("GET", "/v1/server").body["revision"] == before + 1


def test_a_million_queued_tasks_are_small_fast_and_survive_a_restart(empty: LocalCluster) -> None:
    empty.call("POST", "/v1/jobs", {"command": ["true"], "count": 1})
    bytes_before = processes.resident_bytes(empty.server_pid)
    seconds_before = busy_with_listing(empty)

    submitted = empty.call("POST", "/v1/jobs", {"command": ["true"], "count": 1_000_000, "name": "million"})

    assert submitted.status == 201
    assert busy_with_listing(empty) < 2 * seconds_before + 0.5
    assert "million" in empty.rota("ls").out
    assert processes.resident_bytes(empty.server_pid) - bytes_before < 100 * MEBIBYTE

    empty.kill_server()
    empty.start_server()

    job = empty.call("GET", "/v1/jobs/million").body
    assert (job["count"], job["counts"]["pending"]) == (1_000_000, 1_000_000)
    assert processes.resident_bytes(empty.server_pid) - bytes_before < 100 * MEBIBYTE


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=0) as running:
        yield running


def busy_with_listing(cluster: LocalCluster) -> float:
    """Seconds of a core that the server takes for some lists, whatever else the machine does."""
    before = processes.cpu_seconds(cluster.server_pid)
    for _ in range(20):
        assert cluster.call("GET", "/v1/jobs").status == 200
    return processes.cpu_seconds(cluster.server_pid) - before
