"""One odd job, or one odd node, harms nobody else: agents, keepers and server go on, others' work ends."""

import contextlib
from collections.abc import Iterator

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes, for tests that must leave them as they found them."""
    with LocalCluster(tmp_path_factory.mktemp("pair"), nodes=2) as running:
        yield running


@contextlib.contextmanager
def unharmed(cluster: LocalCluster) -> Iterator[None]:
    """The processes before are the processes after, and somebody else's job ends."""
    before = cluster.processes()
    yield
    job = cluster.submit("true")
    until(lambda: state(cluster, job) == "succeeded", "another job ends")
    assert cluster.processes() == before
    assert [cluster.node(number)["state"] for number in cluster.numbers] == ["ready"] * len(cluster.numbers)


def state(cluster: LocalCluster, job: str) -> str:
    return str(cluster.call("GET", f"/v1/jobs/{job}").body["state"])


def test_a_job_cannot_ask_for_the_resource_that_counts_tasks(pair: LocalCluster) -> None:
    with unharmed(pair):
        answer = pair.call("POST", "/v1/jobs", {"command": ["true"], "resources": {"tasks": 1}})

        assert (answer.status, answer.body["field"]) == (400, "resources")


def test_an_agent_cannot_offer_the_resource_that_counts_tasks(pair: LocalCluster) -> None:
    with unharmed(pair):
        directory = str(pair.directory / "odd")
        ran = pair.rota("agent", "--data-dir", directory, "--resource", "tasks=5", ROTA_JOIN=pair.join_line())

        assert ran.code == 2
        assert "resources.tasks" in ran.err


def test_names_that_are_words_of_the_store_are_names_like_any_other(pair: LocalCluster) -> None:
    with unharmed(pair):
        for name in ("spec", "wish", "status"):
            made = pair.call("PUT", f"/v1/namespaces/{name}", {"quota": {"tasks": 10}})
            assert made.status in (200, 201), made
            assert pair.call("DELETE", f"/v1/namespaces/{name}").status in (200, 204)
