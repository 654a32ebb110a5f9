"""The next leader finds the machines of the previous one: none is duplicated, killed or left behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.config import machines_dir
from rota.testing.election import ElectedCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until, with_argument
from rota.wiring.node_processes import end_nodes
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, needs("etcd")]
SECONDS = 200.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ElectedCluster]:
    with LocalEtcd(tmp_path / "etcd", 1) as etcd, ElectedCluster(tmp_path, etcd, servers=2, nodes=0) as made:
        yield made
        end_nodes(made_by(made, tmp_path))


def made_by(cluster: ElectedCluster, directory: Path) -> list[Path]:
    """Directories of machines, of all servers."""
    places = [machines_dir(directory / f"server-{n}") for n in cluster.addresses]
    return [found for place in places for found in place.glob("*/*/")]


def machines(cluster: ElectedCluster) -> Any:
    found = cluster.call("GET", "/v1/clusters/burst").body["machines"]
    return {machine["name"]: machine["state"] for machine in found}


def test_the_next_leader_takes_over_machines_and_later_removes_them(
    cluster: ElectedCluster, tmp_path: Path
) -> None:
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate")
    first = cluster.wait_for_leader()
    body = {"name": "burst", "provider": "local", "capacity": {"cpu": 1}, "max_nodes": 2, "idle": "1s"}
    made = cluster.call("POST", "/v1/clusters", body)
    job = cluster.submit(*witness.script(gate.wait), count=2, cluster="burst")
    until(lambda: cluster.count(job, "running") == 2, "both run", SECONDS)
    nodes = made_by(cluster, tmp_path)
    until(lambda: all_know_both_servers(nodes), "its machines know where to call next", SECONDS)
    cluster.kill(first)
    cluster.wait_for_leader(other_than=first)
    until(lambda: set(machines(cluster).values()) == {"joined"}, "they are known", SECONDS)
    before = machines(cluster)
    gate.open()
    until(lambda: cluster.count(job, "succeeded") == 2, "both end", SECONDS)
    until(lambda: machines(cluster) == {}, "their machines go", SECONDS)

    assert made.status == 201, made
    assert before == {"burst-1": "joined", "burst-2": "joined"}
    assert witness.starts() == {0: 1, 1: 1}
    assert [
        machine for n in cluster.addresses for machine in left(machines_dir(tmp_path / f"server-{n}"))
    ] == []


def all_know_both_servers(nodes: list[Path]) -> bool:
    """An agent that knows only one server could not find the next leader, and would be lost."""
    files = [node / "server" for node in nodes if (node / "server").exists()]
    return len(files) == 2 and all(len(file.read_text().split()) == 2 for file in files)


def left(directory: Path) -> list[object]:
    return [*with_argument(str(directory)), *directory.glob("*/*")]
