"""The client on a real server: its results are typed, and asyncio gets the same."""

from collections.abc import Iterator

import pytest

from rota.client import connect_async
from rota.client.cluster import Cluster, connect
from rota.client.errors import Conflict, NotFound
from rota.client.views import Change, JobStatus
from rota.testing.cluster import LocalCluster

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def client(shared: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{shared.http}", token=shared.token) as opened:
        yield opened


def test_changes_of_jobs_and_tasks_since_a_cursor_are_returned(client: Cluster) -> None:
    before = client.moment()
    job = client.run("sh", "-c", "exit 3", cpu=0.1, name="watched")
    changed = _until_final(client.watch_jobs(before, name="watched"))
    task = next(
        change.entry
        for change in job.watch_tasks(before)
        if change.entry is not None and change.entry.is_final
    )
    job.delete()
    gone = next(change for change in client.watch_jobs(changed.seq, name="watched") if change.entry is None)

    assert changed.entry is not None
    assert (changed.entry.id, changed.entry.state) == (job.id, "failed")
    assert (task.exit_code, task.attempt) == (3, 1)
    assert gone.gone == {"id": job.id}


def test_attempts_are_read_one_by_one(client: Cluster) -> None:
    job = client.run("sh", "-c", 'test "$ROTA_ATTEMPT" != 1', cpu=0.1, retries=1)
    attempts = job.attempts()

    assert [(attempt.attempt, attempt.state) for attempt in attempts] == [(1, "failed"), (2, "succeeded")]
    assert job.attempt(1) == attempts[0]
    assert [task.index for task in job.tasks(node=attempts[1].node)] == [0]
    with pytest.raises(NotFound):
        job.attempt(3)


def test_a_concurrent_change_is_not_overwritten(client: Cluster) -> None:
    (node,) = client.nodes.list(fields="running", state="ready")
    seen = client.nodes.get(node.name)
    client.nodes.taint(node.name, "spot", if_etag=seen.etag)
    with pytest.raises(Conflict):
        client.nodes.cordon(node.name, if_etag=seen.etag)

    after = client.nodes.untaint(node.name, "spot")
    assert (after.taints, after.eligibility, node.labels) == ((), "open", {})


def test_a_server_describes_itself(client: Cluster, shared: LocalCluster) -> None:
    assert client.server.is_alive()
    assert client.server.is_ready()
    assert client.server.openapi()["paths"]["/v1/jobs"]
    assert "# TYPE rota_" in client.server.metrics()
    assert client.ca.get().ca.startswith("-----BEGIN CERTIFICATE")
    with connect("http://127.0.0.1:9", token=shared.token) as nobody:
        assert not nobody.server.is_alive()


async def test_the_asyncio_client_does_the_same(shared: LocalCluster) -> None:
    async with connect_async(f"http://{shared.http}", token=shared.token) as cluster:
        before = await cluster.moment()
        job = await cluster.submit_spec({"command": ["true"], "cpu": 0.1, "name": "awaited"})
        async for change in cluster.watch_jobs(before, name="awaited"):
            if change.entry is not None and change.entry.is_final:
                break
        cron = await cluster.crons.create("tick", "0 1 1 1 *", {"command": ["true"], "cpu": 0.1})
        run = await cluster.crons.run("tick", key="once")
        again = await cluster.crons.run("tick", key="once")
        await run.wait()
        await cluster.crons.delete("tick", if_etag=cron.etag)

        assert (await job.refresh()).state == "succeeded"
        assert [known.name for known in await cluster.clusters.list()] == ["default"]
        assert run.id == again.id
        assert await cluster.crons.list() == []


def _until_final(changes: Iterator[Change[JobStatus]]) -> Change[JobStatus]:
    return next(change for change in changes if change.entry is not None and change.entry.is_final)
