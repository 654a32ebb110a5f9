"""The status of a server is true: while its store fails it is alive, and not ready."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system


@contextmanager
def taken(database: Path) -> Iterator[None]:
    """Another process writes to the store: the server's commits fail."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_server_whose_store_fails_is_alive_and_not_ready(
    cluster: LocalCluster, witness: Witness, gate: Gate, tmp_path: Path
) -> None:
    job = cluster.submit(*witness.script(gate.wait))
    until(lambda: cluster.count(job, "running") == 1, "it runs")
    before = cluster.call("GET", "/readyz", authorization="").status

    with taken(tmp_path / "server" / "rota.db"):
        until(lambda: cluster.call("GET", "/readyz", authorization="").status == 503, "it is not ready")
        alive = cluster.call("GET", "/healthz", authorization="").status
        refused = cluster.call("POST", "/v1/jobs", {"command": ["true"]})
        status = until(lambda: _problem(cluster), "what is wrong is told")
    until(lambda: cluster.call("GET", "/readyz", authorization="").status == 200, "it is ready again")
    gate.open()

    assert (before, alive) == (200, 200)
    assert (refused.status, refused.body["code"]) == (503, "unavailable")
    assert status is not None
    assert "locked" in status
    assert cluster.rota("wait", job).code == 0
    assert witness.starts() == {0: 1}
    assert cluster.rota("run", "--", "true").code == 0


def test_the_status_is_a_table_and_json(cluster: LocalCluster) -> None:
    output = cluster.rota("server", "status").out
    record = json.loads(cluster.rota("server", "status", "--json").out)

    assert [line.split()[0] for line in output.splitlines()] == [
        "role",
        "version",
        "epoch",
        "revision",
        "store",
        "holds",
        "certs",
    ]
    assert (record["role"], record["epoch"], record["store"], record["lag_ms"]) == ("leader", 1, "sqlite", 0)
    assert record["store_median_ms"] > 0
    assert record["refused"] == {}


def _problem(cluster: LocalCluster) -> str | None:
    found: str | None = cluster.call("GET", "/v1/server").body["store_problem"]
    return found
