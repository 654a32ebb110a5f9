"""Ended jobs expire: their records, their output on the nodes, and in the end their names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=1, settings={"ROTA_RETENTION_JOBS_COUNT": "1"}) as cluster:
        yield cluster


def test_retention_keeps_the_configured_number_of_ended_jobs(cluster: LocalCluster) -> None:
    first = cluster.rota("run", "--no-workdir", "--", "echo", "first")
    logs = cluster.node_directory(1) / "logs" / "1"
    until(logs.exists, "its output is there")
    body = {"command": ["true"], "name": "second"}
    second = cluster.call("POST", "/v1/jobs", body, **{"Idempotency-Key": "k"})
    until(lambda: cluster.call("GET", "/v1/jobs/1").status == 404, "the first has expired")
    shown = cluster.rota("show", "1")
    until(lambda: not logs.exists(), "its output is gone")
    repeated = cluster.call("POST", "/v1/jobs", body, **{"Idempotency-Key": "k"})
    cluster.rota("run", "--no-workdir", "--", "true")
    until(lambda: cluster.call("GET", "/v1/jobs/2").status == 404, "the second has expired")
    late = cluster.call("POST", "/v1/jobs", body, **{"Idempotency-Key": "k"})
    cluster.kill_server()
    cluster.start_server()
    later = cluster.call("POST", "/v1/jobs", body, **{"Idempotency-Key": "k"})

    assert first.code == 0, first.err
    assert second.status == 201
    assert shown.code == 4
    assert "job 1 succeeded and has expired" in shown.err
    assert (repeated.status, repeated.body["id"]) == (200, "2")
    assert late.status == later.status == 409
    assert "which has expired" in later.body["detail"]


def test_an_invalid_age_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[retention]\njobs_age = "soon"\n')
    checked = LocalCluster(tmp_path).rota("config", "check", str(file))

    assert checked.code == 2
    assert "retention.jobs_age" in checked.err
