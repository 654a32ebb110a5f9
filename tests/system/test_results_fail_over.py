"""Tasks report results although the leader of their start is lost."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rota
from rota.client.cluster import connect
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(600)]
SOURCE = str(Path(rota.__file__).parents[1])
HOWTO = Path(rota.__file__).parents[2] / "docs/howto/report-results.md"
PATIENCE_SECONDS = 120
IN_PYTHON = (
    f"import sys; sys.path.insert(0, {SOURCE!r}); import rota; "
    "rota.report({'loss': 0.125}, patience_seconds=120)"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElectedCluster]:
    directory = tmp_path_factory.mktemp("results")
    with LocalEtcd(directory / "etcd", 1) as etcd, ElectedCluster(directory / "cluster", etcd) as running:
        yield running


def by_curl() -> str:
    """The script of the how-to page, verbatim."""
    (script,) = re.findall(r"<!-- file: patient.sh -->\n```text\n(.*?)```", HOWTO.read_text(), re.DOTALL)
    return str(script)


@needs("curl")
@pytest.mark.parametrize("report", [by_curl(), f'{sys.executable} -c "{IN_PYTHON}"'], ids=["curl", "python"])
def test_a_result_is_accepted_after_the_leader_is_lost(
    cluster: ElectedCluster, tmp_path: Path, report: str
) -> None:
    witness, gate = Witness(tmp_path / "started"), Gate(tmp_path / "gate")
    leader = cluster.wait_for_leader()
    with connect(cluster.addr, token=cluster.token) as client:
        client.transport.patience_seconds = PATIENCE_SECONDS
        job = client.submit(*witness.script(f"{gate.wait}\n{report}"), results=True, cpu=0.1)
        witness.wait_for(1)
        cluster.kill(leader)
        gate.open()  # immediately, while no server leads
        job.wait(timeout_seconds=PATIENCE_SECONDS)
        result, attempts = job.task(0).result, job.task(0).attempts
    cluster.launch(leader)

    assert result is not None
    assert (job.status.state, result.results, len(attempts)) == ("succeeded", {"loss": 0.125}, 1)


def test_a_task_knows_every_server(cluster: ElectedCluster) -> None:
    def ran_under_one_leader() -> tuple[int, str, str] | None:
        leader = cluster.wait_for_leader()
        with connect(cluster.addr, token=cluster.token) as client:
            client.transport.patience_seconds = PATIENCE_SECONDS
            job = client.run("sh", "-c", "echo $ROTA_RESULT_URL; echo $ROTA_RESULT_URLS", results=True)
            outcome = leader, job.id, job.logs()
        return outcome if cluster.wait_for_leader() == leader else None  # on a busy machine another may lead

    found = until(ran_under_one_leader, "a task ran while one server led", PATIENCE_SECONDS)
    assert found is not None
    leader, job, logs = found
    first, every = logs.splitlines()
    urls = [
        f"http://{place.http}/v1/jobs/{job}/tasks/0/attempts/1/result" for place in cluster.addresses.values()
    ]
    assert (first, sorted(every.split())) == (urls[leader - 1], sorted(urls))
    assert every.split()[0] == first


def test_an_agent_reports_results_to_the_next_leader(cluster: ElectedCluster, tmp_path: Path) -> None:
    witness, gate = Witness(tmp_path / "started"), Gate(tmp_path / "gate")
    leader = cluster.wait_for_leader()
    with connect(cluster.addr, token=cluster.token) as client:
        client.transport.patience_seconds = PATIENCE_SECONDS
        job = client.submit(*witness.script(gate.wait), results="agent", cpu=0.1)
        witness.wait_for(1)
        cluster.kill(leader)
        gate.open()
        job.wait(timeout_seconds=PATIENCE_SECONDS)
        result, attempts = job.task(0).result, job.task(0).attempts
    cluster.launch(leader)

    assert result is not None
    assert (job.status.state, result.results, len(attempts)) == ("succeeded", {"exit_code": 0}, 1)
