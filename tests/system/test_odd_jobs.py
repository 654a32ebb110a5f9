"""An odd job or an odd node affects no other: agents, keepers and server continue, other jobs end."""

import contextlib
from collections.abc import Iterator
from typing import Any

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
    """The same processes run before and after, and a job of another user ends."""
    before = cluster.processes()
    yield
    job = cluster.submit("true")
    until(lambda: state(cluster, job) == "succeeded", "another job ends")
    assert cluster.processes() == before
    assert [cluster.node(number)["state"] for number in cluster.numbers] == ["ready"] * len(cluster.numbers)


def state(cluster: LocalCluster, job: str) -> str:
    return str(cluster.call("GET", f"/v1/jobs/{job}").body["state"])


def has_ended(cluster: LocalCluster, job: str) -> bool:
    return state(cluster, job) in ("succeeded", "failed", "canceled")


def refusals(cluster: LocalCluster, job: str) -> list[Any]:
    """Attempts that some node refused."""
    attempts = cluster.call("GET", f"/v1/jobs/{job}/tasks/0/attempts").body["attempts"]
    return [attempt for attempt in attempts if attempt["state"] == "refused"]


def test_a_job_cannot_request_the_resource_that_counts_tasks(pair: LocalCluster) -> None:
    with unharmed(pair):
        answer = pair.call("POST", "/v1/jobs", {"command": ["true"], "resources": {"tasks": 1}})

        assert (answer.status, answer.body["field"]) == (400, "resources")


def test_an_agent_cannot_offer_the_resource_that_counts_tasks(pair: LocalCluster) -> None:
    with unharmed(pair):
        directory = str(pair.directory / "odd")
        ran = pair.rota("agent", "--data-dir", directory, "--resource", "tasks=5", ROTA_JOIN=pair.join_line())

        assert ran.code == 2
        assert "resources.tasks" in ran.err


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"workdir": "/" + "a" * 300}, "workdir"),
        ({"workdir": "/" + "ä" * 128}, "workdir"),
        ({"workdir": "/a" * 2048}, "workdir"),
        ({"files": {"f" * 300: "x"}}, "files"),
        ({"files": {"d/" + "ä" * 128: "x"}}, "files"),
        ({"command": ["echo", *[""] * 180_000]}, "command"),
        ({"sandbox": {"writable": ["/" + "a" * 256]}}, "sandbox.writable[0]"),
        ({"image": "a", "container": {"mounts": ["/" + "a" * 256 + ":/b"]}}, "container.mounts[0].source"),
    ],
)
def test_a_job_that_no_node_could_start_is_refused_immediately(
    pair: LocalCluster, spec: dict[str, Any], field: str
) -> None:
    answer = pair.call("POST", "/v1/jobs", {"command": ["true"], **spec})

    assert (answer.status, answer.body["field"]) == (400, field)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"workdir": "/proc/1/root/x"}, None),
        ({"workdir": "/etc/passwd"}, None),
        ({"command": ["/" + "a" * 300]}, 126),
        ({"command": ["a" * 300]}, 127),
        ({"command": ["/etc/passwd"]}, 126),
        ({"command": ["echo", *["x" * 100] * 9_000]}, 0),
        ({"files": {"a" * 255: "x"}}, 0),
        ({"env": {"A": "x" * 131_000}}, 0),
    ],
)
def test_an_odd_job_ends_or_waits_by_itself(
    pair: LocalCluster, spec: dict[str, Any], code: int | None
) -> None:
    with unharmed(pair):
        answer = pair.call("POST", "/v1/jobs", {"command": ["true"], **spec})
        assert answer.status == 201, answer
        job = answer.body["id"]
        if code is None:  # no node of these has the directory; another one may
            until(lambda: len(refusals(pair, job)) == 2, "both nodes have refused it")
            assert pair.call("POST", f"/v1/jobs/{job}/cancel", {}).status == 202
        else:
            until(lambda: has_ended(pair, job), "it ends")
            assert pair.call("GET", f"/v1/jobs/{job}/tasks/0").body["exit_code"] == code


def test_names_that_occur_in_store_keys_are_ordinary_names(pair: LocalCluster) -> None:
    with unharmed(pair):
        for name in ("spec", "wish", "status"):
            made = pair.call("PUT", f"/v1/namespaces/{name}", {"quota": {"tasks": 10}})
            assert made.status in (200, 201), made
            assert pair.call("DELETE", f"/v1/namespaces/{name}").status in (200, 204)
