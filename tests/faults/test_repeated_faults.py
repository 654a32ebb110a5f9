"""Faults of every kind, one after the other, while work goes on; then all that is promised is checked."""

import contextlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from rota.testing import processes
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.faults.sizes import Size, chance, size
from tests.faults.tally import Tally
from tests.system.witness_file import Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(1700)]
CPU = 4


class Kind(StrEnum):
    """What is killed."""

    SERVER = "server"
    AGENT = "agent"
    NODE = "node"


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that are given up early."""
    with LocalCluster(tmp_path, cpu=CPU, settings={"ROTA_LOST_SECONDS": "5"}) as running:
        yield running


def test_nothing_promised_is_broken_by_repeated_faults(
    hasty: LocalCluster, tmp_path: Path, tally: Tally
) -> None:
    wanted = size(few=Size(faults=6, tasks=600), many=Size(faults=90, tasks=12_000))
    witness = Witness(tmp_path / "witness")
    job = hasty.submit(*witness.script("sleep 0.3"), count=wanted.tasks)
    dealt = Faults(hasty, chance())
    with Overbooking(hasty) as overbooking:
        for _ in range(wanted.faults):
            seen = len(witness.seen())
            until(lambda before=seen: finished(hasty, job) or len(witness.seen()) > before, "work goes on")  # type: ignore[misc]
            dealt.deal()
        hasty.wait_for_nodes()
        until(lambda: finished(hasty, job), "all tasks end", 60 + wanted.tasks / 20)

    starts = witness.starts()
    tally.note_starts(witness, wanted.tasks, wanted.faults, allowed=wanted.faults + 1)
    assert hasty.count(job, "succeeded") == wanted.tasks
    assert starts.keys() == set(range(wanted.tasks))
    explained = CPU * (dealt.counts[Kind.AGENT] + dealt.counts[Kind.NODE])
    assert starts.total() - wanted.tasks <= explained, dealt.counts
    assert hasty.call("GET", "/v1/server").body["epoch"] == 1 + dealt.counts[Kind.SERVER]
    assert overbooking.found == []
    assert left_behind(hasty) == []


def test_short_tasks_run_once_however_often_the_server_is_killed(tmp_path: Path, tally: Tally) -> None:
    """Nodes hold some of them in advance."""
    wanted = size(few=Size(faults=3, tasks=3000), many=Size(faults=40, tasks=60_000))
    witness = Witness(tmp_path / "witness")
    with LocalCluster(tmp_path, cpu=CPU) as cluster:
        job = cluster.submit(*witness.script(), count=wanted.tasks)
        for _ in range(wanted.faults):
            seen = len(witness.seen())
            until(lambda before=seen: finished(cluster, job) or len(witness.seen()) > before, "work goes on")  # type: ignore[misc]
            cluster.kill_server()
            cluster.start_server()
        until(lambda: finished(cluster, job), "all tasks end", 60 + wanted.tasks / 100)
        tally.note_starts(witness, wanted.tasks, wanted.faults)

        assert cluster.count(job, "succeeded") == wanted.tasks
        assert witness.starts() == dict.fromkeys(range(wanted.tasks), 1)
        assert left_behind(cluster) == []


def test_an_agent_killed_again_and_again_costs_no_restart(tmp_path: Path, tally: Tally) -> None:
    wanted = size(few=Size(faults=3, tasks=20), many=Size(faults=40, tasks=50))
    witness = Witness(tmp_path / "witness")
    with LocalCluster(tmp_path, nodes=1, cpu=wanted.tasks) as cluster:
        job = cluster.submit(
            *witness.script(f"until [ -e {tmp_path}/go ]; do sleep 0.2; done"), count=wanted.tasks
        )
        until(lambda: cluster.count(job, "running") == wanted.tasks, "all tasks run")
        (keeper,) = cluster.keepers()
        sockets = processes.open_sockets(keeper)
        for _ in range(wanted.faults):
            cluster.kill_agent(1)
            cluster.start_agent(1)
            cluster.wait_for_nodes()
        (tmp_path / "go").touch()
        until(lambda: finished(cluster, job), "all tasks end")
        tally.note_starts(witness, wanted.tasks, wanted.faults)

        assert cluster.count(job, "succeeded") == wanted.tasks
        assert witness.starts() == dict.fromkeys(range(wanted.tasks), 1)
        assert cluster.keepers() == [keeper]
        until(lambda: processes.open_sockets(keeper) == sockets, "it holds no more sockets than before")
        assert left_behind(cluster) == []


@dataclass
class Faults:
    """One at a time, at random; what was harmed is up again when `deal` returns."""

    cluster: LocalCluster
    chance: random.Random
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))

    def deal(self) -> None:
        # Each kind once, whatever the dice say.
        kind = next((kind for kind in Kind if not self.counts[kind]), None) or self.chance.choice(list(Kind))
        self.counts[kind] += 1
        number = self.chance.choice(self.cluster.numbers)
        match kind:
            case Kind.SERVER:
                self.cluster.kill_server()
                self.cluster.start_server()
            case Kind.AGENT:
                self.cluster.kill_agent(number)
                self.cluster.start_agent(number)
            case Kind.NODE:
                self.cluster.kill_node(number)
                self.cluster.start_agent(number)


class Overbooking:
    """Looks all the time whether some node was given more than it has."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.found: list[object] = []
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Overbooking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            try:
                answer = self._cluster.call("GET", "/v1/nodes")
            except OSError:
                continue  # the server is being killed
            nodes = answer.body["nodes"] if answer.status == 200 else []
            self.found += [node for node in nodes if node["reserved"].get("cpu", 0) > CPU]


def finished(cluster: LocalCluster, job: str) -> bool:
    return bool(cluster.call("GET", f"/v1/jobs/{job}").body["ended_at_ms"])


def left_behind(cluster: LocalCluster) -> list[int]:
    """Work that nobody wants any more is soon gone; dead processes that nobody has buried, if any are."""
    until(lambda: not cluster.work(), "no work is left")

    def zombies() -> list[int]:
        return [zombie for pid in cluster.processes() for zombie in processes.zombies_of(pid)]

    with contextlib.suppress(TimeoutError):
        until(lambda: not zombies(), "every dead process is buried")
    return zombies()
