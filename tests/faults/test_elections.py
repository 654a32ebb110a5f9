"""Three servers, three members of etcd: whatever is taken away, one leads and nothing confirmed is lost."""

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
from tests.faults.sizes import MANY, Size, size
from tests.faults.submitter import PATIENCE_SECONDS, Submitter
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(1700)]
QUORUM_GONE_SECONDS = 60.0 if MANY else 3.0
MEMBER_GONE_SECONDS = 20.0 if MANY else 2.0
Tell = Callable[[str, object], None]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path / "etcd", 3) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, etcd: LocalEtcd) -> Iterator[ElectedCluster]:
    with ElectedCluster(tmp_path, etcd) as running:
        yield running


@pytest.mark.parametrize("ttl_seconds", [2, LEADER_TTL_SECONDS] if MANY else [2])
def test_a_killed_leader_loses_and_doubles_nothing_and_restarts_no_work(
    tmp_path: Path, etcd: LocalEtcd, ttl_seconds: int, record_property: Tell
) -> None:
    with ElectedCluster(tmp_path, etcd, ttl_seconds=ttl_seconds) as cluster:
        _kill_leaders(cluster, tmp_path, record_property)


def _kill_leaders(cluster: ElectedCluster, tmp_path: Path, record_property: Tell) -> None:
    """Under as many submits as the machine takes, a hundred a second if it can."""
    wanted = size(few=Size(faults=2, tasks=6), many=Size(faults=50, tasks=6))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=wanted.tasks)
    until(lambda: cluster.count(job, "running") == wanted.tasks, "all tasks run")
    took_seconds, rates = [], []
    with Submitter(cluster, pause_seconds=0.03, at_once=12) as submitter:
        for _ in range(wanted.faults):
            began = time.monotonic()
            submitter.go_on(submits=100)
            rates.append(100 / (time.monotonic() - began))
            leader = cluster.wait_for_leader()
            began = time.monotonic()
            cluster.kill(leader)
            cluster.wait_for_leader(other_than=leader)
            took_seconds.append(time.monotonic() - began)
            submitter.go_on()
            cluster.launch(leader)
    cluster.wait_for_nodes()
    gate.open()

    record_property(
        FIGURES,
        f"{wanted.faults} times, {len(submitter.acknowledged)} submits at {median(rates):.0f} a second; "
        f"another led after {median(took_seconds):.1f} s, at most {max(took_seconds):.1f} s",
    )
    submitter.check()
    until(lambda: cluster.count(job, "succeeded") == wanted.tasks, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(wanted.tasks), 1)
    written = epochs_written(cluster)
    assert written == sorted(written)


def test_of_three_started_at_once_one_leads(tmp_path: Path, etcd: LocalEtcd) -> None:
    for turn in range(size(few=Size(2, 0), many=Size(20, 0)).faults):
        directory = tmp_path / str(turn)
        with ElectedCluster(directory, etcd, nodes=0, ttl_seconds=300) as cluster:
            statuses = until(
                lambda trio=cluster: _all_answer(trio),  # type: ignore[misc]
                "each answers",
            )
            assert sorted(statuses) == [200, 503, 503]
            assert sum(cluster.log(number).count('"became leader"') for number in cluster.places) == 1


def _all_answer(cluster: ElectedCluster) -> list[int]:
    statuses = [cluster.status_of(number) for number in cluster.places]
    return statuses if all(statuses) else []


def test_a_leader_that_is_told_to_stop_leaves_at_once(tmp_path: Path, etcd: LocalEtcd) -> None:
    """Its lease would last for minutes."""
    with ElectedCluster(tmp_path, etcd, servers=2, nodes=0, ttl_seconds=300) as cluster:
        leader = cluster.wait_for_leader()

        assert cluster.kill(leader, 15) == 0
        assert cluster.wait_for_leader(other_than=leader) != leader


def test_a_controller_goes_on_with_the_next_leader(
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


def test_without_a_quorum_nothing_is_acknowledged_and_work_goes_on(
    cluster: ElectedCluster, tmp_path: Path, record_property: Tell
) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=4)
    until(lambda: cluster.count(job, "running") == 4, "all tasks run")
    refused_seconds, normal_seconds = [], []
    for _ in range(size(few=Size(1, 0), many=Size(3, 0)).faults):
        with Submitter(cluster) as submitter:
            submitter.go_on()
            cluster.etcd.kill(1)
            cluster.etcd.kill(2)
            killed_at = time.monotonic()
            refused_seconds.append(_seconds(lambda: _is_refused(cluster), "a submit is refused"))
            until(lambda: not cluster.leaders(), "nobody says that it leads", PATIENCE_SECONDS)
            until(lambda: 503 in map(cluster.status_of, cluster.places), "somebody says so")
            time.sleep(QUORUM_GONE_SECONDS)  # the length is what this is about
            assert not cluster.leaders()
            # A submit that was committed before the kill may be answered after it, by seconds even: a standby
            # hands the answer back once it has seen that commit itself, or has waited for it in vain.
            assert not submitter.acknowledged_of_those_sent_after(killed_at)
            cluster.etcd.launch(1)
            cluster.etcd.launch(2)
            cluster.etcd.wait()
            normal_seconds.append(_seconds(submitter.go_on, "a submit comes through"))
        cluster.wait_for_leader()
        cluster.wait_for_nodes()
        submitter.check()
    record_property(FIGURES, f"refused after {refused_seconds} s, normal {normal_seconds} s after etcd is")
    gate.open()

    until(lambda: cluster.count(job, "succeeded") == 4, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(4), 1)
    written = epochs_written(cluster)
    assert written == sorted(written)


def test_everything_ends_though_etcd_loses_its_leader_again_and_again(
    cluster: ElectedCluster, tmp_path: Path, record_property: Tell
) -> None:
    wanted = size(few=Size(faults=2, tasks=4), many=Size(faults=15, tasks=4))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=wanted.tasks)
    until(lambda: cluster.count(job, "running") == wanted.tasks, "all tasks run")
    with Submitter(cluster, pause_seconds=0.05) as submitter:
        for _ in range(wanted.faults):
            submitter.go_on()
            member = until(cluster.etcd.leader, "a member leads")
            cluster.etcd.kill(member)
            submitter.go_on()
            time.sleep(MEMBER_GONE_SECONDS)
            cluster.etcd.launch(member)
            cluster.etcd.wait()
    cluster.wait_for_leader()
    cluster.wait_for_nodes()
    gate.open()

    record_property(FIGURES, f"{wanted.faults} times, {len(submitter.acknowledged)} submits")
    submitter.check()
    until(lambda: cluster.count(job, "succeeded") == wanted.tasks, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(wanted.tasks), 1)
    written = epochs_written(cluster)
    assert written == sorted(written)


def _is_refused(cluster: ElectedCluster) -> bool:
    """By the one that led until now; it may have stepped down, and hang up while it does."""
    try:
        return LocalCluster.call(cluster, "POST", "/v1/jobs", {"command": ["true"]}).status == 503
    except OSError:
        return False


def _seconds(act: Callable[[], object], what: str) -> float:
    began = time.monotonic()
    until(lambda: act() is not False, what, PATIENCE_SECONDS)
    return round(time.monotonic() - began, 1)
