"""Three servers and three etcd members: whatever fails, one server leads and no acknowledged job is lost."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from rota.client.controller import Controller
from rota.model.limits import LEADER_TTL_SECONDS
from rota.testing.cluster import LocalCluster
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.faults.conftest import FIGURES
from tests.faults.epochs import epochs_written
from tests.faults.sizes import MANY, FaultSize, size
from tests.faults.submitter import TIMEOUT_SECONDS, LoadSubmitter
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(1700)]
QUORUM_LOST_SECONDS = 60.0 if MANY else 3.0
MEMBER_DOWN_SECONDS = 20.0 if MANY else 2.0
RecordProperty = Callable[[str, object], None]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path / "etcd", 3) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, etcd: LocalEtcd) -> Iterator[ElectedCluster]:
    with ElectedCluster(tmp_path, etcd) as running:
        yield running


@pytest.mark.parametrize("ttl_seconds", [2, LEADER_TTL_SECONDS] if MANY else [2])
def test_a_killed_leader_loses_and_duplicates_no_job_and_restarts_no_task(
    tmp_path: Path, etcd: LocalEtcd, ttl_seconds: int, record_property: RecordProperty
) -> None:
    with ElectedCluster(tmp_path, etcd, ttl_seconds=ttl_seconds) as cluster:
        _kill_leaders(cluster, tmp_path, record_property)


def _kill_leaders(cluster: ElectedCluster, tmp_path: Path, record_property: RecordProperty) -> None:
    """Kill leaders under load: a hundred submits per second if the machine can."""
    chosen = size(few=FaultSize(faults=2, tasks=6), many=FaultSize(faults=50, tasks=6))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=chosen.tasks)
    until(lambda: cluster.count(job, "running") == chosen.tasks, "all tasks run")
    took_seconds, rates = [], []
    with LoadSubmitter(cluster, pause_seconds=0.03, at_once=12) as submitter:
        for _ in range(chosen.faults):
            began = time.monotonic()
            submitter.wait_for_more(submits=100)
            rates.append(100 / (time.monotonic() - began))
            leader = cluster.wait_for_leader()
            began = time.monotonic()
            cluster.kill(leader)
            cluster.wait_for_leader(other_than=leader)
            took_seconds.append(time.monotonic() - began)
            submitter.wait_for_more()
            cluster.launch(leader)
    cluster.wait_for_nodes()
    gate.open()

    record_property(
        FIGURES,
        f"{chosen.faults} times, {len(submitter.acknowledged)} submits at {median(rates):.0f} a second; "
        f"another led after {median(took_seconds):.1f} s, at most {max(took_seconds):.1f} s",
    )
    submitter.check()
    until(lambda: cluster.count(job, "succeeded") == chosen.tasks, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(chosen.tasks), 1)
    written = epochs_written(cluster)
    assert written == sorted(written)


def test_of_three_servers_started_together_one_leads(tmp_path: Path, etcd: LocalEtcd) -> None:
    for number in range(size(few=FaultSize(2, 0), many=FaultSize(20, 0)).faults):
        directory = tmp_path / str(number)
        with ElectedCluster(directory, etcd, nodes=0, ttl_seconds=300) as cluster:
            statuses = until(
                lambda trio=cluster: _all_answer(trio),  # type: ignore[misc]
                "each answers",
            )
            assert sorted(statuses) == [200, 503, 503]
            assert sum(cluster.log(number).count('"became leader"') for number in cluster.addresses) == 1


def _all_answer(cluster: ElectedCluster) -> list[int]:
    statuses = [cluster.status_of(number) for number in cluster.addresses]
    return statuses if all(statuses) else []


def test_a_stopped_leader_releases_its_lease_immediately(tmp_path: Path, etcd: LocalEtcd) -> None:
    """Otherwise its lease would last for minutes."""
    with ElectedCluster(tmp_path, etcd, servers=2, nodes=0, ttl_seconds=300) as cluster:
        leader = cluster.wait_for_leader()

        assert cluster.kill(leader, 15) == 0
        assert cluster.wait_for_leader(other_than=leader) != leader


def test_a_controller_continues_with_the_next_leader(
    cluster: ElectedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    monkeypatch.setenv("ROTA_ADDR", cluster.addr)
    monkeypatch.setenv("ROTA_TOKEN", cluster.token)
    with Controller.connect("ci") as controller:
        stages = controller.schedule({"command": witness.script(gate.wait)}, key="once")
        next(stages)
        until(witness.seen, "it runs")
        cluster.kill(cluster.wait_for_leader())
        gate.open()
        *_, last = stages

    assert (last.stage.state, last.stage.final) == ("succeeded", True)
    assert witness.starts() == {0: 1}


def test_without_a_quorum_nothing_is_acknowledged_and_tasks_continue(
    cluster: ElectedCluster, tmp_path: Path, record_property: RecordProperty
) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=4)
    until(lambda: cluster.count(job, "running") == 4, "all tasks run")
    refused_seconds, normal_seconds = [], []
    for _ in range(size(few=FaultSize(1, 0), many=FaultSize(3, 0)).faults):
        with LoadSubmitter(cluster) as submitter:
            submitter.wait_for_more()
            cluster.etcd.kill(1)
            cluster.etcd.kill(2)
            killed_at = time.monotonic()
            refused_seconds.append(_seconds(lambda: _is_refused(cluster), "a submit is refused"))
            until(lambda: not cluster.leaders(), "no server reports that it leads", TIMEOUT_SECONDS)
            until(lambda: 503 in map(cluster.status_of, cluster.addresses), "a server reports not ready")
            time.sleep(QUORUM_LOST_SECONDS)  # the duration is what this tests
            assert not cluster.leaders()
            # Race: a submit that was committed before the kill may be answered seconds after it: a standby
            # forwards the answer only once it has seen that commit itself, or has timed out waiting for it.
            assert not submitter.acknowledged_of_those_sent_after(killed_at)
            cluster.etcd.launch(1)
            cluster.etcd.launch(2)
            cluster.etcd.wait()
            normal_seconds.append(_seconds(submitter.wait_for_more, "a submit is acknowledged"))
        cluster.wait_for_leader()
        cluster.wait_for_nodes()
        submitter.check()
    record_property(FIGURES, f"refused after {refused_seconds} s, normal {normal_seconds} s after etcd is")
    gate.open()

    until(lambda: cluster.count(job, "succeeded") == 4, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(4), 1)
    written = epochs_written(cluster)
    assert written == sorted(written)


def test_all_jobs_end_while_etcd_loses_its_leader_repeatedly(
    cluster: ElectedCluster, tmp_path: Path, record_property: RecordProperty
) -> None:
    chosen = size(few=FaultSize(faults=2, tasks=4), many=FaultSize(faults=15, tasks=4))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=chosen.tasks)
    until(lambda: cluster.count(job, "running") == chosen.tasks, "all tasks run")
    with LoadSubmitter(cluster, pause_seconds=0.05) as submitter:
        for _ in range(chosen.faults):
            submitter.wait_for_more()
            member = until(cluster.etcd.leader, "a member leads")
            cluster.etcd.kill(member)
            submitter.wait_for_more()
            time.sleep(MEMBER_DOWN_SECONDS)
            cluster.etcd.launch(member)
            cluster.etcd.wait()
    cluster.wait_for_leader()
    cluster.wait_for_nodes()
    gate.open()

    record_property(FIGURES, f"{chosen.faults} times, {len(submitter.acknowledged)} submits")
    submitter.check()
    until(lambda: cluster.count(job, "succeeded") == chosen.tasks, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(chosen.tasks), 1)
    written = epochs_written(cluster)
    assert written == sorted(written)


def _is_refused(cluster: ElectedCluster) -> bool:
    """Whether the last leader refuses a submit; while it steps down it may close the connection instead."""
    try:
        return LocalCluster.call(cluster, "POST", "/v1/jobs", {"command": ["true"]}).status == 503
    except OSError:
        return False


def _seconds(act: Callable[[], object], what: str) -> float:
    began = time.monotonic()
    until(lambda: act() is not False, what, TIMEOUT_SECONDS)
    return round(time.monotonic() - began, 1)
