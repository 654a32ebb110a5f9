"""A job that cannot run reserves no resources: the jobs behind it run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LocalCluster]:
    """One node of two cores."""
    with LocalCluster(tmp_path, nodes=1, cpu=2) as running:
        yield running


@pytest.mark.parametrize("gang", [False, True])
def test_a_job_that_every_node_refuses_reserves_no_node(cluster: LocalCluster, gang: bool) -> None:
    fields = {"gang": True, "count": 3} if gang else {}
    refused = cluster.submit("true", cpu=4, workdir="/nonexistent", **fields)
    until(lambda: _kinds(cluster, refused) == {"refused"}, "every node has refused it")

    ran = cluster.rota("run", "--", "echo", "hello")

    assert (ran.code, ran.out) == (0, "hello\n")
    assert "no directory /nonexistent" in cluster.rota("why", refused).out


def test_a_refusal_does_not_affect_other_directories_and_users(cluster: LocalCluster) -> None:
    """They request the same amounts: a missing directory of one job says nothing about its shape."""
    refused = cluster.submit("true", workdir="/nonexistent")
    until(lambda: _kinds(cluster, refused) == {"refused"}, "every node has refused it")

    ran = [cluster.submit("true", workdir="/tmp"), cluster.submit("true")]

    until(lambda: all(cluster.count(job, "succeeded") for job in ran), "the others have run")


def test_a_job_that_waits_for_a_service_delays_no_other(small: LocalCluster) -> None:
    service = small.submit("sleep", "1000", cpu=1, kind="service")
    until(lambda: small.count(service, "running"), "the service runs")
    large = small.submit("true", cpu=2, name="large")
    until(lambda: "too little free cpu" in small.rota("why", "large").out, "it waits")

    ran = small.rota("run", "--cpu", "1", "--", "echo", "hello")

    assert (ran.code, ran.out) == (0, "hello\n")
    assert small.count(large, "pending") == 1


def _kinds(cluster: LocalCluster, job: str) -> set[str]:
    """Why it waits, without its position in the queue."""
    why = cluster.call("GET", f"/v1/jobs/{job}/why").body
    return {reason["kind"] for reason in why["reasons"] if reason["kind"] not in ("queue", "promised")}
