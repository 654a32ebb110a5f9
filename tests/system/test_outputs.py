"""Files that tasks leave in ROTA_OUTPUT_DIR are listed and fetched; what is impossible is refused clearly."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from rota.client.cluster import Cluster, connect
from rota.client.errors import Conflict, NotFound, Unavailable
from rota.client.job import Job
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def client(shared: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{shared.http}", token=shared.token) as opened:
        yield opened


def left_by(client: Cluster, script: str, **spec: int) -> Job:
    job = client.submit("sh", "-c", f"cd $ROTA_OUTPUT_DIR; {script}", **spec)  # type: ignore[arg-type]
    job.wait(60)
    return job


def test_outputs_are_fetched_unchanged(client: Cluster, tmp_path: Path) -> None:
    big = "head -c 3000001 /dev/urandom > big"
    job = left_by(
        client, f"{big}; sha256sum < big; mkdir -p a/b; echo deep > a/b/c; : > empty; chmod +x empty"
    )
    files = job.get(into=tmp_path)

    assert [str(path.relative_to(tmp_path)) for path in files] == ["a/b/c", "big", "empty"]
    assert (tmp_path / "a/b/c").read_text() == "deep\n"
    assert (tmp_path / "empty").stat().st_mode & 0o100
    assert hashlib.sha256((tmp_path / "big").read_bytes()).hexdigest() == job.logs().split()[0]
    assert [(output.path, output.bytes) for output in job.outputs()] == [
        ("a/b/c", 5),
        ("big", 3000001),
        ("empty", 0),
    ]


def test_a_failed_task_leaves_outputs_too(client: Cluster, tmp_path: Path) -> None:
    job = left_by(client, "echo report > report.txt; exit 1")

    assert job.state == "failed"
    assert [path.read_text() for path in job.get(into=tmp_path)] == ["report\n"]


def test_outputs_are_selected_by_name_directory_or_pattern(client: Cluster, tmp_path: Path) -> None:
    job = left_by(client, "mkdir d; touch a.csv b.csv c.txt d/e")

    assert [output.path for output in job.outputs("*.csv", "d")] == ["a.csv", "b.csv", "d/e"]
    with pytest.raises(NotFound, match=r"no output 'z\.csv'"):
        job.get("z.csv", into=tmp_path)


def test_symlinks_are_not_followed(client: Cluster, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "directory").mkdir()
    job = left_by(client, f"ln -s {secret} link; ln -s {tmp_path}/directory dir; mkfifo pipe; echo x > plain")

    assert [output.path for output in job.outputs()] == ["plain"]


def test_without_outputs_nothing_is_fetched(client: Cluster, tmp_path: Path) -> None:
    job = left_by(client, "true")

    assert job.outputs() == []
    assert job.get(into=tmp_path) == []


def test_the_command_line_lists_and_fetches(client: Cluster, shared: LocalCluster, tmp_path: Path) -> None:
    job = left_by(client, "echo 1 > one; echo 2 > two")
    listed = shared.rota("get", job.id, "--list", "-o", "json")
    fetched = shared.rota("get", job.id, "two", "-O", str(tmp_path / "here"))

    assert [output["path"] for output in json.loads(listed.out)["outputs"]] == ["one", "two"]
    assert (fetched.code, fetched.out) == (0, f"{tmp_path}/here/two\n")
    assert (tmp_path / "here/two").read_text() == "2\n"


def test_before_a_task_has_started_there_is_nothing_to_fetch(client: Cluster) -> None:
    waits = client.submit("true", cpu=1000)
    with pytest.raises(Conflict, match="has not started"):
        waits.outputs()
    waits.cancel()


def test_outputs_removed_by_retention_are_reported_as_gone(client: Cluster, shared: LocalCluster) -> None:
    job = left_by(client, "echo 1 > one")
    (shared.node_directory(1) / "tasks" / job.id).rename(shared.node_directory(1) / f"gone-{job.id}")
    with pytest.raises(NotFound, match="no longer on the node"):
        job.outputs()


def test_a_disconnected_node_is_named(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster, connected(cluster) as client:
        job = left_by(client, "echo 1 > one")
        cluster.kill_agent(1)
        until(lambda: cluster.node(1)["state"] != "ready", "the node is missed")
        client.transport.patience_seconds = 0.1
        with pytest.raises(Unavailable, match="node-1 is not connected"):
            job.outputs()


def test_more_outputs_than_a_node_sends_are_refused(tmp_path: Path) -> None:
    settings = {"ROTA_OUTPUT_BYTES": "1k"}
    with LocalCluster(tmp_path, nodes=1, settings=settings) as cluster, connected(cluster) as client:
        job = left_by(client, "head -c 2000 /dev/zero > big; echo 1 > small")
        with pytest.raises(Conflict, match="output_bytes"):
            job.get(into=tmp_path / "got")

        assert [path.name for path in job.get("small", into=tmp_path / "got")] == ["small"]


def connected(cluster: LocalCluster) -> Cluster:
    return connect(f"http://{cluster.http}", token=cluster.token)


@pytest.mark.parametrize("form", ["tar", "list"])
def test_a_browser_downloads_outputs_as_a_file(client: Cluster, shared: LocalCluster, form: str) -> None:
    """A task could write a web page, which must not be shown under the server's origin."""
    job = left_by(client, "echo '<script>' > page.html")
    with contextlib.closing(HTTPConnection(shared.http, timeout=60)) as connection:
        path = f"/v1/jobs/{job.id}/outputs?format={form}"
        connection.request("GET", path, headers={"authorization": f"Bearer {shared.token}"})
        answer = connection.getresponse()
        answer.read()

    ending = "tar" if form == "tar" else "ndjson"
    assert answer.headers["content-disposition"] == f'attachment; filename="job-{job.id}-outputs.{ending}"'
