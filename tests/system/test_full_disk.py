"""The server's disk is full: new jobs are refused, results are stored, and it recovers by itself."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.machine import needs
from tests.system.witness_file import Gate, Witness

pytestmark = [
    pytest.mark.system,
    needs("root"),
]


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[LocalCluster]:
    """The server's directory is a disk of its own."""
    disk = tmp_path / "server"
    disk.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "none", str(disk)], check=True)
    try:
        with LocalCluster(tmp_path, nodes=1) as cluster:
            yield cluster
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_accepts_results_and_no_new_jobs(
    cramped: LocalCluster, witness: Witness, gate: Gate, tmp_path: Path
) -> None:
    running = cramped.submit(*witness.script(f"{gate.wait}; exit $ROTA_INDEX"), count=4, name="running")
    until(lambda: cramped.count(running, "running") == 4, "all slots are taken")
    waiting = cramped.submit("true", name="waiting")
    filler = tmp_path / "server" / "filler"
    _fill(filler)

    refusal = until(lambda: _refusal(cramped), "a submit is refused") or {}
    ran = cramped.rota("run", "--", "true")
    status = cramped.rota("server", "status").out
    gate.open()
    until(
        lambda: cramped.count(running, "failed") == 3 and cramped.count(running, "succeeded") == 1,
        "the results are on record",
    )
    why = cramped.rota("why", waiting).out
    still_waits = cramped.count(waiting, "pending")
    cancelled = cramped.rota("cancel", waiting)
    again = cramped.call("POST", "/v1/jobs", {"command": ["true"]}).status
    cramped.kill_server()
    cramped.start_server()
    kept = cramped.call("GET", f"/v1/jobs/{running}").body["counts"]
    filler.unlink()
    until(lambda: _refusal(cramped) is None, "submits are taken again")

    assert (refusal["code"], refusal["status"]) == ("store_full", 507)
    assert "is full" in refusal["detail"]
    assert ran.code == 75
    assert ran.err.startswith("error: store_full: the server's disk is nearly full")
    assert "its disk is full" in status
    assert "the server's disk is full" in why
    assert still_waits == 1
    assert cancelled.code == 0, cancelled.err
    assert again == 507
    assert (kept["succeeded"], kept["failed"]) == (1, 3)
    assert witness.starts() == dict.fromkeys(range(4), 1)
    assert cramped.rota("run", "--", "true").code == 0
    assert cramped.rota("store", "check", "--data-dir", "server").code == 0


def _refusal(cluster: LocalCluster) -> dict[str, Any] | None:
    answer = cluster.call("POST", "/v1/jobs", {"command": ["true"], "cpu": 100})
    return answer.body if answer.status != 201 else None


def _fill(path: Path) -> None:
    """Up to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
