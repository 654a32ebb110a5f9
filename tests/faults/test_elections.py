"""Three servers, three members of etcd: whatever is taken away, one leads and nothing confirmed is lost."""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rota.client.cluster import connect
from rota.client.errors import Unavailable
from rota.client.rpc import Controller
from rota.store.etcd import packing
from rota.store.etcd.client import Access, Client
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.faults.sizes import Size, size
from tests.system.witness import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(1700)]
PATIENCE_SECONDS = 120


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path / "etcd", 3) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, etcd: LocalEtcd) -> Iterator[ElectedCluster]:
    with ElectedCluster(tmp_path, etcd) as running:
        yield running


@dataclass
class Submitter:
    """Submits one job after the other, each with its own key, to whoever leads."""

    cluster: ElectedCluster
    acknowledged: dict[str, str] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Submitter":
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join()

    def go_on(self) -> None:
        known = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > known, "a submit comes through", PATIENCE_SECONDS)

    def check(self) -> None:
        """Each of them is there, once, and ends."""
        with connect(self.cluster.addr, token=self.cluster.token) as client:
            for submitted in self.acknowledged.values():
                assert client.job(submitted).wait(PATIENCE_SECONDS).state == "succeeded"
            names = Counter(status.name for status in client.jobs() if status.name in self.acknowledged)
        assert names == dict.fromkeys(self.acknowledged, 1)

    def _run(self) -> None:
        with connect(self.cluster.addr, token=self.cluster.token) as client:
            while not self.stopping.wait(0.01):
                key = f"key-{len(self.acknowledged)}"
                with contextlib.suppress(Unavailable):  # for longer than a client has patience: once more
                    self.acknowledged[key] = client.submit("true", key=key, name=key).id


def epochs_written(cluster: ElectedCluster) -> list[int]:
    """Of every commit that ever was, in the order of the store: who wrote it."""

    async def look() -> list[int]:
        client = Client(Access(tuple(cluster.etcd.endpoints)))
        head = f"{cluster.directory}/head".encode()
        marks: list[str] = []
        revision = int((await client.range(pb.RangeRequest(key=head))).kvs[0].mod_revision)
        async for response in client.watch(pb.WatchCreateRequest(key=head, start_revision=1)):
            assert not response.canceled
            marks += [packing.head(event.kv.value).mark for event in response.events]
            if any(event.kv.mod_revision >= revision for event in response.events):
                break
        await client.close()
        return [int(mark.partition(".")[0]) for mark in marks]

    return asyncio.run(look())


def test_a_killed_leader_loses_and_doubles_nothing_and_restarts_no_work(
    cluster: ElectedCluster, tmp_path: Path
) -> None:
    wanted = size(few=Size(faults=2, tasks=6), many=Size(faults=50, tasks=6))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=wanted.tasks)
    until(lambda: cluster.count(job, "running") == wanted.tasks, "all tasks run")
    took_seconds = []
    with Submitter(cluster) as submitter:
        for _ in range(wanted.faults):
            submitter.go_on()
            leader = cluster.wait_for_leader()
            began = time.monotonic()
            cluster.kill(leader)
            cluster.wait_for_leader(other_than=leader)
            took_seconds.append(round(time.monotonic() - began, 1))
            submitter.go_on()
            cluster.launch(leader)
    print("a new leader after", took_seconds, "seconds")
    cluster.wait_for_nodes()
    gate.open()

    submitter.check()
    until(lambda: cluster.count(job, "succeeded") == wanted.tasks, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(wanted.tasks), 1)
    written = epochs_written(cluster)
    assert written == sorted(written)


def test_a_leader_that_slept_writes_nothing_and_no_node_is_lost(
    cluster: ElectedCluster, tmp_path: Path
) -> None:
    wanted = size(few=Size(faults=1, tasks=6), many=Size(faults=30, tasks=6))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=wanted.tasks)
    until(lambda: cluster.count(job, "running") == wanted.tasks, "all tasks run")
    with Submitter(cluster) as submitter:
        for _ in range(wanted.faults):
            leader = cluster.wait_for_leader()
            with cluster.paused(leader):
                cluster.wait_for_leader(other_than=leader)
                submitter.go_on()
                _come(cluster)
            until(lambda who=leader: cluster.status_of(who) == 503, "it stands by")  # type: ignore[misc]
            submitter.go_on()
    cluster.wait_for_nodes()
    gate.open()

    submitter.check()
    until(lambda: cluster.count(job, "succeeded") == wanted.tasks, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(wanted.tasks), 1)
    events = cluster.call("GET", "/v1/events?limit=1000&kind=node.lost").body["events"]
    assert events == []
    written = epochs_written(cluster)
    assert written == sorted(written)
    assert len(set(written)) > wanted.faults


def _come(cluster: ElectedCluster) -> None:
    """Every node, to the one that leads now, though nobody has hung up on it."""

    def has_come(node: int) -> bool:
        epoch = cluster.call("GET", "/v1/server").body["epoch"]
        return f'"epoch": {epoch}, "event": "connected"' in cluster.agent_log(node)

    for number in cluster.numbers:
        until(lambda node=number: has_come(node), "it has come", PATIENCE_SECONDS)  # type: ignore[misc]


def test_of_three_started_at_once_one_leads(tmp_path: Path, etcd: LocalEtcd) -> None:
    for turn in range(size(few=Size(2, 0), many=Size(20, 0)).faults):
        directory = tmp_path / str(turn)
        with ElectedCluster(directory, etcd, nodes=0, ttl_seconds=300) as cluster:
            statuses = until(
                lambda trio=cluster: _all_answer(trio),  # type: ignore[misc]
                "each answers",
            )
            assert sorted(statuses) == [200, 503, 503]
            assert sum(cluster.log(number).count('"leads"') for number in cluster.places) == 1


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
    cluster: ElectedCluster, tmp_path: Path
) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    job = cluster.submit(*witness.script(gate.wait), count=4)
    until(lambda: cluster.count(job, "running") == 4, "all tasks run")
    for _ in range(size(few=Size(1, 0), many=Size(5, 0)).faults):
        with Submitter(cluster) as submitter:
            submitter.go_on()
            cluster.etcd.kill(1)
            cluster.etcd.kill(2)
            until(lambda: not cluster.leaders(), "nobody says that it leads", PATIENCE_SECONDS)
            until(lambda: 503 in map(cluster.status_of, cluster.places), "somebody says so")
            assert not cluster.leaders()
            cluster.etcd.launch(1)
            cluster.etcd.launch(2)
            cluster.etcd.wait()
            submitter.go_on()
        cluster.wait_for_leader()
        cluster.wait_for_nodes()
        submitter.check()
    gate.open()

    until(lambda: cluster.count(job, "succeeded") == 4, "all tasks end")
    assert witness.starts() == dict.fromkeys(range(4), 1)
    written = epochs_written(cluster)
    assert written == sorted(written)
