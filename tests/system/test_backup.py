"""Backups under load and their restore: what is guaranteed for work that ran meanwhile."""

import threading
from pathlib import Path
from typing import Any

import pytest

from rota.client.cluster import connect
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system


def test_a_backup_under_load_is_consistent(cluster: LocalCluster, tmp_path: Path) -> None:
    stopping = threading.Event()
    acknowledged: list[str] = []

    def submit() -> None:
        with connect(f"http://{cluster.http}", token=cluster.token) as client:
            while not stopping.is_set():
                acknowledged.append(client.submit("true", name=f"job-{len(acknowledged)}").id)

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        until(lambda: len(acknowledged) > 5, "submits come through")
        known = list(acknowledged)
        taken = cluster.rota("store", "backup", "rota.backup")
        from_disk = cluster.rota("store", "backup", "disk.backup", "--data-dir", "server")
    finally:
        stopping.set()
        thread.join()

    assert taken.code == 0, taken.err
    assert from_disk.code == 0, from_disk.err
    for name in ("rota.backup", "disk.backup"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert cluster.rota("store", "check", name).code == 0
        restored = cluster.rota("store", "restore", name, "--data-dir", f"from-{name}")
        assert restored.code == 0, restored.err
        assert cluster.rota("store", "check", "--data-dir", f"from-{name}").code == 0
    cluster.kill_server()
    (tmp_path / "server").rename(tmp_path / "before")
    (tmp_path / "from-rota.backup").rename(tmp_path / "server")
    cluster.start_server()
    assert [cluster.call("GET", f"/v1/jobs/{job}").status for job in known] == [200] * len(known)


def test_nodes_follow_a_restored_server_only_after_it_was_accepted(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    runs = cluster.submit(*witness.script(gate.wait), name="runs")
    until(lambda: cluster.count(runs, "running") == 1, "it runs")
    once = cluster.submit("true", name="once", run="at_most_once", cpu=1000, when_unschedulable="queue")
    assert cluster.rota("store", "backup", "rota.backup").code == 0
    late = cluster.submit("sleep", "600", name="late")
    until(lambda: cluster.count(late, "running") == 1, "what came after the backup runs")
    _restart(cluster)

    _restore(cluster)
    until(lambda: len(_server(cluster)["refused"]) == 3, "every node is refused")
    status = cluster.rota("server", "status")
    early = cluster.call("GET", f"/v1/jobs/{runs}").body["state"]
    accepted = cluster.rota("store", "accept")
    cluster.wait_for_nodes()
    gate.open()

    assert "nodes wait for: rota store accept" in status.out
    assert "refused   node-1" in status.out
    assert early == "active"
    assert accepted.code == 0, accepted.err
    assert cluster.rota("wait", runs).code == 0
    assert witness.starts() == {0: 1}
    until(lambda: not _sleeping(cluster), "what is not known any more is stopped")
    assert cluster.call("GET", f"/v1/jobs/{once}").body["state"] == "paused"
    assert cluster.call("GET", f"/v1/jobs/{late}").status == 404
    assert int(cluster.submit("true")) > 10_000_000
    assert cluster.rota("store", "accept").code == 1


def test_nodes_refuse_a_copied_directory_with_a_lower_epoch(
    cluster: LocalCluster, witness: Witness, gate: Gate, tmp_path: Path
) -> None:
    job = cluster.submit(*witness.script(gate.wait))
    until(lambda: cluster.count(job, "running") == 1, "it runs")
    cluster.kill_server()
    _copy(tmp_path / "server", tmp_path / "copy-of-server")
    cluster.start_server()
    _restart(cluster)
    until(
        lambda: all(_has_seen(cluster, number, epoch=3) for number in cluster.numbers), "all follow epoch 3"
    )
    cluster.kill_server()
    (tmp_path / "server").rename(tmp_path / "original")
    (tmp_path / "copy-of-server").rename(tmp_path / "server")
    cluster.start_server()

    until(lambda: len(_server(cluster)["refused"]) == 3, "every node is refused")
    listed = cluster.rota("node", "ls", "-o", "json")
    assert "the node has seen epoch" in listed.out
    assert "orders of an older epoch" not in cluster.agent_log(1)
    cluster.kill_server()
    (tmp_path / "server").rename(tmp_path / "copy-of-server")
    (tmp_path / "original").rename(tmp_path / "server")
    cluster.start_server()
    cluster.wait_for_nodes()
    gate.open()
    assert cluster.rota("wait", job).code == 0
    assert witness.starts() == {0: 1}


def test_a_migrated_store_continues_everything(cluster: LocalCluster, gate: Gate, witness: Witness) -> None:
    job = cluster.submit(*witness.script(gate.wait))
    until(lambda: cluster.count(job, "running") == 1, "it runs")
    busy = cluster.rota("store", "migrate", "server", "moved")
    cluster.kill_server()
    moved = cluster.rota("store", "migrate", "server", "moved")
    again = cluster.rota("store", "migrate", "server", "moved")
    (cluster.directory / "server").rename(cluster.directory / "before")
    (cluster.directory / "moved").rename(cluster.directory / "server")
    cluster.start_server()
    cluster.wait_for_nodes()
    gate.open()

    assert (busy.code, "already_running" in busy.err) == (75, True)
    assert moved.code == 0, moved.err
    assert (again.code, "conflict" in again.err) == (1, True)
    assert cluster.rota("wait", job).code == 0
    assert witness.starts() == {0: 1}


def _has_seen(cluster: LocalCluster, number: int, epoch: int) -> bool:
    return f'"epoch": {epoch}' in cluster.agent_log(number)


def _restart(cluster: LocalCluster) -> None:
    cluster.kill_server()
    cluster.start_server()
    cluster.wait_for_nodes()


def _restore(cluster: LocalCluster) -> None:
    cluster.kill_server()
    (cluster.directory / "server").rename(cluster.directory / "lost")
    restored = cluster.rota("store", "restore", "rota.backup", "--data-dir", "server")
    assert restored.code == 0, restored.err
    cluster.start_server()


def _copy(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(mode=0o700)
        else:
            place.write_bytes(path.read_bytes())
            place.chmod(0o600)


def _server(cluster: LocalCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.call("GET", "/v1/server").body
    return found


def _sleeping(cluster: LocalCluster) -> list[int]:
    return cluster.work()
