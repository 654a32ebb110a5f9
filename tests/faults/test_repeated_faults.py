"""Faults of every kind, one after the other, while tasks run; then every guarantee is checked."""

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
from tests.faults.sizes import FaultSize, rng, size
from tests.faults.tally import Tally
from tests.system.witness_file import Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(1700)]
CPU = 4


class FaultKind(StrEnum):
    """Which process is killed."""

    SERVER = "server"
    AGENT = "agent"
    NODE = "node"


@pytest.fixture
def short_grace_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that are declared lost early."""
    with LocalCluster(tmp_path, cpu=CPU, settings={"ROTA_LOST_SECONDS": "5"}) as running:
        yield running


def test_every_guarantee_holds_under_repeated_faults(
    short_grace_cluster: LocalCluster, tmp_path: Path, tally: Tally
) -> None:
    chosen = size(few=FaultSize(faults=6, tasks=600), many=FaultSize(faults=90, tasks=12_000))
    witness = Witness(tmp_path / "witness")
    job = short_grace_cluster.submit(*witness.script("sleep 0.3"), count=chosen.tasks)
    faults = Faults(short_grace_cluster, rng())
    with Overbooking(short_grace_cluster) as overbooking:
        for _ in range(chosen.faults):
            seen = len(witness.seen())
            until(
                lambda before=seen: finished(short_grace_cluster, job) or len(witness.seen()) > before,  # type: ignore[misc]
                "tasks continue",
            )
            faults.inject()
        short_grace_cluster.wait_for_nodes()
        until(lambda: finished(short_grace_cluster, job), "all tasks end", 60 + chosen.tasks / 20)

    starts = witness.starts()
    tally.record_starts(witness, chosen.tasks, chosen.faults, allowed=chosen.faults + 1)
    assert short_grace_cluster.count(job, "succeeded") == chosen.tasks
    assert starts.keys() == set(range(chosen.tasks))
    explained = CPU * (faults.counts[FaultKind.AGENT] + faults.counts[FaultKind.NODE])
    assert starts.total() - chosen.tasks <= explained, faults.counts
    assert short_grace_cluster.call("GET", "/v1/server").body["epoch"] == 1 + faults.counts[FaultKind.SERVER]
    assert overbooking.found == []
    assert left_behind(short_grace_cluster) == []


def test_short_tasks_run_once_while_the_server_is_killed_repeatedly(tmp_path: Path, tally: Tally) -> None:
    """Nodes hold some of them in advance (lookahead)."""
    chosen = size(few=FaultSize(faults=3, tasks=3000), many=FaultSize(faults=40, tasks=60_000))
    witness = Witness(tmp_path / "witness")
    with LocalCluster(tmp_path, cpu=CPU) as cluster:
        job = cluster.submit(*witness.script(), count=chosen.tasks)
        for _ in range(chosen.faults):
            seen = len(witness.seen())
            until(
                lambda before=seen: finished(cluster, job) or len(witness.seen()) > before,  # type: ignore[misc]
                "tasks continue",
            )
            cluster.kill_server()
            cluster.start_server()
        until(lambda: finished(cluster, job), "all tasks end", 60 + chosen.tasks / 100)
        tally.record_starts(witness, chosen.tasks, chosen.faults)

        assert cluster.count(job, "succeeded") == chosen.tasks
        assert witness.starts() == dict.fromkeys(range(chosen.tasks), 1)
        assert left_behind(cluster) == []


def test_an_agent_killed_repeatedly_costs_no_restart(tmp_path: Path, tally: Tally) -> None:
    chosen = size(few=FaultSize(faults=3, tasks=20), many=FaultSize(faults=40, tasks=50))
    witness = Witness(tmp_path / "witness")
    with LocalCluster(tmp_path, nodes=1, cpu=chosen.tasks) as cluster:
        job = cluster.submit(
            *witness.script(f"until [ -e {tmp_path}/go ]; do sleep 0.2; done"), count=chosen.tasks
        )
        until(lambda: cluster.count(job, "running") == chosen.tasks, "all tasks run")
        (keeper,) = cluster.keepers()
        sockets = processes.open_sockets(keeper)
        for _ in range(chosen.faults):
            cluster.kill_agent(1)
            cluster.start_agent(1)
            cluster.wait_for_nodes()
        (tmp_path / "go").touch()
        until(lambda: finished(cluster, job), "all tasks end")
        tally.record_starts(witness, chosen.tasks, chosen.faults)

        assert cluster.count(job, "succeeded") == chosen.tasks
        assert witness.starts() == dict.fromkeys(range(chosen.tasks), 1)
        assert cluster.keepers() == [keeper]
        until(
            lambda: processes.open_sockets(keeper) == sockets, "the keeper holds no more sockets than before"
        )
        assert left_behind(cluster) == []


@dataclass
class Faults:
    """Random faults, one at a time; the killed process is restarted when `inject` returns."""

    cluster: LocalCluster
    rng: random.Random
    counts: dict[FaultKind, int] = field(default_factory=lambda: dict.fromkeys(FaultKind, 0))

    def inject(self) -> None:
        # Each kind at least once, whatever the seed.
        kind = next((kind for kind in FaultKind if not self.counts[kind]), None) or self.rng.choice(
            list(FaultKind)
        )
        self.counts[kind] += 1
        number = self.rng.choice(self.cluster.numbers)
        match kind:
            case FaultKind.SERVER:
                self.cluster.kill_server()
                self.cluster.start_server()
            case FaultKind.AGENT:
                self.cluster.kill_agent(number)
                self.cluster.start_agent(number)
            case FaultKind.NODE:
                self.cluster.kill_node(number)
                self.cluster.start_agent(number)


class Overbooking:
    """Polls in a thread whether a node has more reserved than its capacity."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.found: list[object] = []
        self._cluster = cluster
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> "Overbooking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._closing.wait(0.05):
            try:
                answer = self._cluster.call("GET", "/v1/nodes")
            except OSError:
                continue  # the server is being killed
            nodes = answer.body["nodes"] if answer.status == 200 else []
            self.found += [node for node in nodes if node["reserved"].get("cpu", 0) > CPU]


def finished(cluster: LocalCluster, job: str) -> bool:
    return bool(cluster.call("GET", f"/v1/jobs/{job}").body["ended_at_ms"])


def left_behind(cluster: LocalCluster) -> list[int]:
    """Wait until no task process is left; return zombies that were not reaped."""
    until(lambda: not cluster.work(), "no task process is left")

    def zombies() -> list[int]:
        return [zombie for pid in cluster.processes() for zombie in processes.zombies_of(pid)]

    with contextlib.suppress(TimeoutError):
        until(lambda: not zombies(), "every zombie is reaped")
    return zombies()
