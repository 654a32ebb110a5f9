"""Migration from a server's own disk to etcd and back while work continues; a backup of a store on etcd."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.etcd import LocalEtcd
from rota.testing.processes import until
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, needs("etcd"), pytest.mark.timeout(300)]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[LocalEtcd]:
    with LocalEtcd(tmp_path / "etcd") as running:
        yield running


def test_everything_moves_to_etcd_and_back(
    tmp_path: Path, etcd: LocalEtcd, witness: Witness, gate: Gate
) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        job = cluster.submit(*witness.script(gate.wait))
        until(lambda: cluster.count(job, "running") == 1, "it runs")
        _stop(cluster)
        migrated = cluster.rota("store", "migrate", "server", etcd.address)
        cluster.environment["ROTA_STORE"] = etcd.address
        cluster.start_server()
        epoch = _server(cluster)["epoch"]
        until(lambda: _has_come(cluster, epoch), "the node follows it")
        taken = cluster.rota("store", "backup", "of-etcd")
        running = cluster.rota("store", "migrate", etcd.address, "back")
        checked = cluster.rota("store", "check", "--store", etcd.address)
        _stop(cluster)
        back = cluster.rota("store", "migrate", etcd.address, "back")
        (tmp_path / "server").rename(tmp_path / "before")
        (tmp_path / "back").rename(tmp_path / "server")
        cluster.environment["ROTA_STORE"] = "sqlite"
        cluster.start_server()
        last = _server(cluster)["epoch"]
        until(lambda: _has_come(cluster, last), "the node follows it")
        gate.open()

        assert migrated.code == 0, migrated.err
        assert taken.code == 0, taken.err
        assert (running.code, "a server leads" in running.err) == (1, True)
        assert checked.code == 0, checked.err
        assert back.code == 0, back.err
        assert cluster.rota("wait", job).code == 0
        assert witness.starts() == {0: 1}
        assert last > epoch


def test_a_backup_is_restored_to_etcd(tmp_path: Path, etcd: LocalEtcd, witness: Witness, gate: Gate) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        job = cluster.submit(*witness.script(gate.wait))
        until(lambda: cluster.count(job, "running") == 1, "it runs")
        assert cluster.rota("store", "backup", "rota.backup").code == 0
        for _ in range(3):  # epochs that the backup does not know
            _stop(cluster)
            cluster.start_server()
        _stop(cluster)
        restored = cluster.rota("store", "restore", "rota.backup", "--store", etcd.address)
        again = cluster.rota("store", "restore", "rota.backup", "--store", etcd.address)
        (tmp_path / "server").rename(tmp_path / "before")
        cluster.environment["ROTA_STORE"] = etcd.address
        cluster.start_server()
        until(lambda: list(_server(cluster)["refused"]) == ["node-1"], "the node is refused")
        accepted = cluster.rota("store", "accept")
        until(lambda: not _server(cluster)["refused"], "the node is greeted")
        gate.open()

        assert restored.code == 0, restored.err
        assert (again.code, "conflict" in again.err) == (1, True)
        assert accepted.code == 0, accepted.err
        assert cluster.rota("wait", job).code == 0
        assert witness.starts() == {0: 1}


def _stop(cluster: LocalCluster) -> None:
    cluster.signal_server(signal.SIGTERM)
    assert cluster._server is not None
    cluster._server.wait(60)


def _has_come(cluster: LocalCluster, epoch: int) -> bool:
    return f'"epoch": {epoch}, "event": "connected"' in cluster.agent_log(1)


def _server(cluster: LocalCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.call("GET", "/v1/server").body
    return found
